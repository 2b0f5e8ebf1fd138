"""Whether acknowledged requests of users take effect in the end: workloads, machines, nodes and labs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from hostler.errors import Conflict, HostlerError, Unavailable, Uncertain
from hostler.keys.families import BLUEPRINT, MEMBER, VM, WORKLOAD
from hostler.keys.lab import LAB
from hostler.model.lab import LabEvent
from hostler.model.name import fold
from hostler.model.node import DrainMode, Lifecycle
from hostler.model.workload_api import WorkloadApply, apply_of
from hostler.sim.invariants.converged import Unmet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostler.keys.key import Key
    from hostler.model.lab import LabUser
    from hostler.model.node import NodeRecord
    from hostler.sim.world import World

Subject: TypeAlias = tuple[str, ...]
"""The kind of an object, its name, and the aspect of it."""
UNKNOWN = object()
"""The request was acknowledged, but its effect is not known here."""
_OVER = (LabEvent.EXPIRED, LabEvent.FAILED, LabEvent.REFUSED)
_AWAY = (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)


class _Last:
    """The values that an object may have, by the last acknowledged requests. Empty: unknown."""

    def __init__(self) -> None:
        self.may: list[Any] = []
        self.asking = 0
        self._answers: list[Any] = []
        self._sure = True

    def begin(self) -> None:
        if not self.asking:
            self._answers, self._sure = [], True
        self.asking += 1

    def end(self, *answers: Any, sure: bool = True) -> None:
        """Finish a request. Concurrent requests may have been executed in any order."""
        self.asking -= 1
        self._answers += answers
        self._sure = self._sure and sure
        if not self.asking and (self._answers or not self._sure):
            self.may = self._answers if self._sure else []

    def go_back(self, may: list[Any]) -> None:
        """Restore earlier values. Requests acknowledged since then, and those in progress, no longer count."""
        self.may, self._answers, self._sure = may, [], False

    def is_not(self, value: Any) -> bool:
        return not self.asking and bool(self.may) and UNKNOWN not in self.may and value not in self.may


class _Request:
    """The last request of a user: a lab, or (None) no lab. `in_turn`: all earlier requests were processed by then."""

    def __init__(self, lab_id: int | None, wall: float, *, in_turn: bool) -> None:
        self.lab_id, self.wall, self.in_turn = lab_id, wall, in_turn


class Asked:
    """Records the requests of users while a story runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._last: dict[Subject, _Last] = {}
        self._labs: dict[str, _Request] = {}
        self.stopped: dict[str, None] = {}
        """Users who requested the end of their lab, or another lab."""
        self.deleted: dict[tuple[str, str, str], None] = {}
        """Machines whose deletion was requested, acknowledged or not."""

    @contextmanager
    def asking(self, wanted: Mapping[Subject, Any]) -> Iterator[None]:
        """Record a request while it runs: these subjects should get these values."""
        lasts = [(self._last.setdefault(subject, _Last()), value) for subject, value in wanted.items()]
        for last, _ in lasts:
            last.begin()
        try:
            yield
        except BaseException as error:
            refused = isinstance(error, HostlerError) and not isinstance(error, Conflict | Unavailable | Uncertain)
            for last, _ in lasts:
                last.end(sure=refused)
            raise
        for last, value in lasts:
            last.end(value)

    def known(self) -> dict[Subject, list[Any]]:
        """Return the acknowledged values so far, without those of requests in progress."""
        return {subject: list(last.may) for subject, last in self._last.items() if not last.asking}

    def go_back(self, known: Mapping[Subject, list[Any]]) -> None:
        """Return to earlier values (`known`), because the control plane was restored to that state."""
        for subject, last in self._last.items():
            last.go_back(known.get(subject, []))

    def lab(self, user: str, lab_id: int | None) -> None:
        """Record that a user has requested a lab, or (None) its end, through the lab queues."""
        before = self._labs.get(user)
        if lab_id is None or (before is not None and before.lab_id not in (None, lab_id)):
            self.stopped[user] = None
        same = before is not None and before.in_turn and before.lab_id == lab_id
        self._labs[user] = _Request(lab_id, self._world.clock.wall(), in_turn=same or not self._waits(user))

    def _waits(self, user: str) -> bool:
        """Return whether a request of the user is unprocessed: starts and stops are in two unordered queues."""
        name = msgspec.json.encode(user)
        return any(
            name in raw
            for queue in self._world.lab_redis.queues.values()
            for raw in (*queue.waiting, *(taken.raw for held in queue.processing.values() for taken in held))
        )

    async def unmet(self) -> list[Unmet]:
        """Return what differs from its acknowledged value, or was never answered."""
        return [
            *await self._workloads(),
            *await self._blueprints(),
            *await self._vms(),
            *await self._nodes(),
            *await self._users(),
        ]

    def _of(self, kind: str) -> Iterator[tuple[Subject, _Last]]:
        return ((subject, last) for subject, last in self._last.items() if subject[0] == kind)

    async def _workloads(self) -> list[Unmet]:
        found: list[Unmet] = []
        there = await self._every(WORKLOAD, "workload", any(self._of("workload")))
        for (_, name, what), last in self._of("workload"):
            record = there.get(name)
            if record is None or record.deleting:
                if what == "there" and last.is_not(False):
                    found.append(Unmet(f"workload {name}", "it was created and not deleted, but does not exist"))
            elif what == "there" and last.is_not(True):
                found.append(Unmet(f"workload {name}", "its deletion was acknowledged, but it exists"))
            elif what == "instances" and last.is_not(record.instances):
                text = f"{last.may[-1]} instances were requested and acknowledged; the spec has {record.instances}"
                found.append(Unmet(f"workload {name}", text))
            elif what == "shape" and last.is_not(shape(apply_of(record))):
                found.append(Unmet(f"workload {name}", "its change was acknowledged, but it is unchanged"))
        return found

    async def _blueprints(self) -> list[Unmet]:
        found: list[Unmet] = []
        there = await self._every(BLUEPRINT, "blueprint", any(self._of("blueprint")))
        for (_, name, what), last in self._of("blueprint"):
            blueprint = there.get(name)
            if what == "there" and last.is_not(blueprint is not None):
                text = "it was applied, but does not exist" if blueprint is None else "its deletion was acknowledged"
                found.append(Unmet(f"blueprint {name}", text))
            elif what == "said" and blueprint is not None and last.is_not(blueprint):
                found.append(Unmet(f"blueprint {name}", "it was applied and acknowledged, but has another content"))
        return found

    async def _vms(self) -> list[Unmet]:
        if not any(self._of("vm")):
            return []
        there = {
            (vm.value.org, vm.value.project, fold(vm.value.name)) for vm in (await VM.list(self._world.store)).entries
        }
        return [
            Unmet(f"vm {org}/{project}/{name}", "its deletion was acknowledged, but its record exists")
            for (_, org, project, name), last in self._of("vm")
            if last.is_not((org, project, fold(name)) in there) and (org, project, fold(name)) in there
        ]

    async def _nodes(self) -> list[Unmet]:
        there: dict[str, NodeRecord] = await self._every(MEMBER, "node", any(self._of("node")))
        found: list[Unmet] = []
        for (_, node), last in self._of("node"):
            if (record := there.get(node)) is None:
                continue
            mode = record.drain if record.lifecycle in _AWAY else None
            if last.is_not(mode):
                found.append(Unmet(f"node {node}", f"{_duty(last.may[-1])} was acknowledged; it is {record.lifecycle}"))
        return found

    async def _users(self) -> list[Unmet]:
        there: dict[str, LabUser] = await self._every(LAB, "user", bool(self._labs))
        found: list[Unmet] = []
        for user, request in self._labs.items():
            record = there.get(user)
            lab = None if record is None else record.lab
            if not request.in_turn:
                if record is None:
                    found.append(Unmet(f"lab of {user}", "it was requested, but has no record"))
            elif request.lab_id is None:
                if lab is not None:
                    found.append(Unmet(f"lab of {user}", f"its end was requested, but lab {lab.lab_id} is {lab.phase}"))
            elif not (lab is not None and request.lab_id in (lab.lab_id, lab.again)) and not _told(record, request):
                found.append(Unmet(f"lab of {user}", f"lab {request.lab_id} was requested; no lab, and no answer"))
        return found

    async def _every(self, key: Key[Any], part: str, asked: bool) -> dict[str, Any]:
        if not asked:
            return {}
        found = {}
        for entry in (await key.list(self._world.store)).entries:
            parts = key.match(entry.key)
            if parts is not None:
                found[parts[part]] = entry.value
        return found


def shape(wanted: WorkloadApply) -> WorkloadApply:
    """Return a workload without its number of instances and the location of its machines."""
    return replace(wanted, instances=UNSET, org="", project="")


def _told(record: LabUser | None, request: _Request) -> bool:
    """Return whether the user was notified why there is no lab."""
    return record is not None and any(
        news.event in _OVER and news.lab_id == request.lab_id and news.at >= request.wall - 1.0 for news in record.news
    )


def _duty(mode: DrainMode | None) -> str:
    return "on duty" if mode is None else f"drained ({mode})"
