"""Full passes over labs: the leader's resync, and the comparison of its records with Redis."""

from __future__ import annotations

import time
import uuid
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from bench.leading import lead
from bench.plane_fill import write_groups
from bench.plane_http import until
from bench.report import Row
from hostler.engine.control_plane import ControlPlaneConfig, LeaderPorts
from hostler.engine.labs import state_machine, transactions
from hostler.engine.labs.catalogue import shape_of
from hostler.engine.labs.state_machine import LabStart
from hostler.errors import Conflict
from hostler.keys.families import HANDLE, NAME, VM
from hostler.keys.lab import LAB, LabNames
from hostler.model.lab import LabCatalogue, LabTemplate
from hostler.model.vm import MachineState, Readiness, Step, VmHandle
from hostler.wiring import open_board

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from hostler.engine.control_plane import ControlPlane
    from hostler.engine.labs.controller import LabController
    from hostler.engine.labs.projector import LabProjector
    from hostler.ports.inbox import LabRecords
    from hostler.ports.store import Operation, Store

    _LabServices: TypeAlias = tuple[LabController, LabProjector]

WANTED = 5
PATIENCE = 120.0
LAB_ID = 5
AGED = 3
"""Requests of each user without effect, so that the records have some events."""
DAMAGED = 0.01
"""Fraction of the records that is deleted, that is falsified, and that is added without a lab."""
NAMES = LabNames()


async def measure(store: Store, redis: Any, url: str, labs: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure passes over running labs that need no change."""
    tell(f"writing {labs:,} labs")
    users = [str(uuid.uuid4()) for _ in range(labs)]
    catalogue = LabCatalogue(default=LabTemplate(life=86_400.0))
    await redis.flushdb()
    await write_groups(store, (_lab(user, catalogue) for user in users))
    async with open_board(url) as board, _lead(store, board, catalogue) as (controller, projector):
        tell(f"showing {labs:,} labs")
        showing = await _wait_until_shown(redis, projector, labs)
        before = dict(controller.counters)
        tell("the full pass")
        passing = await _time(controller.resync(first=True))
        tell("the sweep")
        sweeping = await _time(projector.sweep())
        if controller.counters != before or projector.state()["unshown"]:
            raise Conflict("bench: labs that needed no change were changed; the results are invalid")
        tell("the sweep of damaged records")
        repairing = await _time_repair(redis, projector, users)
    return [
        Row(
            what=f"{labs:,} labs: full pass and sweep", found=passing + sweeping, unit="s", wanted=WANTED, at_most=True
        ),
        Row(what="… the leader's pass over all", found=passing, unit="s"),
        Row(what="… the sweep of the records, both ways", found=sweeping, unit="s"),
        Row(
            what=f"… a sweep that repairs {3 * _damaged_number(labs):,} of them",
            found=repairing,
            unit="s",
            wanted=WANTED,
            at_most=True,
        ),
        Row(what=f"{labs:,} labs: all shown in an empty Redis", found=showing, unit="s"),
    ]


async def _time(work: Any) -> float:
    began = perf_counter()
    await work
    return perf_counter() - began


async def _wait_until_shown(redis: Any, projector: LabProjector, labs: int) -> float:
    """Wait until the projector has written all records."""

    async def done() -> bool:
        return projector.counters.get("shown", 0) >= labs and projector.state()["unshown"] == 0

    took = await until(f"showing {labs} labs", done, PATIENCE)
    if await redis.zcard(NAMES.waiting):
        raise Conflict("bench: labs that run are shown as waiting")
    return took


def _damaged_number(labs: int) -> int:
    return max(1, int(labs * DAMAGED))


async def _time_repair(redis: Any, projector: LabProjector, users: list[str]) -> float:
    """Return the seconds from the start of the sweep until all records are correct again."""
    count = _damaged_number(len(users))
    right = {user: await redis.get(NAMES.server(user)) for user in users[: 2 * count]}
    async with redis.pipeline(transaction=False) as pipe:
        for user in users[:count]:
            pipe.delete(NAMES.server(user))
        for user in users[count : 2 * count]:
            pipe.set(NAMES.server(user), b"{}")
        for _ in range(count):
            pipe.set(NAMES.server(str(uuid.uuid4())), right[users[0]])
        await pipe.execute()
    began = perf_counter()
    await projector.sweep()

    async def done() -> bool:
        return projector.state()["unshown"] == 0 and all(await redis.mget(map(NAMES.server, users[:count])))

    await until("repairing records", done, PATIENCE)
    took = perf_counter() - began
    found = dict(zip(right, await redis.mget(map(NAMES.server, right)), strict=True))
    if found != right or projector.counters.get("withdrawn") != count:
        raise Conflict("bench: the sweep left wrong records")
    return took


def _lab(user: str, catalogue: LabCatalogue) -> list[Operation]:
    """Return the records of a running lab, as the services would write them."""
    template, now, vm = catalogue.default, time.time(), uuid.uuid4().hex
    record = state_machine.start(None, user, LabStart(LAB_ID, switch=False), catalogue=catalogue, now=now)
    record = state_machine.admit(record, vm, template, now)
    handle = VmHandle(
        id=vm,
        node="r0-0",
        machine=vm,
        state=MachineState.RUNNING,
        address="fd00::1",
        readiness=Readiness(step=Step.AVAILABLE, since=now),
        seen_at=now,
    )
    record = state_machine.observe(record, handle, now)
    for _ in range(AGED):
        record = state_machine.start(record, user, LabStart(LAB_ID, switch=False), catalogue=catalogue, now=now)
    assert record.lab is not None  # noqa: S101 - it has just begun
    name = f"lab-{LAB_ID}"
    machine = transactions.new_vm(user, record.lab, template, shape_of(template, ()), vm=vm, name=name, at=now)
    place: dict[str, Any] = {"org": machine.org, "project": user}
    return [
        LAB.put(record, user=user),
        VM.put(machine, vm=vm, **place),
        NAME.put(vm, name=name, **place),
        HANDLE.put(msgspec.structs.replace(handle, generation=machine.generation), vm=vm, **place),
    ]


def _lead(store: Store, board: LabRecords, catalogue: LabCatalogue) -> AbstractAsyncContextManager[_LabServices]:
    """Run the lab services of a leader. Decisions are not recorded."""

    def lab_services(graph: ControlPlane) -> _LabServices:
        labs, projector = graph.lab_controllers(LeaderPorts(lab_records=board))
        return cast("LabController", labs), cast("LabProjector", projector)

    return lead(store, lab_services, ControlPlaneConfig(catalogue=catalogue, traces_kept=0))
