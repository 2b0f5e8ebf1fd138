"""The verbs of the machines port, implemented with Hetzner Cloud servers.

All state that must outlive this process is in the labels of the server (`labels.py`). Each verb reads the current
state, does what is missing, and records the result last. So repeating an interrupted verb finishes it. A lost answer is
recovered by reading the state: the name of a server is unique, so it cannot be created twice. Verbs of one machine run
one at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.machines import validation
from hostler.drivers.machines.channel import Connection, PortChannels
from hostler.drivers.machines.hetzner.api import AT_ONCE
from hostler.drivers.machines.hetzner.api_types import DELETING, OFF, RUNNING, Absent, Taken
from hostler.drivers.machines.hetzner.context import HetznerContext
from hostler.drivers.machines.hetzner.create import CREATING, ServerCreation
from hostler.drivers.machines.hetzner.labels import server_name, snapshot_labels
from hostler.drivers.machines.hetzner.mapping import MachineMapping, Readinesses
from hostler.drivers.machines.hetzner.poller import Watch
from hostler.drivers.machines.hetzner.power import Power
from hostler.errors import Closed, Forbidden, HostlerError, NotFound, Refused, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import Closing
from hostler.model.vm import MachineState
from hostler.ports.machines import ChannelKind, Offer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from hostler.drivers.machines.hetzner.api_types import Server
    from hostler.drivers.machines.hetzner.descriptor import HetznerOptions
    from hostler.drivers.machines.hetzner.labels import Card
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Channel, Machine, MachinePlan, RetainedMachine

GONE = "deleting"
_log = logging.getLogger("hostler.machines")
replace = msgspec.structs.replace


class HetznerMachines(Closing):
    """Servers of one Hetzner Cloud project. `folder`: local state of the node; its name identifies the node.

    They do not stop by themselves and cannot be migrated, so the verbs of `Fencing` and `Migration` are absent.
    """

    def __init__(self, folder: str | Path, *, options: HetznerOptions, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._options = options
        self._site = HetznerContext(folder, options, clock=self.clock)
        self._making, self._power = ServerCreation(self._site), Power(self._site)
        self._locks: dict[str, asyncio.Lock] = {}
        self._watch = Watch(self.clock, options.pace, self._look, skips=self._busy, spares=self._spares)
        self._readiness = Readinesses(options, self._site.kept, clock=self.clock, told=self._watch.tell)
        self._view = MachineMapping(self._site, self._power, self._readiness)
        self._keeping = asyncio.Lock()
        """Serializes changes of retained machines."""
        self._open = False

    @property
    def name(self) -> str:
        return "hetzner"

    @property
    def place(self) -> str:
        """Derived from the node and the endpoint, because the servers survive the loss of the folder."""
        told = f"hetzner\0{self._options.endpoint}\0{self._site.kept.folder.name}"
        return f"hcloud-{hashlib.sha256(told.encode()).hexdigest()[:16]}"

    async def __aenter__(self) -> Self:
        self._site.open()
        self._open = True
        self._watch.open()
        return self

    async def aclose(self) -> None:
        """Close the driver; the servers keep running."""
        if self._open:
            self._open = False
            await self._watch.aclose()
            await self._readiness.aclose()
            await self._site.aclose()

    # The verbs

    def listen(self, changed: Callable[[str], None]) -> None:
        self._watch.listen(changed)

    async def offer(self) -> Offer:
        self._check_open()
        refuses = ""
        try:
            # While the token is rejected, ask the API: the cached types would hide that the token is accepted again.
            await self._making.kinds(fresh=bool(self._site.api.refused))
        except Forbidden as error:
            refuses = str(error)
        except HostlerError as error:
            _log.warning("Hetzner Cloud: cannot list the server types: %s", error)
        if not refuses and self._site.api.refused:
            refuses = self._site.api.refused
        elif not refuses and self._site.api.near_limit:
            refuses = "the rate limit of Hetzner Cloud is almost used up; it recovers with time"
        facts = {"endpoint": self._options.endpoint, "image": self._options.image}
        for key, names in (("server types", self._options.server_types), ("locations", self._options.locations)):
            if names:
                facts[key] = ", ".join(names)
        return Offer(capacity=self._options.capacity, facts=facts, refuses=refuses)

    async def create(self, plan: MachinePlan) -> Machine:
        validation.check_plan(plan, None)
        if plan.fenced:
            raise Refused(
                f"machine {plan.label.vm!r}: a server of Hetzner Cloud does not stop by itself; do not fence it"
            )
        async with self._verb(plan.label.vm):
            try:
                return await self._machine_after(await self._create_server(plan))
            except Taken:  # an answer was lost, and its server appeared after `_create_server` had read the state
                return await self._machine_after(await self._create_server(plan))

    async def mark(self, plan: MachinePlan) -> Machine:
        validation.check_plan(plan, None)
        async with self._verb(plan.label.vm):
            server, card = await self._require_server(plan.label.vm)
            validation.check_markable(card.label, plan.label)
            return await self._machine_after(await self._relabel_server(server, card, plan))

    async def start(self, vm: str) -> Machine:
        async with self._verb(vm):
            server, card = await self._whole(vm)
            if card.restoring:
                server, card = await self._power.restore(server, card)
            if server.status != RUNNING:
                self._readiness.forget(vm)
                server = await self._power.on(server)
            return await self._machine_after(server)

    async def stop(self, vm: str, *, grace: float) -> Machine:
        validation.check_seconds("grace", grace)
        async with self._verb(vm):
            server, card = await self._require_server(vm)
            if server.status not in (OFF, DELETING) and not card.life:
                server = await self._power.off(server, grace=grace)
            return await self._machine_after(server)

    async def reset(self, vm: str, number: int) -> Machine:
        validation.check_number(number)
        async with self._verb(vm):
            server, card = await self._require_server(vm)
            if card.resets < number:
                if server.status == RUNNING and not card.life:
                    self._readiness.forget(vm)
                    await self._power.reset(server)
                server = await self._site.relabel(server, replace(card, resets=number))
            return await self._machine_after(server)

    async def delete(self, vm: str) -> None:
        validation.check_text("machine", vm)
        async with self._verb(vm):
            server = await self._finish_retain(vm)
            card = None if server is None else self._site.card(server)
            if server is None or card is None:
                await self._power.drop(vm)
            else:
                if server.status == RUNNING and not card.life:
                    await self._power.ask_to_shut_down(server)
                if card.home:
                    self._site.kept.forget(card.home)  # first: the key is known only from the label of the server
                await self._destroy(server, card)
            self._site.kept.forget(vm)
            self._readiness.forget(vm)
            self._watch.forget_status(vm)

    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        validation.check_text("retained machine", name)
        async with self._verb(vm):
            server = await self._site.looks.server(server_name(vm))
            card = None if server is None else self._site.card(server)
            if server is None or card is None:
                found = await self._find_retained(name)
                return None if found is None or found[1].label.vm != vm else await self._view.retained(found[1])
            if not card.retained:
                if (
                    await self._find_retained(name) is not None
                    or await self._site.looks.server(server_name(name)) is not None
                ):
                    raise Refused(f"machine {vm!r}: another server is retained as {name!r}; take another name")
                if card.life or server.status == DELETING:
                    await self._destroy(server, card)
                    return None
                if server.status != OFF:
                    server = await self._power.off(server, grace=0)
                self._site.kept.keep(card.home or name, self._site.kept.spec_of(card))
                card = replace(card, home=card.home or name, retained=name, retained_at=int(self.clock.wall()))
                server = await self._site.relabel(server, card)
            await self._take_out(server, card)
            self._readiness.forget(vm)
            self._watch.forget_status(vm)
            return await self._view.retained(card)

    async def retained(self) -> Sequence[RetainedMachine]:
        self._check_open()
        found: list[RetainedMachine] = []
        for server, card in await self._all_kept():
            if server.name != server_name(card.retained):  # its retain was interrupted
                async with self._verb(card.label.vm):
                    await self._finish_retain(card.label.vm)
            found.append(await self._view.retained(card))
        return found

    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        validation.check_text("retained machine", name)
        validation.check_plan(plan, None)
        vm = plan.label.vm
        async with self._keeping, self._verb(vm):
            found, server = await self._find_retained(name), await self._finish_retain(vm)
            card = None if server is None else self._site.card(server)
            whole = card is not None and server is not None and not card.life and server.status != DELETING
            if found is None:
                if server is None or not whole:
                    raise NotFound(f"machine {vm!r}: nothing is retained as {name!r} here; list what is retained")
                return await self._machine_after(server)
            if server is not None and (whole or card is None):
                raise Refused(f"machine {vm!r}: the server {server.name} exists; retain or delete it first")
            if server is not None and card is not None:
                await self._destroy(server, card)
            kept, card = found
            if kept.name != server_name(name):
                await self._take_out(kept, card)
            same = card.label.vm == vm
            back = replace(card, label=plan.label, tags=plan.tags, retained="", retained_at=0)
            back = back if same else replace(back, resets=0, restored=0)
            return await self._machine_after(await self._site.api.rename(kept, server_name(vm), back.labels()))

    async def discard(self, name: str) -> None:
        validation.check_text("retained machine", name)
        async with self._keeping:
            self._check_open()
            found = await self._find_retained(name)
            if found is not None:
                server, card = found
                if server.name != server_name(name):
                    await self._take_out(server, card)
                self._site.kept.forget(card.key)  # first: the key is known only from the label of the server
                await self._destroy(server, card)

    async def inspect(self, vm: str) -> Machine | None:
        self._check_open()
        validation.check_text("machine", vm)
        server = await self._server(vm)
        return None if server is None or self._site.card(server) is None else await self._view.machine(server)

    async def list(self) -> Sequence[Machine]:
        self._check_open()
        recent = self._watch.recent()
        return await self._look() if recent is None else recent

    async def snapshot(self, vm: str, name: str) -> Machine:
        validation.check_text("snapshot", name)
        async with self._verb(vm):
            server, card = await self._whole(vm)
            if card.restoring:
                raise Refused(f"machine {vm!r}: its last restore was interrupted; restore or start it first")
            await self._power.snapshot(server, card, name)
            return await self._look_at(vm)

    async def restore(self, vm: str, name: str, number: int) -> Machine:
        validation.check_text("snapshot", name)
        validation.check_number(number)
        async with self._verb(vm):
            server, card = await self._whole(vm)
            if card.restored >= number:
                return await self._machine_after(server)
            if (card.restoring, card.restoring_to) != (number, name):
                names = await self._view.names(card)
                if name not in names:
                    there = ", ".join(map(repr, names)) or "none"
                    raise Refused(f"machine {vm!r}: no snapshot {name!r}; it has {there}")
                card = replace(card, restoring=number, restoring_to=name)
                server = await self._site.relabel(server, card)
            self._readiness.forget(vm)
            await self._power.restore(server, card)
            return await self._look_at(vm)

    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        validation.check_text("snapshot", name)
        async with self._verb(vm):
            _, card = await self._require_server(vm)
            if card.restoring and card.restoring_to == name:
                raise Refused(f"machine {vm!r}: it is being restored to {name!r}; restore or start it first")
            if card.snapshots:
                await self._power.drop(card.key, name)
            return await self._look_at(vm)

    def channel(self, vm: str, kind: ChannelKind) -> Channel:
        async def find() -> Channel:
            machine = await self.inspect(vm)
            if machine is None or machine.state is not MachineState.RUNNING or machine.access is None:
                raise NotFound(f"machine {vm!r}: not running; start it first")
            if kind is not ChannelKind.SSH:
                raise Refused(f"machine {vm!r}: a server of Hetzner Cloud has no channel {kind}; log in over SSH")
            return Connection(f"machine {vm!r}", machine.access.host, machine.access.port)

        return PortChannels(find)

    # Inside

    async def _look(self) -> Sequence[Machine]:
        """List all machines."""
        machines = await self._view.all()
        self._watch.saw(machines)
        return machines

    async def _create_server(self, plan: MachinePlan) -> Server:
        server = await self._finish_retain(plan.label.vm)
        if server is None:
            return await self._making.make(plan)
        card = self._site.card(server)
        if card is None:
            raise Refused(
                f"machine {plan.label.vm!r}: the server {server.name} (hcloud-{server.id}) exists and is not Hostler's;"
                " rename it, or delete it in Hetzner's console"
            )
        if card.label != plan.label:
            raise Refused(
                f"machine {plan.label.vm!r}: it carries another label ({card.label}); it is not ours to change"
            )
        if card.life == CREATING and server.status != DELETING:
            finished = await self._making.finish(server, card)
            if finished is None:
                return await self._making.make(plan)
            server, card = finished, replace(card, life="")
        elif card.life or server.status == DELETING:
            await self._destroy(server, card)
            return await self._making.make(plan)
        if server.status == OFF:
            return await self._making.reshape(server, card, plan)
        return await self._relabel_server(server, card, plan)

    async def _relabel_server(self, server: Server, card: Card, plan: MachinePlan) -> Server:
        if (card.label, card.tags) == (plan.label, plan.tags):
            return server
        return await self._site.relabel(server, replace(card, label=plan.label, tags=plan.tags))

    async def _destroy(self, server: Server, card: Card) -> None:
        """Delete a server, its snapshots first: they are found through the server's labels."""
        if card.snapshots:
            if card.life != GONE:
                server = await self._site.relabel(server, replace(card, life=GONE))
            await self._power.drop(card.key)
        await self._site.destroy(server)

    # What is retained

    async def _all_kept(self) -> Sequence[tuple[Server, Card]]:
        cards = [(server, self._site.card(server)) for server in await self._site.looks.all()]
        return [(server, card) for server, card in cards if card is not None and card.retained]

    async def _find_retained(self, name: str) -> tuple[Server, Card] | None:
        return next((found for found in await self._all_kept() if found[1].retained == name), None)

    async def _take_out(self, server: Server, card: Card) -> None:
        """Finish a retain. The label takes the machine out of service; snapshots and server name follow."""
        if card.snapshots:
            for each in await self._power.snapshots(card.label.vm):
                await self._site.api.relabel_image(each.id, snapshot_labels(card, each.name))
        if server.name != server_name(card.retained):
            await self._site.api.rename(server, server_name(card.retained), card.labels())
        self._site.kept.forget(card.label.vm)

    async def _finish_retain(self, vm: str) -> Server | None:
        """Return the server in service, after finishing an interrupted retain. The caller holds the machine's lock."""
        server = await self._site.looks.server(server_name(vm))
        card = None if server is None else self._site.card(server)
        if server is not None and card is not None and card.retained:
            await self._take_out(server, card)
            return None
        return server

    @asynccontextmanager
    async def _verb(self, vm: str) -> AsyncIterator[None]:
        """Run verbs that change a machine one at a time."""
        self._check_open()
        validation.check_text("machine", vm)
        lock = self._locks.setdefault(vm, asyncio.Lock())
        try:
            async with lock:
                self._check_open()
                self._watch.changing(vm)
                await self._site.api.wait_until_settled(server_name(vm))
                yield
        except Absent as error:
            raise Unavailable(f"{error}; deleted by another client during the call; inspect the machine") from None
        finally:
            if not lock.locked() and self._locks.get(vm) is lock and not getattr(lock, "_waiters", None):
                del self._locks[vm]

    def _busy(self, vm: str) -> bool:
        return vm in self._locks

    def _spares(self, machines: int) -> float:
        return self._site.api.pause(1 + machines // AT_ONCE)

    def _check_open(self) -> None:
        if not self._open:
            raise Closed("Hetzner machines: the driver is not open; enter it with `async with` first")

    async def _server(self, vm: str) -> Server | None:
        """Return the server in service."""
        server = await self._site.looks.server(server_name(vm))
        card = None if server is None else self._site.card(server)
        return None if card is not None and card.retained else server

    async def _require_server(self, vm: str) -> tuple[Server, Card]:
        server = await self._server(vm)
        card = None if server is None else self._site.card(server)
        if server is None or card is None:
            raise NotFound(f"machine {vm!r}: not found at Hetzner Cloud")
        return server, card

    async def _whole(self, vm: str) -> tuple[Server, Card]:
        server, card = await self._require_server(vm)
        if card.life or server.status == DELETING:
            raise Refused(f"machine {vm!r}: its creation or deletion is incomplete; create it again")
        return server, card

    async def _look_at(self, vm: str) -> Machine:
        server, _ = await self._require_server(vm)
        return await self._machine_after(server)

    async def _machine_after(self, server: Server) -> Machine:
        """Return the machine after a verb, and record its status as known."""
        machine = await self._view.machine(server)
        self._watch.record_status(machine.label.vm, machine.cloud_status)
        return machine
