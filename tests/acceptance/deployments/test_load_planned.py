"""What is planned costs no call: a canary, a rollback and a drain under a constant load; the canary gets its share."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from dose import dose
from slice_stage import Load, UpStage

from hostler.model.deployment import Gate, SliceSpec, Stage, Strategy, StrategyKind

if TYPE_CHECKING:
    from pathlib import Path

RATE = 200.0
CALLS = dose(test=2_000, full=10_000)
AT_ONCE = 50


async def test_no_call_fails_and_a_canary_gets_its_share(tmp_path: Path) -> None:
    async with UpStage(tmp_path, nodes=2) as stage:
        first, second = await stage.push("1.0.0"), await stage.push("1.1.0")
        await stage.settled("shop", SliceSpec(artifact=first, instances=2))
        async with Load(stage.client, RATE) as load:
            await _canary(stage, first, second)
            await stage.client.blueprints.rollback("shop", 1)
            assert (await stage.settled("shop")).settled
            assert {view.artifact for view in await stage.endpoints()} == {first}
            await stage.client.nodes.drain("local-1")

            async def is_drained() -> bool:
                return {view.node for view in await stage.slices()} == {"local-2"}

            await stage.until(is_drained)
        load.check_none_failed()
        assert set(load.versions()) == {"1.0.0", "1.1.0"}
        assert [view.node for view in await stage.endpoints()] == ["local-2"] * 2


async def _canary(stage: UpStage, first: str, second: str) -> None:
    canary = Strategy(
        type=StrategyKind.CANARY,
        stages=(Stage(weight=25, hold=1.0),),
        gate=Gate(min_calls=CALLS),  # of the new version
    )
    await stage.apply("shop", SliceSpec(artifact=second, instances=2, strategy=canary))

    async def is_held() -> bool:
        (status,) = (await stage.client.blueprints.status("shop")).slices
        return status.weights == {first: 75, second: 25}

    await stage.until(is_held)
    # The load counts for the gate, too: on a slow machine it would be passed before all calls below were made.
    await stage.client.blueprints.pause("shop")
    seen: Counter[str] = Counter()
    for _ in range(CALLS // AT_ONCE):
        seen.update(answer["version"] for answer in await asyncio.gather(*(stage.who() for _ in range(AT_ONCE))))
    assert abs(seen["1.1.0"] / CALLS - 0.25) <= 0.02, seen
    assert await is_held()
    await stage.client.blueprints.resume("shop")
    for _ in range(CALLS // AT_ONCE):
        await asyncio.gather(*(stage.who(second) for _ in range(AT_ONCE)))
    assert (await stage.settled("shop")).settled
    assert {view.artifact for view in await stage.endpoints()} == {second}
