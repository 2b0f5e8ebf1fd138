"""The invariant `blueprints_met` allows one more instance for a move, and finds every other one."""

from __future__ import annotations

import pytest

from hostler.engine.deployments.rebalance import MOVED
from hostler.model.deployment import Endpoint, SliceInstance, SliceRecord, SliceState
from hostler.model.rollout import Deployment, Move, Phase
from hostler.sim.invariants.blueprints import _endpoints, _Found, _is_moving, _State

WEB = "org:web:1"
MOVE = Move(source="a", target="b")


def judge(move: Move | None, *nodes: str, leaving: str = "") -> bool:
    active = SliceInstance(state=SliceState.ACTIVE, ready=True)
    there = [_Found(node, WEB, number, active) for number, node in enumerate(nodes, 1)]
    if leaving:
        there.append(_Found("a", WEB, 9, SliceInstance(state=SliceState.DEACTIVATING, why=leaving)))
    serving = [one for one in there if one.serves]
    deployment = Deployment(
        blueprint="shop", number=1, artifact=WEB, phase=Phase.DONE, move=move, started_at=0.0, changed_at=0.0
    )
    return _is_moving(deployment, there, serving, 2)


def test_the_instance_of_a_move_is_allowed() -> None:
    assert judge(MOVE, "a", "a", "b")
    assert judge(None, "a", "b", leaving=f"{MOVED}b")


@pytest.mark.parametrize(
    ("move", "nodes", "leaving"),
    [
        (None, ("a", "a", "b"), ""),
        (MOVE, ("a", "a", "b", "b"), ""),
        (MOVE, ("a", "a", "c"), ""),
        (MOVE, ("c", "c", "b"), ""),
        (None, ("a", "b"), "leaving: too many"),
        (None, ("a", "b", "b"), f"{MOVED}b"),
    ],
)
def test_any_other_extra_instance_is_found(move: Move | None, nodes: tuple[str, ...], leaving: str) -> None:
    assert not judge(move, *nodes, leaving=leaving)


@pytest.mark.parametrize(
    ("move", "node", "state", "why", "is_allowed"),
    [
        (None, "a", SliceState.DEACTIVATE, f"{MOVED}b", True),
        (None, "a", SliceState.DEACTIVATE, "leaving: too many", False),
        (None, "a", SliceState.DEACTIVATING, f"{MOVED}b", False),
        (MOVE, "b", SliceState.ACTIVATING, "", True),
        (MOVE, "a", SliceState.ACTIVATING, "", False),
        (None, "b", SliceState.ACTIVATING, "", False),
    ],
)
def test_of_a_move_endpoints_are_shown_until_the_agent_withdraws_them_and_before_it_is_active(
    move: Move | None, node: str, state: SliceState, why: str, is_allowed: bool
) -> None:
    deployment = Deployment(
        blueprint="shop", number=1, artifact=WEB, phase=Phase.DONE, move=move, started_at=0.0, changed_at=0.0
    )
    record = SliceRecord(
        state=state, timestamp=0, instances={1: SliceInstance(state=state, why=why)}, methods=("call",)
    )
    seen = _State(
        blueprints={},
        deployments={"org:web": deployment},
        owners={},
        slices={(node, WEB): record},
        endpoints={(WEB, 1): {"call": Endpoint(node_id=node, instance=1, state=SliceState.ACTIVE)}},
        alive={},
    )
    assert (not list(_endpoints(seen))) is is_allowed
