"""Power, snapshots and restores of servers."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.hetzner.api_types import OFF, RUNNING
from hostler.drivers.machines.hetzner.labels import of_vm, snapshot_labels
from hostler.errors import HostlerError, Refused, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.drivers.machines.hetzner.api_types import Action, Server, Snapshot
    from hostler.drivers.machines.hetzner.context import HetznerContext
    from hostler.drivers.machines.hetzner.labels import Card

AVAILABLE = "available"
_log = logging.getLogger("hostler.machines")
replace = msgspec.structs.replace


class Power:
    """Verbs on an existing server. Each returns the server as it is afterwards."""

    def __init__(self, site: HetznerContext) -> None:
        self._site = site

    async def on(self, server: Server) -> Server:
        await self._wait_for_action(server, await self._site.api.act(server, "poweron"))
        return await self._became(server, RUNNING)

    async def off(self, server: Server, *, grace: float) -> Server:
        """Ask the guest to shut down; switch the server off after `grace` seconds."""
        site = self._site
        if grace > 0:
            begun = site.clock.now()
            await self._wait_for_action(server, await site.api.act(server, "shutdown"), fine=True)
            try:
                left = max(0.0, begun + grace - site.clock.now())
                return _there(await site.goings.became(server.name, _is_off, within=left), server)
            except TimeoutError:
                pass
        await self._wait_for_action(server, await site.api.act(server, "poweroff"))
        return await self._became(server, OFF)

    async def ask_to_shut_down(self, server: Server) -> None:
        """Ask the guest to shut down and wait up to `ends_within` seconds. Failures are only logged."""
        within = self._site.options.pace.ends_within
        try:
            async with asyncio.timeout(within):
                await self._wait_for_action(server, await self._site.api.act(server, "shutdown"), fine=True)
                await self._site.goings.became(server.name, _is_off, within=within)
        except (HostlerError, TimeoutError) as error:
            why = str(error) or f"it takes more than {within:g} s"
            _log.info("server %s: deleted without a clean shutdown: %s", server.name, why)

    async def reset(self, server: Server) -> None:
        await self._wait_for_action(server, await self._site.api.act(server, "reset"))

    async def _became(self, server: Server, status: str) -> Server:
        """Wait until the server has that status; the API shows the result of an action with a delay."""
        patience = self._site.options.pace.patience
        try:
            seen = await self._site.goings.became(
                server.name, lambda seen: seen is None or seen.status == status, within=patience
            )
        except TimeoutError:
            raise Uncertain(f"server {server.name}: it is not {status} after {patience:g} s; inspect it") from None
        return _there(seen, server)

    async def _wait_for_action(self, server: Server, action: Action, *, fine: bool = False) -> None:
        """Wait until the action has ended. `fine`: ignore its failure."""
        ended = await self._site.goings.wait_until_ended(action, f"server {server.name}")
        if ended.failed and not fine:
            raise Unavailable(f"server {server.name}: {ended.command} failed: {ended.message}; try again")

    # Snapshots

    async def snapshots(self, vm: str) -> Sequence[Snapshot]:
        """Return all snapshots stored under that key (`Card.key`), oldest first, incomplete ones included."""
        return await self._site.api.snapshots(of_vm(vm))

    async def snapshot(self, server: Server, card: Card, name: str) -> None:
        """Take a snapshot unless it exists. Incomplete ones of that name are deleted or waited for."""
        site = self._site
        if not card.snapshots:
            await site.relabel(server, replace(card, snapshots=True))
        elif await self._made_before(server, card.key, name):
            return
        made = await site.api.snapshot(server, _says(card, name), snapshot_labels(card, name))
        await self._wait_for_action(server, made)

    async def _made_before(self, server: Server, vm: str, name: str) -> bool:
        """Return whether the snapshot exists, after waiting for one that an interrupted call began."""
        site = self._site
        backoff = Backoff(first=site.options.pace.poll_first, most=site.options.pace.poll_most)
        until = site.clock.now() + site.options.pace.patience
        while True:
            found = [each for each in await self.snapshots(vm) if each.name == name]
            if any(each.status == AVAILABLE for each in found):
                return True
            if not any(each.status == "creating" for each in found):
                for each in found:
                    await site.api.delete_image(each.id)
                return False
            if site.clock.now() > until:
                raise Uncertain(f"machine {vm!r}: snapshot {name!r} is not ready yet; inspect the machine")
            going = [each for each in await site.api.actions_of(server) if each.command == "create_image"]
            for action in going:
                await site.goings.wait_until_ended(action, f"machine {vm!r}")
            await site.clock.sleep(backoff.next())

    async def restore(self, server: Server, card: Card) -> tuple[Server, Card]:
        """Finish the restore that was begun, and leave the server off."""
        for found in await self.snapshots(card.key):
            if found.name == card.restoring_to and found.status == AVAILABLE:
                break
        else:
            raise Refused(f"machine {card.label.vm!r}: snapshot {card.restoring_to!r} no longer exists")
        if server.status != OFF:
            server = await self.off(server, grace=0)
        await self._wait_for_action(server, await self._site.api.act(server, "rebuild", image=found.id))
        seen = _there(await self._site.looks.server(server.name), server)
        if seen.status != OFF:  # a rebuild switches the server on
            await self.off(seen, grace=0)
        card = replace(card, restored=card.restoring, restoring=0, restoring_to="")
        return await self._site.relabel(server, card), card

    async def drop(self, vm: str, name: str | None = None) -> None:
        """Delete the snapshots with that name, or all of a machine."""
        for found in await self.snapshots(vm):
            if name is None or found.name == name:
                await self._site.api.delete_image(found.id)


def _is_off(server: Server | None) -> bool:
    return server is None or server.status == OFF


def _there(seen: Server | None, server: Server) -> Server:
    if seen is None:
        raise Unavailable(f"server {server.name}: deleted by another client; inspect the machine")
    return seen


def _says(card: Card, name: str) -> str:
    """Return the description that users see in Hetzner's console."""
    return f"Hostler: {name} of {card.label.vm}"[:200]
