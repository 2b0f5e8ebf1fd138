"""What placement is asked about when somebody asks why: kept up, and never another than what the view says."""

from __future__ import annotations

import random
from typing import Any

import pytest
from service_scene import MEMBER_OF_ACME, ORG, PROJECT, Scene, play

from hostler.engine.controllers.allocations import Allocations
from hostler.engine.vm_queries import VmReader
from hostler.keys.families import ALIVE, COMMAND, MEMBER
from hostler.model.node import Lifecycle


@pytest.mark.parametrize("seed", range(5))
def test_what_is_kept_up_answers_as_what_is_made_anew(seed: int) -> None:
    async def story(scene: Scene) -> None:
        rng = random.Random(seed)
        kept = VmReader(scene.store, scene.view)
        machines = [await scene.made(f"m{number}") for number in range(6)]
        for _ in range(40):
            node = f"local-{rng.randrange(4)}"
            vm = rng.choice(machines)
            verb = rng.choice(("node", "silent", "forgotten", "told", "taken"))
            if verb == "node":
                await scene.node(node, lifecycle=rng.choice((Lifecycle.ON_DUTY, Lifecycle.DRAINING)))
            elif verb == "silent":
                await scene.raw.delete(ALIVE.fill(node=node))
            elif verb == "forgotten":
                await scene.raw.delete(MEMBER.fill(node=node))
            elif verb == "taken" or scene.view.node_of.get(vm.id, node) != node:
                await scene.raw.delete(COMMAND.fill(node=scene.view.node_of.get(vm.id, node), vm=vm.id))
            else:
                await scene.told(vm, node)
            await scene.settle()
            asked = (MEMBER_OF_ACME, ORG, PROJECT, rng.choice(machines).id)
            assert await kept.why(*asked) == await VmReader(scene.store, scene.view).why(*asked)

    play(story, seed=seed)


def test_the_cluster_is_made_once_however_often_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    load = Allocations.load

    async def counted(books: Allocations) -> None:
        made.append(books)
        await load(books)

    async def story(scene: Scene) -> None:
        monkeypatch.setattr(Allocations, "load", counted)
        await scene.made()
        for number in range(5):
            await scene.node(f"local-{number}")
            why = await scene.vms.why(MEMBER_OF_ACME, ORG, PROJECT, "a")
            assert len(why.nodes) == number + 1
        assert len(made) == 1

    play(story)
