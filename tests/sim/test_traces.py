"""Every decision of a leader leaves one trace, and they hang together: in virtual time, over a change of leader."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.decision_history import TraceService
from hostler.engine.request import HOSTLER, Request
from hostler.engine.view import View
from hostler.keys.families import AUDIT, LAST_CLOCK, LEADER, MEMBER, NAME, SILENT, TRACE
from hostler.model.control_api import Sort
from hostler.model.inventory_api import Drain
from hostler.model.lab import LabPhase
from hostler.model.node import Lifecycle
from hostler.model.vm import OnNodeLoss
from hostler.model.vm_api import VmPhase
from hostler.ports.store import Delete, DeletePrefix, Put

from .labs import LabPlane
from .plane import ORG, PROJECT, Plane
from .test_plane_nodes import created, operator, reaches, shown, until
from .workloads import WorkloadPlane

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.model.control_api import TraceView
    from hostler.ports.store import Comparison, Operation, TxnResult

LED = LEADER.fill(n=1)


class Ledger:
    """Every transaction that was done under a leader's guard: its revision, and how many traces it left."""

    def __init__(self) -> None:
        self.traces: dict[int, int] = {}
        self.longest = 0

    def note(self, when: Sequence[Comparison], then: Sequence[Operation], result: TxnResult) -> None:
        writes = [operation for operation in then if isinstance(operation, Put | Delete | DeletePrefix)]
        guarded = any(comparison.key == LED and comparison.target == "value" for comparison in when)
        own = any(isinstance(operation, Put) and operation.key == LED for operation in then)
        if not result.succeeded or not writes or not guarded or own:
            return
        if all(isinstance(one, Put) and one.key.startswith(LAST_CLOCK.prefix()) for one in writes):
            return  # a reading of the clock decides nothing
        traces = [one for one in writes if isinstance(one, Put) and one.key.startswith(TRACE.prefix())]
        self.traces[result.revision] = len(traces)
        self.longest = max([self.longest, *(len(one.value) for one in traces)])


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    kept, txn = Ledger(), MemoryStore.txn

    async def recording(self: MemoryStore, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
        result = await txn(self, when, then, otherwise)
        kept.note(when, then, result)
        return result

    monkeypatch.setattr(MemoryStore, "txn", recording)
    yield kept
    assert kept.traces, "nobody decided anything, or the guard is another one now"
    assert set(kept.traces.values()) == {1}, f"transactions and their traces: {kept.traces}"
    assert kept.longest <= 1024


async def service(plane: Plane) -> TraceService:
    """A reader that has seen nothing of what happened: a process that starts now."""
    view = View(plane.store, clock=plane.clock)
    await view.refresh()
    return TraceService(plane.store, view, clock=plane.clock)


async def everything(traces: TraceService) -> dict[str, TraceView]:
    """All that happened, in pages, and what led to it."""
    found: dict[str, TraceView] = {}
    after: str | None = None
    while True:
        page = await traces.list(HOSTLER, limit=7, after=after)
        assert not page.unreadable
        for one in (*page.items, *page.before):
            found[one.id] = one
        after = page.after
        if after is None:
            return found


def chain(found: dict[str, TraceView], one: TraceView) -> list[TraceView]:
    links = [one]
    while links[-1].parent:
        links.append(found[links[-1].parent])
    return links


async def leader(plane: Plane) -> str:
    """The name of the replica that leads."""
    entry = await LEADER.get(plane.store, n=1)
    return "" if entry is None else entry.value.address.partition(":")[0]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_lost_node_and_a_lost_leader_leave_one_story(ledger: Ledger, seed: int) -> None:
    async def story(plane: Plane) -> None:
        await until(plane, lambda: _all_on_duty(plane))
        await created(plane, on_node_loss=OnNodeLoss.RECREATE)
        await plane.settled()
        (here,) = [node for node, place in plane.places.items() if place.contents.rows]
        plane.supervised = False
        plane.hosts[here].kill()

        async def is_told() -> bool:
            return await SILENT.get(plane.store, node=here) is not None

        await until(plane, is_told)
        was = await leader(plane)
        plane.hosts[was].kill()  # whoever takes the machine has not seen the node fall silent
        elsewhere = next(node for node in plane.places if node != here)
        await reaches(plane, VmPhase.RUNNING, elsewhere)

        traces = await service(plane)
        found = await everything(traces)
        decisions = [one for one in found.values() if one.sort is Sort.DECISION]
        assert len(decisions) == len((await TRACE.list(plane.store)).entries)
        assert not [one for one in found.values() if one.open]
        roots = {one.what for one in decisions if not one.parent}
        assert roots == {"silent"}
        placed = max((one for one in decisions if one.what == "place"), key=lambda one: one.revision)
        assert [one.what for one in chain(found, placed)] == ["place", "take", "silent"]
        assert len({one.fence for one in chain(found, placed)}) == 2, "two leaders"

        why = await traces.why(HOSTLER, "x")
        assert (why.object, why.state) == (f"vm {ORG}/{PROJECT}/x", f"runs on {elsewhere}")
        assert [one.what for one in why.steps] == ["place", "take", "silent", "place", "vm.create"]
        assert why.steps[0].why.startswith(f"placed on {elsewhere}: score")
        assert why.steps[1].why.startswith(f"taken from {here}: it was unreachable for")
        assert not why.cut
        short = await traces.why(HOSTLER, f"vm/{ORG}/{PROJECT}/x", limit=1)
        assert [one.what for one in short.steps] == ["place", "take", "silent", "vm.create"]
        assert short.cut
        silent = await traces.why(HOSTLER, f"node/{here}")
        assert silent.state == "is on duty, and unreachable"
        assert [one.what for one in silent.steps][:2] == ["silent", "on_duty"]

    Plane(seed=seed, nodes=2, replicas=2).run(story)


async def _all_on_duty(plane: Plane) -> bool:
    members = (await MEMBER.list(plane.store)).entries
    return [entry.value.lifecycle for entry in members] == [Lifecycle.ON_DUTY] * len(plane.places)


async def _is_gone(plane: Plane, name: str) -> bool:
    return await NAME.get(plane.store, org=ORG, project=PROJECT, name=name) is None


def test_each_decision_but_what_nobody_led_to_hangs_on_another(ledger: Ledger) -> None:
    async def story(plane: Plane) -> None:
        nodes = operator(plane)
        await until(plane, lambda: _all_on_duty(plane))
        await created(plane, name="x", node_labels={"node": "r1-1"})
        await created(plane, name="y", expires_in=30.0)
        await plane.settled()
        plane.kill("r1-2")
        await asyncio.sleep(1)
        await plane.wish(lambda vms, request: vms.stop(request, ORG, PROJECT, "x"))
        await plane.settled()
        await plane.wish(lambda vms, request: vms.start(request, ORG, PROJECT, "x"))
        await plane.settled()
        await plane.wish(lambda vms, request: vms.snapshot(request, ORG, PROJECT, "x", "s"))
        await plane.settled()
        await plane.wish(lambda vms, request: vms.delete(request, ORG, PROJECT, "x"))
        await created(plane, name="z")
        await plane.settled()
        here = (await shown(plane, "z")).node
        assert here is not None
        await nodes.drain(Request(HOSTLER), here, Drain())
        await reaches(plane, VmPhase.RUNNING, "r1-2" if here == "r1-1" else "r1-1", "z")
        await until(plane, lambda: _is_gone(plane, "y"))

        found = await everything(await service(plane))
        decisions = [one for one in found.values() if one.sort is Sort.DECISION]
        assert {one.revision for one in decisions} == set(ledger.traces)
        whats = {one.what for one in decisions}
        assert {"on_duty", "place", "instruct", "forget", "expire", "drained", "decommissioned"} <= whats
        assert not [one for one in found.values() if one.open]
        assert {one.what for one in decisions if not one.parent} <= {"silent"}
        for one in decisions:
            ends = chain(found, one)[-1]
            assert ends.sort is not Sort.DECISION or ends.what == "silent", f"{one} ends in {ends}"
            assert [link.revision for link in chain(found, one)] == sorted(
                (link.revision for link in chain(found, one)), reverse=True
            )
        moved = next(one for one in decisions if one.what == "drained")
        assert [one.what for one in chain(found, moved)] == ["drained", "node.drain"]
        over = next(one for one in decisions if one.what == "expire")
        assert [one.what for one in chain(found, over)] == ["expire", "vm.create"]
        verbs = [entry.value.verb for entry in (await AUDIT.list(plane.store)).entries]
        wishes = [one.what for one in found.values() if one.sort is Sort.WISH]
        assert sorted(wishes) == sorted(verb for verb in verbs if verb != "vm.expire")

    Plane(seed=3, nodes=2, replicas=1).run(story)


def test_a_lab_and_its_machine_are_one_story_from_the_request_on(ledger: Ledger) -> None:
    async def story(plane: LabPlane) -> None:
        await plane.start("ada", 5)
        await plane.until("ada", LabPhase.RUNNING)
        (here,) = [node for node, place in plane.places.items() if place.contents.rows]
        plane.supervised = False
        plane.hosts[here].kill()

        async def is_told() -> bool:
            return (await plane.lab("ada")).detail == "its node is silent"

        await until(plane, is_told)
        traces = await service(plane)
        found = await everything(traces)
        assert {one.revision for one in found.values() if one.sort is Sort.DECISION} == set(ledger.traces)
        assert not [one for one in found.values() if one.open]
        why = await traces.why(HOSTLER, "lab/ada")
        assert why.state == "is running (lab 5): its node is silent"
        steps = [one.what for one in why.steps]
        assert steps[:2] == ["write", "silent"]
        assert steps[-2:] == ["created", "lab.requested"]
        assert "place" in steps
        assert why.steps[0].why == "lab 5: its machine is running, its node is silent, it is not available"
        assert why.steps[-1].sort is Sort.REPORT

    LabPlane(seed=1, nodes=2, replicas=1).run(story)


def test_an_instance_leads_back_to_the_workload_that_was_applied(ledger: Ledger) -> None:
    async def story(plane: WorkloadPlane) -> None:
        await plane.apply(instances=4)
        await plane.met()
        await plane.scale(2)
        await plane.met()
        traces = await service(plane)
        found = await everything(traces)
        decisions = [one for one in found.values() if one.sort is Sort.DECISION]
        assert {one.revision for one in decisions} == set(ledger.traces)
        assert not [one for one in found.values() if one.open]
        ends = {chain(found, one)[-1].sort for one in decisions}
        assert Sort.DECISION not in ends, [one for one in decisions if not one.parent]
        for number in (1, 2):
            why = await traces.why(HOSTLER, f"workload/web/{number}")
            assert why.state.startswith("belongs on r1-")
            assert why.steps[-1].what == "workload.apply", [one.what for one in why.steps]
            assert "place" in [one.what for one in why.steps]
        whole = await traces.why(HOSTLER, "workload/web")
        assert (whole.object, whole.state) == ("workload web", "has 2 of 2 instances")
        assert [one.what for one in whole.steps if one.sort is Sort.WISH] == ["workload.scale", "workload.apply"]

    WorkloadPlane(seed=1, nodes=2, replicas=1).run(story)
