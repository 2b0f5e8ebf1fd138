"""Deliberate defects that the schedules must find: each breaks one rule of `docs/nodes.md`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from hostler.engine.agent.session import Session
from hostler.engine.controllers import decision, machines
from hostler.engine.controllers.decision import NodeCase
from hostler.errors import HostlerError

from .plane import Wrong
from .test_plane_schedules import run_schedule

if TYPE_CHECKING:
    from collections.abc import Callable

MOST = 60
"""Schedules in which a defect must be found."""


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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "defect", [impatient, unconfirmed, holding_on, taken_early], ids=lambda defect: defect.__name__
)
def test_a_broken_rule_is_found(defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    defect(monkeypatch)
    for seed in range(MOST):
        try:
            run_schedule(seed)
        except Wrong:
            return
    pytest.fail(f"{defect.__name__}: not found in {MOST} schedules")
