"""Converts servers to machines of the port."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from hostler.drivers.machines.hetzner.api_types import address_of
from hostler.drivers.machines.hetzner.labels import unpacked_key, vm_hash
from hostler.drivers.machines.hetzner.power import AVAILABLE
from hostler.drivers.machines.hetzner.status import state_of
from hostler.errors import Damaged, Unavailable
from hostler.model.vm import Access, MachineState
from hostler.ports.machines import Machine, RetainedMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.drivers.machines.hetzner.api_types import Server
    from hostler.drivers.machines.hetzner.context import HetznerContext
    from hostler.drivers.machines.hetzner.labels import Card
    from hostler.drivers.machines.hetzner.power import Power
    from hostler.drivers.machines.hetzner.readiness import Readinesses

_log = logging.getLogger("hostler.machines")


class MachineMapping:
    """Machines and retained machines, read from Hetzner Cloud."""

    def __init__(self, site: HetznerContext, power: Power, readiness: Readinesses) -> None:
        self._site, self._power, self._readiness, self._options = site, power, readiness, site.options

    async def names(self, card: Card) -> Sequence[str]:
        """Return the names of the complete snapshots."""
        if not card.snapshots:
            return ()
        found = await self._power.snapshots(card.key)
        return tuple(dict.fromkeys(each.name for each in found if each.status == AVAILABLE))

    async def machine(self, server: Server) -> Machine:
        card = self._site.card(server)
        if card is None:
            raise Unavailable(f"server {server.name}: another client removed its labels; inspect the machine")
        return self._seen(server, card, await self.names(card))

    async def retained(self, card: Card) -> RetainedMachine:
        """Return the description of a retained machine."""
        return RetainedMachine(
            name=card.retained,
            label=card.label,
            spec=self._site.kept.spec_of(card),
            snapshots=tuple(await self.names(card)),
            retained_at=float(card.retained_at),
        )

    async def all(self) -> Sequence[Machine]:
        """Return all machines in service, from one listing."""
        cards: list[tuple[Server, Card]] = []
        for server in await self._site.looks.all():
            try:
                card = self._site.card(server)
            except Damaged as error:
                _log.warning("%s", error)
                continue
            if card is not None and not card.retained:
                cards.append((server, card))
        names: dict[str, list[str]] = {}
        for found in await self._site.api.snapshots() if any(card.snapshots for _, card in cards) else ():
            if found.status == AVAILABLE and found.name not in names.setdefault(found.vm_hash, []):
                names[found.vm_hash].append(found.name)
        return [
            self._seen(server, card, names.get(vm_hash(card.key), ()) if card.snapshots else ())
            for server, card in cards
        ]

    def _seen(self, server: Server, card: Card, snapshots: Sequence[str]) -> Machine:
        state = state_of(server.status, card)
        host = address_of(server, ipv4=self._options.ipv4)
        key = unpacked_key(card.host_key)
        access = None
        if host and not card.life:
            access = Access(host=host, port=self._options.ssh_port, user=card.user, host_keys=(key,) if key else ())
        return Machine(
            label=card.label,
            id=f"hcloud-{server.id}",
            state=state,
            spec=self._site.kept.spec_of(card),
            tags=card.tags,
            cloud_status=server.status,
            address=host,
            detail=f"a restore to {card.restoring_to!r} is incomplete" if card.restoring else "",
            resets=card.resets,
            restored=card.restored,
            snapshots=tuple(snapshots),
            readiness=self._readiness.of(card.label.vm, server.id, access, runs=state is MachineState.RUNNING),
            access=access,
        )
