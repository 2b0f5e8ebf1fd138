"""From nothing to a slice that is called, upgraded and gone, with real processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from harness.pace import patience
from slice_stage import BASE, SETTLED, Load, UpStage, artifact, workers

from hostler.errors import HostlerError, NotFound, Unavailable
from hostler.model.deployment import SliceSpec, SliceState

if TYPE_CHECKING:
    from pathlib import Path


async def test_five_instances_on_two_nodes_from_push_to_delete(tmp_path: Path) -> None:
    async with UpStage(tmp_path, nodes=2) as stage:
        first, second = await stage.push("1.0.0"), await stage.push("1.1.0")
        with pytest.raises(NotFound, match="hostler slice push"):
            await stage.apply("shop", SliceSpec(artifact=artifact("9.9.9"), instances=1))
        with pytest.raises(HostlerError, match="probe"):
            await stage.who()

        status = await stage.settled("shop", SliceSpec(artifact=first, instances=5))
        assert status.settled, status
        endpoints = await stage.endpoints()
        assert [view.instance for view in endpoints] == [1, 2, 3, 4, 5]
        assert sorted(Counter(view.node for view in endpoints).values()) == [2, 3]
        assert len({view.address for view in endpoints}) == 5
        assert len(workers(tmp_path)) == 5
        answers = await asyncio.gather(*(stage.who() for _ in range(100)))
        assert {answer["version"] for answer in answers} == {"1.0.0"}
        assert {answer["instance"] for answer in answers} == {1, 2, 3, 4, 5}
        assert len({answer["worker"] for answer in answers}) == 5
        assert [item async for item in stage.client.stream(BASE, "count", {"to": 3})] == [0, 1, 2]

        async with Load(stage.client, 50) as load:
            status = await stage.settled("shop", SliceSpec(artifact=second, instances=5))
            assert status.settled, status
        assert load.failures == []
        assert set(load.versions()) <= {"1.0.0", "1.1.0"}
        assert load.versions()["1.1.0"] > 0
        assert {view.artifact for view in await stage.endpoints()} == {second}
        states = [one.state for view in await stage.slices() for one in view.instances]
        assert states == [SliceState.ACTIVE] * 5

        await stage.client.blueprints.delete("shop")
        assert await stage.client.blueprints.wait("shop", gone=True, within=patience(SETTLED)) is None
        assert await stage.slices() == []
        assert await stage.endpoints() == []
        with pytest.raises((NotFound, Unavailable)):
            await stage.who()
        assert workers(tmp_path) == set()
