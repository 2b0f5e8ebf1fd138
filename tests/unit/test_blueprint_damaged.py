"""A blueprint that somebody damaged by hand: it is told of, and can be applied, rolled back, planned and deleted."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from blueprint_scene import SaidArtifacts, blueprint, spec
from environment import env_on
from service_scene import ADMIN, Scene, asked, play

from hostler.engine.deployments.service import BlueprintService
from hostler.keys.families import BLUEPRINT, BLUEPRINT_HISTORY
from hostler.model.blueprint_api import BlueprintPhase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEY = BLUEPRINT.fill(blueprint="shop")
FIRST, SECOND = blueprint(spec("web:1")), blueprint(spec("web:2"))


def damaged(check: Callable[[Scene, BlueprintService], Awaitable[None]]) -> None:
    async def scene_of(scene: Scene) -> None:
        service = BlueprintService(
            scene.store, scene.writer, scene.view, SaidArtifacts(), env_on(scene.clock, random.Random(3))
        )
        for one in (FIRST, SECOND):
            await service.apply(asked(ADMIN), "shop", one)
        await scene.raw.put(KEY, b'{"slices": [{"artifact": "org:web:2", "instances": 0}]}')
        await scene.settle()
        await check(scene, service)

    play(scene_of)


async def says(scene: Scene) -> object:
    entry = await BLUEPRINT.get(scene.raw, blueprint="shop")
    return None if entry is None else entry.value


def test_it_is_shown_as_it_was_applied_last_and_said_to_be_damaged() -> None:
    async def check(scene: Scene, service: BlueprintService) -> None:
        for stale in (False, True):
            view = await service.get(ADMIN, "shop", stale=stale)
            assert (view.slices, view.phase, view.settled) == (SECOND.slices, BlueprintPhase.FAILED, False)
            status = await service.status(ADMIN, "shop", stale=stale)
            assert "damaged" in status.detail
            assert "instances" in status.detail
        plan = await service.plan(ADMIN, "shop", SECOND)
        assert plan.changes
        assert any("damaged" in note for note in plan.notes)

    damaged(check)


def test_the_very_same_is_applied_over_it() -> None:
    async def check(scene: Scene, service: BlueprintService) -> None:
        await service.apply(asked(ADMIN), "shop", SECOND)
        assert await says(scene) == SECOND

    damaged(check)


def test_it_is_rolled_back_to_what_was_applied_last_or_to_any_other() -> None:
    async def check(scene: Scene, service: BlueprintService) -> None:
        await service.rollback(asked(ADMIN), "shop")
        assert await says(scene) == SECOND
        await scene.raw.put(KEY, b"no blueprint")
        await service.rollback(asked(ADMIN), "shop", 1)
        assert await says(scene) == FIRST

    damaged(check)


def test_it_is_deleted() -> None:
    async def check(scene: Scene, service: BlueprintService) -> None:
        await service.delete(asked(ADMIN), "shop")
        assert await says(scene) is None
        last = (await BLUEPRINT_HISTORY.list(scene.raw, blueprint="shop")).entries[-1].value
        assert (last.deleted, last.blueprint) == (True, SECOND)

    damaged(check)
