"""What people see of a machine at its provider follows what its owner says of it."""

from __future__ import annotations

from controller_world import World, play, vm

from hostler.engine.controllers.decision import tags_of
from hostler.model.vm import MachineState


def test_a_node_is_told_the_labels_of_a_machine_and_when_it_expires() -> None:
    async def story(world: World) -> None:
        await world.node("n1")
        await world.leader()
        await world.create("a", labels={"lab": "5"}, expires_at=4e9)
        await world.until_state("a", MachineState.RUNNING)

        async def tags_are(**tags: str) -> bool:
            command = await world.command("n1", "a")
            return command is not None and command.tags == tags

        assert await tags_are(lab="5", expires="2096-10-02T07:06:40Z")
        await world.change("a", labels={"lab": "6"})
        await world.until(lambda: tags_are(lab="6", expires="2096-10-02T07:06:40Z"))
        await world.change("a", expires_at=5e9)
        await world.until(lambda: tags_are(lab="6", expires="2128-06-11T08:53:20Z"))
        await world.change("a", expires_at=None, labels={})
        await world.until(tags_are)

    play(story)


def test_no_expiry_is_too_far_away_to_be_told() -> None:
    assert tags_of(vm("a", expires_at=1e300)) == {"expires": "9999-12-31T23:59:59Z"}
    assert tags_of(vm("a", expires_at=-1e300)) == {"expires": "1970-01-01T00:00:00Z"}
