"""Labs in the control plane of `plane`: their controller and their board on every leader, and a door in memory."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostler.drivers.inbox.memory import MemoryLabRecords, MemoryRedis
from hostler.engine.control_plane import LeaderPorts
from hostler.engine.labs import state_machine
from hostler.engine.labs.decide import kept_until
from hostler.engine.labs.state_machine import LabStart
from hostler.errors import Conflict, Unavailable
from hostler.keys.families import HANDLE, NAME, VM
from hostler.keys.lab import LAB
from hostler.model.lab import LAB_LABEL, ORG, LabCatalogue, LabEvent, LabPhase, LabTemplate, LabUser, lab_project

from .plane import PATIENCE, Host, Plane, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.control_plane import ControlPlane
    from hostler.engine.service import Service

LIFE, GRACE, WARN = 1800.0, 60.0, 300.0
SMALL = LabTemplate(cpus=1, memory_mib=256, life=LIFE, grace=GRACE, warn=WARN)


class HostBoard(MemoryLabRecords):
    """The board as one process sees it, which can be killed at each verb."""

    def __init__(self, plane: LabPlane, host: Host) -> None:
        async def met(when: str, verb: str) -> None:
            await host.step(f"board: {when} {verb}")
            plane.board_met(when, verb)

        super().__init__(plane.door, faults=met)
        self._open = True


@dataclass
class LabPlane(Plane):
    """`catalogue` is that of every leader."""

    catalogue: LabCatalogue = field(default_factory=lambda: LabCatalogue(default=SMALL))
    board_fault: Callable[[str, str], None] | None = None
    strict: bool = True
    """Nobody but the leader makes machines of labs."""
    too_many: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.door = MemoryRedis()

    def more_controllers(self, host: Host, graph: ControlPlane) -> Sequence[Service]:
        graph.config = dataclasses.replace(graph.config, catalogue=self.catalogue)  # as it is by now
        return graph.lab_controllers(LeaderPorts(lab_records=HostBoard(self, host), lab_keys=("ssh-ed25519 T",)))

    def run(self, scenario: Any) -> Any:
        """The scenario; meanwhile, at every instant of the store, each user has one machine at most."""

        async def watched(plane: LabPlane) -> Any:
            watching = asyncio.create_task(plane.watch_machines())
            try:
                return await scenario(plane)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                if plane.too_many:
                    raise Wrong(plane.too_many)

        return super().run(watched)

    async def watch_machines(self) -> None:
        there: dict[str, str] = {}
        async with VM.watch(self.store, start_revision=1, org=ORG) as changes:
            async for change in changes:
                if change.type == "delete":
                    there.pop(change.key, None)
                elif LAB_LABEL in change.current.value.labels:  # type: ignore[union-attr]
                    there[change.key] = change.parts["project"]
                users, most = list(there.values()), self.catalogue.at_once
                if self.strict and (len(users) > len(set(users)) or (most is not None and len(users) > most)):
                    self.too_many = self.too_many or f"revision {change.revision}: machines of {users}"

    def board_met(self, when: str, verb: str) -> None:
        if self.board_fault is not None:
            self.board_fault(when, verb)

    # What a user does

    async def ask(self, user: str, do: Callable[[LabUser | None, float], LabUser]) -> LabEvent:
        """What a door does, on the store itself; what it is answered."""
        while True:
            entry, now = await LAB.get(self.store, user=user), self.clock.wall()
            new = do(None if entry is None else entry.value, now)
            try:
                if entry is None:
                    await LAB.create(self.store, new, user=user)
                else:
                    await LAB.replace(self.store, entry, new)
            except Conflict:
                continue
            return new.news[-1].event

    async def start(self, user: str, lab_id: int = 5, *, switch: bool = False) -> LabEvent:
        return await self.ask(
            user,
            lambda record, now: state_machine.start(
                record, user, LabStart(lab_id, switch=switch), catalogue=self.catalogue, now=now
            ),
        )

    async def stop(self, user: str, lab_id: int | None = None) -> LabEvent:
        return await self.ask(user, lambda record, now: state_machine.stop(record, user, lab_id, now=now))

    async def extend(self, user: str, minutes: float) -> LabEvent:
        return await self.ask(user, lambda record, now: state_machine.extend(record, user, minutes, None, now=now))

    # What there is

    async def lab(self, user: str) -> Any:
        entry = await LAB.get(self.store, user=user)
        return None if entry is None else entry.value.lab

    async def news(self, user: str) -> list[LabEvent]:
        entry = await LAB.get(self.store, user=user)
        return [] if entry is None else [news.event for news in entry.value.news]

    async def phase(self, user: str) -> LabPhase | None:
        lab = await self.lab(user)
        return None if lab is None else lab.phase

    async def until(self, user: str, phase: LabPhase | None, within: float = PATIENCE) -> float:
        """Until its lab is that far; seconds that it took. Wrong: not in time."""
        began = self.clock.now()
        while await self.phase(user) is not phase:
            if self.failure is not None:
                raise self.failure
            if self.clock.now() - began > within:
                raise Wrong(f"{user}: not {phase} within {within:g} s, but {await self.lab(user)}")
            await asyncio.sleep(0.1)
            self.check_one_each()
        return self.clock.now() - began

    def machines_of(self, user: str) -> list[Any]:
        rows = [row for place in self.places.values() for row in place.contents.rows.values()]
        return [row for row in rows if (row.label.org, row.label.project) == (ORG, lab_project(user))]

    def check_one_each(self) -> None:
        """No user has two machines."""
        users = [row.label.project for place in self.places.values() for row in place.contents.rows.values()]
        if len(users) != len(set(users)):
            raise Wrong(f"machines of {sorted(users)}")

    async def disagreement(self, users: dict[str, int | None]) -> str | None:
        """What of the store, the machines and the board is not as it shall be; `users`: with which lab, if any."""
        self.check_one_each()
        for user, lab_id in users.items():
            lab = await self.lab(user)
            vms = [entry.value for entry in (await VM.list(self.store, org=ORG, project=lab_project(user))).entries]
            names = (await NAME.list(self.store, org=ORG, project=lab_project(user))).entries
            handles = (await HANDLE.list(self.store, org=ORG, project=lab_project(user))).entries
            rows, shown = self.machines_of(user), self.door.records.get(user)
            there = {"lab": lab, "vms": vms, "machines": rows, "shown": shown}
            if lab_id is None:
                if any((lab, vms, names, handles, rows, shown)):
                    return f"{user} shall have nothing: {there}"
                continue
            if lab is None or (lab.lab_id, lab.phase) != (lab_id, LabPhase.RUNNING) or not lab.available:
                return f"{user} shall have lab {lab_id}: {there}"
            counts = [len(vms), len(names), len(handles), len(rows)]
            if counts != [1, 1, 1, 1] or vms[0].id != lab.vm or rows[0].vm != lab.vm or vms[0].deleting:
                return f"{user} shall have one machine: {there}"
            if vms[0].labels[LAB_LABEL] != str(lab_id) or vms[0].expires_at != kept_until(lab):
                return f"{user} has another machine: {there}"
            if shown != lab.server(user):
                return f"{user} is shown wrongly: {there}"
        waiting = [user for user in users if user in self.door.waiting]
        return f"shown as waiting: {waiting}" if waiting else None

    async def agreed(self, users: dict[str, int | None], within: float = PATIENCE) -> None:
        """Until all of it is as it shall be. Wrong: not in time."""
        end = self.clock.now() + within
        while (what := await self.disagreement(users)) is not None:
            if self.failure is not None:
                raise self.failure
            if self.clock.now() > end:
                raise Wrong(f"not {within:g} s later: {what}")
            await asyncio.sleep(0.25)
        if self.failure is not None:
            raise self.failure


def out_of_reach(verb: str) -> Unavailable:
    return Unavailable(f"board: {verb}: out of reach")
