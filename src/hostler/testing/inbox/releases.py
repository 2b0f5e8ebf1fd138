"""Release of a dead worker's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.testing.inbox.claim import claim, labs, request

if TYPE_CHECKING:
    from hostler.testing.inbox.claim import InboxTrial


@claim
async def what_a_dead_worker_held_goes_back_to_the_front_in_order(t: InboxTrial) -> None:
    for queue in ("provision", "decommission"):
        await t.door.push(queue, *(request(f"u{n}", 1) for n in range(5)), b"strange", request("u9", 1))
    held = await t.take(limit=12)
    assert await t.other.release("w1", ()) == 12
    assert await t.other.held("w1") == []
    again = await t.take("w2")
    for queue in ("provision", "decommission"):
        raws = [one.raw for one in again if one.queue == queue]
        assert raws == [*(request(f"u{n}", 1) for n in range(5)), b"strange", request("u9", 1)]
    assert not {one.token for one in again} & {one.token for one in held}


@claim
async def what_a_dead_worker_had_done_does_not_come_back(t: InboxTrial) -> None:
    await t.push("ada", 1, 2, 3)
    await t.push("bob", 1)
    await t.push("carl", 1, 2)
    ada, bob, carl = await t.take()
    assert await t.other.release("w1", [ada, bob]) == 1
    assert labs(again := await t.take("w2")) == [("ada", 2), ("carl", 1)]
    assert labs(following := await t.inbox.acknowledge("w2", again)) == [("ada", 3), ("carl", 2)]
    assert await t.inbox.acknowledge("w2", following) == []
    await t.push("bob", 2)
    assert labs(await t.take("w3")) == [("bob", 2)]
    assert carl.raw == request("carl", 1)


@claim
async def a_users_order_outlives_a_worker(t: InboxTrial) -> None:
    await t.push("ada", 1, 2, 3)
    await t.take()
    await t.push("ada", 4)
    await t.take("w2")
    await t.push("ada", 5)
    await t.inbox.release("w1", ())
    await t.push("ada", 6)
    taken = await t.take("w3")
    seen = labs(taken)
    while taken:
        taken = list(await t.inbox.acknowledge("w3", taken))
        seen += labs(taken)
    assert seen == [("ada", lab) for lab in (1, 2, 3, 4, 5, 6)]


@claim
async def a_release_that_is_repeated_takes_nothing_from_others(t: InboxTrial) -> None:
    await t.push("ada", 1, 2)
    done = await t.take()
    assert await t.other.release("w1", done) == 0
    assert labs(taken := await t.take("w2")) == [("ada", 2)]
    assert await t.other.release("w1", done) == 0
    assert list(await t.inbox.held("w2")) == taken
    assert await t.inbox.acknowledge("w1", done) == []
    assert await t.take("w3") == []


@claim
async def a_worker_that_was_released_is_known_no_more_until_it_takes_again(t: InboxTrial) -> None:
    await t.push("ada", 1)
    await t.take()
    await t.other.release("w1", ())
    assert "w1" not in await t.other.workers()
    assert labs(await t.take()) == [("ada", 1)]
    assert "w1" in await t.other.workers()
    assert await t.other.release("w1", ()) == 1
    assert labs(await t.take("w2")) == [("ada", 1)]


@claim
async def a_worker_that_was_released_has_nothing_to_say(t: InboxTrial) -> None:
    await t.push("ada", 1, 2)
    (old,) = await t.take()
    await t.other.release("w1", ())
    (new,) = await t.take("w2")
    assert await t.inbox.acknowledge("w1", [old]) == []
    assert await t.inbox.bury("w1", old, "too late", 1.0) == []
    assert await t.door.dead() == []
    assert list(await t.inbox.held("w2")) == [new]
    assert await t.take("w3") == []
    assert labs(await t.inbox.acknowledge("w2", [new])) == [("ada", 2)]
