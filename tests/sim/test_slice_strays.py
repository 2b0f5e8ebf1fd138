"""Slices whose keys somebody removed by hand: nothing of them stays behind, and nobody else's is touched."""

from __future__ import annotations

from msgspec.structs import replace

from hostler.keys.families import ENDPOINT, SLICE
from hostler.model.deployment import Endpoint
from hostler.model.deployment import SliceState as S

from .slice_scene import NODE, A, Scene, played
from .slice_stage import Stage, play, spec


def test_what_loses_its_key_loses_its_endpoints_too() -> None:
    async def story(it: Scene) -> None:
        await it.start()
        await it.active(1, 2)
        await it.bare.txn([], [SLICE.delete(node=NODE, artifact=A)])
        await it.until(lambda: not it.place.rows)
        assert await it.endpoints() == {}

    played(story, audit=False)


def test_one_instance_that_is_taken_out_of_a_record_leaves_the_others() -> None:
    async def story(it: Scene) -> None:
        await it.start()
        await it.active(1, 2)
        entry = await it.entry()
        assert entry is not None
        left = {2: entry.value.each()[2]}
        await it.bare.txn([], [SLICE.put(replace(entry.value, instances=left), node=NODE, artifact=A)])
        await it.until(lambda: len(it.place.rows) == 1)
        assert list(await it.endpoints()) == ["call:2"]

    played(story, audit=False)


def test_a_number_that_was_given_to_another_node_keeps_that_nodes_endpoint() -> None:
    async def story(it: Scene) -> None:
        await it.start()
        await it.active(1)
        other = Endpoint(node_id="b", instance=1, state=S.ACTIVE, address="b:1")
        await it.bare.txn(
            [],
            [
                SLICE.delete(node=NODE, artifact=A),
                ENDPOINT.put(other, artifact=A, method="call", instance=1),
            ],
        )
        await it.until(lambda: not it.place.rows)
        assert (await it.endpoints())["call:1"].node_id == "b"

    played(story, audit=False)


def test_the_leader_drops_endpoints_that_belong_to_no_instance() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        standing = [entry.key for entry in (await ENDPOINT.list(stage.store)).entries]
        assert standing

        def stray(artifact: str, instance: int, node: str = "a") -> object:
            record = Endpoint(node_id=node, instance=instance, state=S.ACTIVE, address="x:1")
            return ENDPOINT.put(record, artifact=artifact, method="call", instance=instance)

        await stage.store.txn([], [stray("org:web:1", 77), stray("org:gone:1", 1), stray("org:web:1", 78, "nobody")])  # type: ignore[list-item]

        async def only_ours() -> bool:
            return [entry.key for entry in (await ENDPOINT.list(stage.store)).entries] == standing

        await stage.until(only_ours, within=400.0)

    play(story)
