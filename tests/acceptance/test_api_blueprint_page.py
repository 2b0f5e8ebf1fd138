"""What the page asks about blueprints beside the rest: files with the line of each fault, stages and gates, calls."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from api_server import Api, serving
from blueprint_scene import SaidArtifacts, blueprint, spec

from hostler import Client
from hostler.engine.request import HOSTLER, Request
from hostler.errors import Forbidden, NotFound
from hostler.keys.families import DEPLOYMENT
from hostler.model.access import Role
from hostler.model.deployment import Blueprint, Gate, Stage, Strategy, StrategyKind
from hostler.model.rollout import Deployment, Phase
from hostler.ports.slices import LAST_WORDS

TOML = """\
name = "shop"

[[slices]]
artifact = "org:cart:1"
instances = 2
needs = ["org:cart"]
"""


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving(artifacts=SaidArtifacts(), sockets=True) as api:
        yield api


async def test_a_file_is_read_with_all_its_faults_and_what_it_says_can_be_applied(api: Api) -> None:
    async with Client(api.url, api.admin) as client:
        found = await client.blueprints.read(TOML)
        assert (found.name, [one.artifact for one in found.slices]) == ("shop", ["org:cart:1"])
        assert [(one.place, one.line) for one in found.faults] == [("slices[0].needs[0]", 6)]
        broken = await client.blueprints.read("{}", "shop.json")
        assert [one.what for one in broken.faults] == ["lacks the field slices"]
        found = await client.blueprints.read(TOML.replace("needs", "# needs"), "shop.toml")
        assert not found.faults
        await client.blueprints.apply(found.name, Blueprint(slices=found.slices))
        assert (await client.blueprints.get("shop")).instances == 2
    async with Client(api.url, await api.user(Role.OPERATOR, "acme")) as client:
        with pytest.raises(Forbidden, match="modify_workloads"):
            await client.blueprints.read(TOML)


async def test_the_status_says_what_a_canary_is_held_to_and_its_words_are_for_those_who_deploy(api: Api) -> None:
    strategy = Strategy(
        type=StrategyKind.CANARY, stages=(Stage(weight=25, hold=5.0),), gate=Gate(max_latency_ms=40.0, min_calls=7)
    )
    service = api.services.blueprints
    await service.apply(Request(HOSTLER), "shop", blueprint(spec("cart:2", strategy=strategy)))
    record = Deployment(
        blueprint="shop",
        number=1,
        artifact="org:cart:2",
        previous="org:cart:1",
        strategy=strategy,
        phase=Phase.CANARY,
        started_at=100.0,
        changed_at=200.0,
        why=f"it ended; {LAST_WORDS}the password is",
    )
    await api.store.txn([], [DEPLOYMENT.put(record, base="org:cart")])
    await api.services.view.refresh(api.services.view.deployments)
    async with Client(api.url, api.admin) as client:
        rollout = (await client.blueprints.status("shop")).slices[0].rollout
        assert rollout is not None
        assert [(stage.weight, stage.hold) for stage in rollout.stages] == [(25, 5.0)]
        assert rollout.gate is not None
        assert (rollout.gate.max_error_rate, rollout.gate.max_latency_ms, rollout.gate.min_calls) == (0.01, 40.0, 7)
        assert (rollout.started_at, rollout.changed_at, rollout.why) == (100.0, 200.0, record.why)
    async with Client(api.url, await api.user(Role.OPERATOR, "acme")) as client:
        rollout = (await client.blueprints.status("shop")).slices[0].rollout
        assert rollout is not None
        assert rollout.why == "it ended"
        told = await client.blueprints.calls("shop")
        assert (told.name, told.slices) == ("shop", ())  # this server has no way to slices
        with pytest.raises(NotFound):
            await client.blueprints.calls("other")
