"""Triggers of reconciliation: machines and nodes are queued on changes, on free capacity, and in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.controllers import snapshot as sight
from hostler.engine.controllers.decision import Duty
from hostler.engine.controllers.drain import duty_of
from hostler.engine.runtime.work_queue import Resync
from hostler.keys.families import ALIVE, ARRIVAL, COMMAND, HANDLE, MEMBER, VM
from hostler.kit.tasks import Fairness

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from hostler.engine.controllers.allocations import Allocations
    from hostler.engine.controllers.node_lost import HeartbeatMonitor
    from hostler.engine.controllers.snapshot import VmSnapshot
    from hostler.engine.runtime.work_queue import WorkQueue
    from hostler.engine.view import View
    from hostler.kit.clock import Clock

RETRY_PENDING = 0.2
"""Seconds for which changes of free capacity are collected before pending machines are retried."""
PASS_EVERY = 30.0
"""Seconds between two passes."""
BATCH, BATCH_EVERY = 200, 0.1
"""Number of pending machines that are queued at once, and the seconds between two batches."""
VMS, HANDLES = VM.prefix(), HANDLE.prefix()


class WatchTriggers:
    """Fills the queues of names and of nodes. It also keeps allocations and the heartbeat monitor current."""

    def __init__(
        self,
        view: View,
        names: WorkQueue,
        nodes: WorkQueue,
        *,
        books: Allocations,
        silence: HeartbeatMonitor,
        room: asyncio.Event,
        clock: Clock,
    ) -> None:
        """`room` is set when capacity may have become available."""
        self._view, self._names, self._nodes, self._clock = view, names, nodes, clock
        self._books, self._silence = books, silence
        self.pending: set[str] = set()
        """Machines without a suitable node."""
        self.stuck: set[str] = set()
        """Drained nodes with machines that no other node accepts."""
        self._room = room
        self._fairness = Fairness()
        self._name_rounds = Resync(self._all_names, every=PASS_EVERY)
        self._node_rounds = Resync(
            lambda: [entry.parts["node"] for entry in view.members.entries.values()], every=PASS_EVERY
        )
        self._listening = False

    def listen(self) -> list[Callable[[], None]]:
        """Start following changes. The returned functions end it."""
        self._listening = True
        view = self._view
        return [
            view.vms.listen(self._vm_changed),
            view.handles.listen(self._handle_changed),
            view.commands.listen(self._command_changed),
            view.arrivals.listen(self._arrival_changed),
            view.retained.listen(self._retained_changed),
            view.members.listen(lambda key: self._node_changed(MEMBER.parse(key)["node"])),
            view.alive.listen(lambda key: self._node_changed(ALIVE.parse(key)["node"])),
            view.inventory.listen(self._inventory_changed),
        ]

    def stop(self) -> None:
        """Ignore changes from now on."""
        self._listening = False

    async def retry_pending(self) -> None:
        """Queue pending machines again when capacity may be available. Run until cancelled."""
        while True:
            await self._room.wait()
            await self._clock.sleep(RETRY_PENDING)
            self._room.clear()
            for node in sorted(self.stuck):
                self._nodes.add(node)
            names = sorted(self.pending)
            for start in range(0, len(names), BATCH):
                for name in names[start : start + BATCH]:
                    self._names.add(name, patient=True)
                await self._clock.sleep(BATCH_EVERY)

    async def look_at_all(self, wants: Callable[[VmSnapshot], bool]) -> None:
        """Queue everything once for which `wants` returns True."""
        await self._looked(self._name_rounds.all(), wants)
        self._silence.look_at_all()
        self._look_at_nodes(self._node_rounds.all())

    async def look_at_next(self, wants: Callable[[VmSnapshot], bool]) -> None:
        """Queue the names and nodes whose turn it is, and the unreachable nodes."""
        await self._looked(self._name_rounds.next(), wants)
        nodes = list(dict.fromkeys((*self._node_rounds.next(), *self._silence.nodes())))
        for node in nodes:
            self._silence.look(node)
        self._look_at_nodes(nodes)

    async def _looked(self, names: list[str], wants: Callable[[VmSnapshot], bool]) -> None:
        for name in names:
            seen = sight.from_view(self._view, name)
            if seen.extra or seen.strays or wants(seen):
                self._names.add(name, patient=name in self.pending)
            await self._fairness.share()

    def _look_at_nodes(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            member = self._view.members.get(node=node)
            if member is not None and (not self._view.alive.get(node=node) or duty_of(member.value) is not Duty.SERVE):
                self._nodes.add(node)

    def _all_names(self) -> Iterator[str]:
        view = self._view
        yield from (key.removeprefix(VMS) for key in view.vms.entries)
        yield from (key.removeprefix(HANDLES) for key in view.handles.entries)
        yield from (sight.name_of_command(entry.value) for entry in view.commands.entries.values())
        yield from (sight.name_of_command(entry.value.command) for entry in view.arrivals.entries.values())

    # Changes

    def _vm_changed(self, key: str) -> None:
        if self._listening:
            name = key.removeprefix(VMS)
            id_ = name.rpartition("/")[2]
            if id_ in self._view.node_of:
                self._books.sync(id_)
            self._names.add(name)

    def _handle_changed(self, key: str) -> None:
        if self._listening:
            self._names.add(key.removeprefix(HANDLES))

    def _command_changed(self, key: str) -> None:
        if not self._listening:
            return
        parts = COMMAND.parse(key)
        before = self._books.name_of(parts["vm"])
        self._books.sync(parts["vm"])
        for name in (before, self._books.name_of(parts["vm"])):
            if name is not None:
                self._names.add(name)
        member = self._view.members.get(node=parts["node"])
        if member is not None and duty_of(member.value) is not Duty.SERVE:
            self._nodes.add(parts["node"])

    def _arrival_changed(self, key: str) -> None:
        if not self._listening:
            return
        vm = ARRIVAL.parse(key)["vm"]
        self._books.sync_arrival(vm)
        names = {sight.name_of_command(entry.value.command) for entry in self._view.arrivals_of(vm)}
        for name in sorted({*names, self._books.name_of(vm) or ""} - {""}):
            self._names.add(name)

    def _retained_changed(self, key: str) -> None:
        """Queue an unplaced virtual machine that may get its disk back."""
        entry = self._view.retained.entries.get(key)
        if self._listening and entry is not None:
            self._names.add(f"{entry.value.org}/{entry.value.project}/{entry.value.vm}")

    def _node_changed(self, node: str) -> None:
        if self._listening:
            self._books.sync_node(node)
            self._silence.look(node)
            self._nodes.add(node)

    def _inventory_changed(self, node: str) -> None:
        if self._listening:
            self._books.sync_node(node)
