"""What the invariants are sharp enough for: each of these defects is found by one scenario of the library, which passes
without it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from dose import mutants_to_run
from msgspec.structs import replace

from hostler.engine import vm_changes as machine_wish
from hostler.engine.controllers import janitor
from hostler.engine.controllers.allocations import Allocations
from hostler.engine.labs import decide as labs_decide
from hostler.engine.labs import state_machine as labs
from hostler.engine.labs.lab_cache import LabCache
from hostler.engine.nodes import NodeService
from hostler.engine.runtime.guarded_writer import Txn
from hostler.engine.workloads import changes, decide, transactions
from hostler.engine.workloads.controller import WorkloadController
from hostler.keys.families import INSTANCE
from hostler.model.lab import LabUser
from hostler.model.workload import Rollout
from hostler.sim.scenario import library
from hostler.sim.scenario.run import run_scenario

from .evidence import check_passed

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.sim.scenario.run import Outcome

    Defect = Callable[[pytest.MonkeyPatch], None]


def lab_starts_lost(patch: pytest.MonkeyPatch) -> None:
    """Requests for labs are acknowledged, and every third user gets none."""
    start = labs.start

    def lossy(record: Any, user: str, lab_id: int, **how: Any) -> Any:
        if user.endswith("3"):
            return record or LabUser(user=user, changed_at=how["now"])
        return start(record, user, lab_id, **how)

    patch.setattr(labs, "start", lossy)


def lab_stops_lost(patch: pytest.MonkeyPatch) -> None:
    """Requests for the end of a lab are acknowledged, and nothing follows."""

    def lossy(record: Any, user: str, *_: Any, now: float) -> Any:
        return record or LabUser(user=user, changed_at=now)

    patch.setattr(labs, "stop", lossy)


def lab_gone_without_its_machine(patch: pytest.MonkeyPatch) -> None:
    """Who stops a lab has none at once, and nobody ends its machine."""

    def hasty(_: Any, user: str, *__: Any, now: float) -> Any:
        return LabUser(user=user, changed_at=now)

    patch.setattr(labs, "stop", hasty)
    patch.setattr(LabCache, "_strays", lambda *_: ())


def lab_ended_too_early(patch: pytest.MonkeyPatch) -> None:
    """Labs go half a minute before their time is over."""
    ends_at = labs_decide.ends_at

    def early(lab: Any) -> float | None:
        end = ends_at(lab)
        return None if end is None else end - 30.0

    patch.setattr(labs_decide, "ends_at", early)


def scale_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "scale", lambda old, *_: old)


def apply_ignored(patch: pytest.MonkeyPatch) -> None:
    """A workload that is there stays as it is."""
    patch.setattr(changes, "apply", lambda old, *_: old)


def workload_deletion_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "delete", lambda old: old)


def instance_gone_without_its_machine(patch: pytest.MonkeyPatch) -> None:
    """Instances that are too many go, and nobody ends their machines."""

    def removed(one: Any) -> Any:
        return Txn([INSTANCE.unchanged(one.instance)], transactions._deletions(one.instance.parts))

    async def blind(*_: Any) -> bool:
        return False

    patch.setattr(transactions, "remove", removed)
    patch.setattr(WorkloadController, "_remove_strays", blind)


def machine_deletion_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(machine_wish, "delete", lambda vm: vm)


def _ignored(patch: pytest.MonkeyPatch, ignored: str) -> None:
    change = NodeService._change

    async def idle(self: Any, request: Any, node: str, verb: str, what: Any) -> Any:
        return await change(self, request, node, verb, (lambda record: record) if verb == ignored else what)

    patch.setattr(NodeService, "_change", idle)


def drain_ignored(patch: pytest.MonkeyPatch) -> None:
    _ignored(patch, "node.drain")


def activation_ignored(patch: pytest.MonkeyPatch) -> None:
    _ignored(patch, "node.activate")


def node_labels_ignored(patch: pytest.MonkeyPatch) -> None:
    """Every node has every label that anybody asks for."""
    state = Allocations._state

    def labelled(self: Any, node: str, record: Any) -> Any:
        found = state(self, node, record)
        return replace(found, labels={**found.labels, "disk": "ssd"})

    patch.setattr(Allocations, "_state", labelled)


def inventory_ignored(patch: pytest.MonkeyPatch) -> None:
    """Nodes that the inventory has taken out of use are as good as others."""
    state = Allocations._state

    def willing(self: Any, node: str, record: Any) -> Any:
        found = state(self, node, record)
        objected = self._view.inventory.objection(node)
        return replace(found, on_duty=True, why_not="") if objected and found.why_not == objected else found

    patch.setattr(Allocations, "_state", willing)


def update_takes_all_down(patch: pytest.MonkeyPatch) -> None:
    """All instances of an older template go at once."""
    going = decide._going

    def rash(workload: Any, roll: Any, most: int) -> Any:
        return going(replace(workload, rollout=Rollout(max_unavailable=10_000)), roll, most)

    patch.setattr(decide, "_going", rash)


def update_makes_too_many(patch: pytest.MonkeyPatch) -> None:
    """New instances are made without regard to how many there are."""
    coming = decide._coming

    def rash(workload: Any, roll: Any, plan: Any, most: int) -> Any:
        return coming(replace(workload, rollout=Rollout(max_surge=10_000)), roll, plan, most)

    patch.setattr(decide, "_coming", rash)


def ended_too_early(patch: pytest.MonkeyPatch) -> None:
    """Machines go half a minute before their time is over."""
    expired, expire = janitor._is_expired, janitor.Janitor._expire_machines

    async def early(self: Any) -> None:
        due, self._ends = self._ends, [(end - 30.0, key) for end, key in self._ends]
        await expire(self)
        self._ends = due

    patch.setattr(janitor, "_is_expired", lambda vm, now: expired(vm, now + 30.0))
    patch.setattr(janitor.Janitor, "_expire_machines", early)


CONCERNED = (
    *("src/hostler/sim", "scenarios", "tests/sim/test_scenario_invariants.py"),
    *("src/hostler/engine/nodes.py", "src/hostler/engine/vm_changes.py"),
    *(f"src/hostler/engine/{part}" for part in ("controllers", "labs", "placement", "workloads")),
)
"""What finds the defects, and where they are put in."""
FOUND: Any = [
    (lab_starts_lost, "lab-class", "wishes_met"),
    (lab_stops_lost, "warm-labs", "wishes_met"),
    (lab_gone_without_its_machine, "warm-labs", "wishes_met"),
    (lab_ended_too_early, "expired-labs-storm", "no_early_end"),
    (scale_ignored, "scale-storm", "wishes_met"),
    (apply_ignored, "rolling-update", "wishes_met"),
    (workload_deletion_ignored, "workload-deleted-in-the-dark", "wishes_met"),
    (instance_gone_without_its_machine, "scale-storm", "wishes_met"),
    (machine_deletion_ignored, "room-comes-and-goes", "wishes_met"),
    (drain_ignored, "drain-rack", "wishes_met"),
    (activation_ignored, "drain-by-stopping", "wishes_met"),
    (node_labels_ignored, "labelled-blades", "rules_kept"),
    (inventory_ignored, "zone-disabled", "inventory_heeded"),
    (update_takes_all_down, "rolling-update", "rollout_kept"),
    (update_makes_too_many, "rolling-update", "rollout_kept"),
    (ended_too_early, "machines-expire", "no_early_end"),
]


@functools.cache
def sound(name: str) -> Outcome:
    """Of the scenario without a defect."""
    return run_scenario(library.find(name), 1, kept=False)


@pytest.mark.parametrize(
    ("defect", "name", "invariant"),
    mutants_to_run(FOUND, *CONCERNED),
    ids=lambda part: getattr(part, "__name__", ""),
)
def test_a_defect_is_found_by_a_scenario_that_passes_without_it(
    defect: Defect, name: str, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = sound(name)
    check_passed(library.find(name), outcome)
    assert next(verdict for verdict in outcome.verdicts if verdict.invariant == invariant).looks
    with monkeypatch.context() as patch:
        defect(patch)
        broken = run_scenario(library.find(name), 1, kept=False, until=invariant)
    assert invariant in broken.broken
