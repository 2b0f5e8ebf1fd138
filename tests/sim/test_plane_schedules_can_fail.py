"""Deliberate defects that the schedules must find: each breaks one rule of `docs/nodes.md`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from dose import mutants_to_run

from hostler.engine.agent import worker
from hostler.engine.agent.migration import Given, Migrations
from hostler.engine.agent.session import Session
from hostler.engine.controllers import decision, machines
from hostler.engine.controllers.decision import NodeCase
from hostler.errors import HostlerError
from hostler.keys.families import ALIVE

from .test_plane_moves import story, story_with_a_lost_answer
from .test_plane_schedules import ALONE, run_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 220
"""Schedules in which a defect must be found; most are in the first few."""


def impatient(patch: pytest.MonkeyPatch) -> None:
    """The leader starts fenced machines elsewhere as soon as their node is silent."""
    case = machines.MachineController._case

    def hasty(self: Any, seen: Any) -> NodeCase:
        found = case(self, seen)
        return NodeCase.LONG_SILENT if found is NodeCase.SILENT else found

    patch.setattr(machines.MachineController, "_case", hasty)


def unconfirmed(patch: pytest.MonkeyPatch) -> None:
    """Silence is taken for being off."""
    case = machines.MachineController._case

    def credulous(self: Any, seen: Any) -> NodeCase:
        found = case(self, seen)
        return NodeCase.OFF if found is NodeCase.SILENT else found

    patch.setattr(machines.MachineController, "_case", credulous)


def holding_on(patch: pytest.MonkeyPatch) -> None:
    """The agent holds its fenced machines for much longer than it told the leader."""

    async def hold(self: Any, sent: float) -> None:
        with suppress(HostlerError):
            await self._machines.hold(1_000.0)

    patch.setattr(Session, "_hold", hold)


def taken_early(patch: pytest.MonkeyPatch) -> None:
    """A machine that is moved is started elsewhere before its node said that it is gone."""
    decide = decision.decide

    def hasty(vm: Any, handle: Any, command: Any, *rest: Any) -> decision.Step:
        if vm is not None and command is not None and command.deleting and not vm.deleting:
            return decision.Step(decision.Act.RELEASE)
        return decide(vm, handle, command, *rest)

    patch.setattr(machines, "decide", hasty)


def handed_over_blindly(patch: pytest.MonkeyPatch) -> None:
    """A machine is handed over whatever became of command, arrival and handle meanwhile."""
    given = Migrations._commit_handover

    async def blind(self: Any, when: list[Any], then: list[Any], target: Any) -> Any:
        kept = [self._session.guard(), ALIVE.exists(node=target.parts["node"])]
        return await given(self, kept, then, target)

    patch.setattr(Migrations, "_commit_handover", blind)


def hopeful(patch: pytest.MonkeyPatch) -> None:
    """A handover whose outcome is not known is taken for one that did not happen: the machine goes on here."""
    give = Migrations.give

    async def sure(self: Any, *rest: Any) -> Given:
        given = await give(self, *rest)
        return Given.KEPT if given is Given.UNKNOWN else given

    patch.setattr(Migrations, "give", sure)


def forgetful(patch: pytest.MonkeyPatch) -> None:
    """A machine that has departed goes on once its move is given up, though it may have been handed over."""
    going = worker.going

    def sure(command: Any, known: Any, seen: Any, node: str) -> Any:
        ours = known.handle is not None and known.handle.node == node
        return msgspec.structs.replace(going(command, known, seen, node), stays=ours)

    patch.setattr(worker, "going", sure)


def hasty(patch: pytest.MonkeyPatch) -> None:
    """A machine that has arrived is started before it was handed over."""
    expect = worker.Workers._expect

    async def start(self: Any, vm: str, arrival: Any) -> None:
        await expect(self, vm, arrival)
        with suppress(HostlerError):
            await self._machines.start(vm)
        self.queue.add_at(vm, self._clock.now() + 0.2)

    patch.setattr(worker.Workers, "_expect", start)


CONCERNED = (
    *(
        "src/hostler/engine/agent",
        "src/hostler/engine/controllers",
        "src/hostler/sim/faulty_link.py",
        "tests/sim/plane.py",
    ),
    *("tests/sim/test_plane_moves.py", "tests/sim/test_plane_schedules.py"),
    "tests/sim/test_plane_schedules_can_fail.py",
)
"""What finds the defects, and where they are put in."""
DEFECTS: Any = [
    (impatient, run_schedule),
    (unconfirmed, run_schedule),
    (holding_on, run_schedule),
    (taken_early, lambda number: run_schedule((number + 1) * ALONE - 1)),
    (hasty, run_schedule),
    (hopeful, lambda at: story_with_a_lost_answer(1 + at % 29, "cut", at // 29)),
    (forgetful, lambda at: story_with_a_lost_answer(1 + at % 29, "late", at // 29)),
    (handed_over_blindly, lambda at: story("another move", 9 + at % 11, 110 + at // 11)),
]
"""Each with the stories that find it: those of moves are rare in a random schedule, and every one of them is told."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("defect", "told"), mutants_to_run(DEFECTS, *CONCERNED), ids=lambda part: getattr(part, "__name__", "")
)
def test_a_broken_rule_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], told: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    defect(monkeypatch)
    for number in range(MOST):
        try:
            told(number)
        except AssertionError:
            return
    pytest.fail(f"{defect.__name__}: not found in {MOST} stories")
