"""Deliberate defects in what deploys slices, the scenario that finds each, and the invariant that is broken then.

As in `defects`, each is one rule ignored; none can be switched on outside tests.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hostler.engine.deployments import controller, instance_index, rebalance, spread
from hostler.engine.deployments.controller import DeploymentController
from hostler.engine.slices.decide import Show
from hostler.engine.slices.status_writer import StatusWriter
from hostler.sim.world import Factories

from .defects import _agents, _NoGuard, _plane, _turned

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    Breaking = Callable[[pytest.MonkeyPatch], Factories]


@dataclasses.dataclass(frozen=True)
class Defect:
    """How it is put in, the scenario that finds it, and the invariant that is broken then."""

    put_in: Breaking
    scenario: str
    invariant: str

    @property
    def name(self) -> str:
        return self.put_in.__name__


DEFECTS: list[Defect] = []


def found_by(scenario: str, invariant: str) -> Callable[[Breaking], Breaking]:
    """One more defect."""

    def add(put_in: Breaking) -> Breaking:
        DEFECTS.append(Defect(put_in, scenario, invariant))
        return put_in

    return add


def _deployments(kind: type[DeploymentController]) -> Factories:
    return Factories(plane=_plane(deployment_controller=lambda made: _turned(made, kind)))


def _ledgers(kind: type[StatusWriter]) -> Factories:
    def broken(agent: Any) -> None:
        if agent.slices is not None:
            _turned(agent.slices.ledger, kind)

    return _agents(broken)


class _Clinging(StatusWriter):
    def _shown(self, entry: Any, change: Any, lease: int | None) -> Any:
        return [] if change.show is Show.DROP else super()._shown(entry, change, lease)


@found_by("deploy-first", "no_unreachable_endpoint")
def endpoint_not_withdrawn(_: pytest.MonkeyPatch) -> Factories:
    """An agent stops instances whose endpoints it leaves where they are."""
    return _ledgers(_Clinging)


class _Shy(StatusWriter):
    def _shown(self, entry: Any, change: Any, lease: int | None) -> Any:
        return [] if change.show is Show.PUT else super()._shown(entry, change, lease)


@found_by("deploy-first", "endpoints_before_active")
def active_without_endpoints(_: pytest.MonkeyPatch) -> Factories:
    """An agent says that an instance is active, and shows none of its methods."""
    return _ledgers(_Shy)


class _Hasty(DeploymentController):
    def _has_needs(self, *_: Any) -> bool:
        return True


@found_by("deploy-dependencies", "needs_kept")
def activated_without_what_it_needs(_: pytest.MonkeyPatch) -> Factories:
    """Instances are told to become active though what they need is not."""
    return _deployments(_Hasty)


@found_by("deploy-leader-cut-off", "no_stale_leader_write")
def slices_placed_by_a_former_leader(_: pytest.MonkeyPatch) -> Factories:
    """What a leader writes does not depend on whether it still leads."""
    return Factories(storage=_NoGuard)


class _Forgetful(instance_index.Numbers):
    def take(self, count: int) -> list[int]:
        return list(range(1, count + 1))


@found_by("deploy-pdu-loss", "instance_numbers_unique")
def two_instances_with_one_number(patch: pytest.MonkeyPatch) -> Factories:
    """New instances are numbered from 1, whatever is there."""
    patch.setattr(instance_index, "Numbers", _Forgetful)
    return Factories()


@found_by("deploy-rolling-node-loss", "min_available_kept")
def all_may_go_at_once(patch: pytest.MonkeyPatch) -> Factories:
    """Every ready instance may be stopped, however few are left."""
    sound = controller.aim

    def generous(snapshot: Any, *, now: float) -> Any:
        found = sound(snapshot, now=now)
        return replace(found, spare=tuple((side, count.ready) for side, count in snapshot.counts.items()))

    patch.setattr(controller, "aim", generous)
    return Factories()


@found_by("deploy-rolling-node-loss", "blueprints_met")
def dead_nodes_keep_their_slices(patch: pytest.MonkeyPatch) -> Factories:
    """What was on a node that is dead counts as being there."""

    async def left(*_: Any) -> None:
        return

    patch.setattr(DeploymentController, "_bury", left)
    return Factories()


@found_by("deploy-drain-under-upgrade", "blueprints_met")
def a_drain_stops_halfway(patch: pytest.MonkeyPatch) -> Factories:
    """The first instance of a slice leaves a node that is drained, and the others stay."""
    sound, moved = controller.decide, dict[int, bool]()

    def tired(look: Any) -> Any:
        roster_ = id(look.roster)
        plan = sound(replace(look, leaving={}) if roster_ in moved else look)
        if look.leaving and any(node in look.leaving for node, _ in plan.changes):
            moved[roster_] = True
        return plan

    patch.setattr(controller, "decide", tired)
    return Factories()


@found_by("deploy-first", "spread_kept")
def everything_on_one_node(patch: pytest.MonkeyPatch) -> Factories:
    """All instances of a slice go where the first of them goes, and rebalancing finds no better node either."""
    sound = spread.assign

    def piled(count: int, *where: Any, **said: Any) -> list[spread.Choice]:
        return sound(min(count, 1), *where, **said) * count

    patch.setattr(spread, "assign", piled)
    patch.setattr(rebalance, "better", lambda *_: None)
    return Factories()


class _Oblivious(DeploymentController):
    async def start(self, standing: Any) -> None:
        await super().start(standing)
        self._retries.clear()


@found_by("deploy-retries-new-leader", "retries_heeded")
def retries_forgotten_by_a_new_leader(_: pytest.MonkeyPatch) -> Factories:
    """Who comes to lead does not know what failed before, and tries it again at once."""
    return _deployments(_Oblivious)
