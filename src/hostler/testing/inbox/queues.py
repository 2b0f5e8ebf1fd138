"""Claims: delivery of requests from the queues, and release of a dead worker's requests."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hostler.errors import Closed
from hostler.ports.inbox import KEPT, LONGEST, QUEUES
from hostler.testing.claim import refused
from hostler.testing.inbox.claim import WITHIN, claim, labs, request

if TYPE_CHECKING:
    from hostler.testing.inbox.claim import InboxTrial

STRANGE = (
    b"",
    b" ",
    b"no json",
    b"\xff\xfe\x00 not even text",
    b"null",
    b"[1, 2]",
    b'"webuserid"',
    b'{"labId":5}',
    b'{"webuserid":5,"labId":5}',
    b'{"webuserid":null,"labId":5}',
    b'{"webuserid":"","labId":5}',
    b'{"webuserid":"a\\u0000b","labId":5}',
    b'{"webuserid":"a\\u0085b","labId":5}',
    b'{"webuserid":"a\\u2028b","labId":5}',
    b'{"webuserid":"' + b"x" * 256 + b'","labId":5}',
    b'{"webuserid":"' + "ä".encode() * 256 + b'","labId":5}',
    b"[" * 5000,
    b" " * LONGEST,
)
"""Requests without a valid user."""


@claim
async def requests_come_out_as_they_were_pushed_and_in_order(t: InboxTrial) -> None:
    raws = [request(f"user-{n}", n + 1) for n in range(30)]
    raws += ['{ "labId" : 7,\n"webuserid":"ä 東京 \\u00fc", "more": [1] }'.encode(), *STRANGE]
    await t.front_end.push("decommission", *raws)
    taken = await t.take()
    assert [one.raw for one in taken] == raws
    assert {one.queue for one in taken} == {"decommission"}
    assert await t.take() == []


@claim
async def a_take_hands_out_no_more_than_was_asked_for(t: InboxTrial) -> None:
    for queue in ("provision", "decommission"):
        await t.front_end.push(queue, *(request(f"{queue}-{n}", 1) for n in range(10)))
    assert await t.take(limit=0) == []
    sizes = [len(await t.take(limit=7)) for _ in range(4)]
    assert sizes == [7, 7, 6, 0]


@claim
async def neither_queue_keeps_the_other_waiting(t: InboxTrial) -> None:
    for queue in ("provision", "decommission"):
        await t.front_end.push(queue, *(request(f"{queue}-{n}", 1) for n in range(50)))
    queues = [one.queue for one in await t.take(limit=20)]
    assert {queues.count("provision"), queues.count("decommission")} == {10}, queues


@claim
async def every_delivery_has_a_token_of_its_own(t: InboxTrial) -> None:
    tokens: set[str] = set()
    for round_ in range(10):
        await t.push("ada", 1, 1)
        await t.push("bob", 1, queue="decommission")
        client = t.inbox if round_ % 2 else t.other
        taken = list(await client.take("w1", limit=10, within=0))
        taken += await client.acknowledge("w1", taken)
        await client.release("w1", ())
        taken += await client.take("w1", limit=10, within=0)
        await client.acknowledge("w1", taken)
        fresh = {one.token for one in taken}
        assert len(fresh) == len(taken) == 4
        assert not fresh & tokens
        tokens |= fresh


@claim
async def a_take_of_nothing_ends_when_its_time_is_over(t: InboxTrial) -> None:
    began = asyncio.get_running_loop().time()
    assert await t.inbox.take("w1", limit=5, within=0.2) == []
    assert 0.19 <= asyncio.get_running_loop().time() - began < WITHIN


@claim
async def who_waits_is_woken_by_either_queue(t: InboxTrial) -> None:
    for queue in ("provision", "decommission", "provision"):
        began = asyncio.get_running_loop().time()
        waiting = asyncio.create_task(t.inbox.take("w1", limit=5, within=3 * WITHIN))
        await asyncio.sleep(0.05)
        await t.push("ada", 1, queue=queue)
        taken = await waiting
        assert labs(taken) == [("ada", 1)], queue
        assert asyncio.get_running_loop().time() - began < 3.0, "it was not woken, it polled"
        await t.inbox.acknowledge("w1", taken)


@claim
async def of_all_who_wait_each_request_goes_to_one(t: InboxTrial) -> None:
    clients = [t.inbox, t.other]
    waiting = [asyncio.create_task(client.take(f"w{n}", limit=9, within=WITHIN)) for n, client in enumerate(clients)]
    await asyncio.sleep(0.05)
    await t.push("ada", 1)
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await t.push("bob", 1)  # for the other, which still waits
    assert sorted(labs(taken) for taken in await asyncio.gather(*waiting)) == [[("ada", 1)], [("bob", 1)]]


@claim
async def what_a_worker_holds_can_be_asked_for_at_any_time(t: InboxTrial) -> None:
    await t.front_end.push("provision", *(request(f"u{n}", 1) for n in range(4)), b"strange")
    await t.front_end.push("decommission", *(request(f"u{n}", 2) for n in range(4)))
    taken = await t.take()
    expected = [one for queue in ("provision", "decommission") for one in taken if one.queue == queue]
    assert list(await t.other.held("w1")) == expected
    assert list(await t.other.held("w2")) == []
    await t.inbox.acknowledge("w1", [expected[1], expected[4], expected[6]])
    assert list(await t.other.held("w1")) == [expected[n] for n in (0, 2, 3, 5, 7, 8)]


@claim
async def all_who_hold_something_are_known(t: InboxTrial) -> None:
    await t.push("ada", 1)
    await t.push("bob", 1)
    assert await t.inbox.workers() == frozenset()
    await t.take("w1", limit=1)
    await t.take("w2", limit=1)
    assert await t.other.workers() >= {"w1", "w2"}


@claim
async def what_is_buried_is_kept_with_the_reason_and_only_once(t: InboxTrial) -> None:
    await t.front_end.push("provision", b"rub\xffbish", request("ada", 1), request("ada", 2))
    strange, first = await t.take()
    assert await t.inbox.bury("w1", strange, "it is no JSON", 1234.5) == []
    assert await t.inbox.bury("w1", strange, "it is no JSON", 1234.5) == []
    assert labs(await t.inbox.bury("w1", first, "ada: who is that?", 1235.0)) == [("ada", 2)]
    assert await t.front_end.dead() == [
        ("provision", "rub\\xffbish", "it is no JSON", 1234.5, "w1"),
        ("provision", request("ada", 1).decode(), "ada: who is that?", 1235.0, "w1"),
    ]
    assert labs(await t.inbox.held("w1")) == [("ada", 2)]


@claim
async def what_is_too_long_goes_to_the_dead_and_is_handed_to_nobody(t: InboxTrial) -> None:
    long = request("ada", 1) + b"\xff" + b" " * LONGEST
    await t.push("ada", 1)
    await t.front_end.push("provision", long)
    await t.push("ada", 2)
    await t.front_end.push("decommission", long, b"x" * LONGEST)
    taken = await t.take()
    assert [one.raw for one in taken] == [request("ada", 1), b"x" * LONGEST]
    assert list(await t.inbox.held("w1")) == taken
    assert labs(await t.inbox.acknowledge("w1", taken)) == [("ada", 2)]
    dead = await t.front_end.dead()
    assert {(queue, request, worker) for queue, request, _, _, worker in dead} == {
        (queue, long[:KEPT].decode(errors="backslashreplace"), "w1") for queue in QUEUES
    }
    for _, _, reason, at, _ in dead:
        assert reason == f"request of {len(long)} bytes: longer than the {LONGEST} that are looked into"
        assert abs(at - time.time()) < 2 * WITHIN


@claim
async def queues_that_are_not_open_do_nothing(t: InboxTrial) -> None:
    inbox = t.front_end.inbox()
    with refused(Closed):
        await inbox.take("w1", limit=1, within=0)
    async with inbox:
        await inbox.take("w1", limit=1, within=0)
    with refused(Closed):
        await inbox.held("w1")
    with refused(Closed):
        await inbox.acknowledge("w1", ())
    with refused(Closed):
        await t.front_end.board().epoch()


@claim
async def after_a_flush_nothing_old_stands_in_the_way(t: InboxTrial) -> None:
    await t.push("ada", 1, 2)
    old = await t.take()
    await t.front_end.flush()
    await t.push("ada", 3, 4)
    assert labs(new := await t.take("w2")) == [("ada", 3)]
    assert await t.inbox.acknowledge("w1", old) == []
    assert await t.take("w3") == [], "acknowledging a lost request released the next one"
    assert labs(await t.inbox.acknowledge("w2", new)) == [("ada", 4)]


@claim
async def what_a_dead_worker_held_goes_back_to_the_front_in_order(t: InboxTrial) -> None:
    for queue in ("provision", "decommission"):
        await t.front_end.push(queue, *(request(f"u{n}", 1) for n in range(5)), b"strange", request("u9", 1))
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
    assert await t.front_end.dead() == []
    assert list(await t.inbox.held("w2")) == [new]
    assert await t.take("w3") == []
    assert labs(await t.inbox.acknowledge("w2", [new])) == [("ada", 2)]
