"""Where a call goes: versions by exact weights, this node first, the less loaded of two, what failed comes last."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from hostler.engine.invocation.load_balancer import Avoided, Instance, Routing
from hostler.model.deployment import Endpoint, SliceState

OLD, NEW = "acme:shop:1.0", "acme:shop:2.0"


def endpoint(node: str, number: int, address: str = "", *, idempotent: bool = False) -> Endpoint:
    return Endpoint(
        node_id=node,
        instance=number,
        state=SliceState.ACTIVE,
        address=address or f"{node}:{number}",
        idempotent=idempotent,
    )


def routing(old: int = 0, new: int = 0, *, local: tuple[str, ...] = (), seed: int = 1) -> Routing:
    made = Routing(random.Random(seed), local)
    for number in range(1, old + 1):
        made.put(OLD, "sell", number, endpoint(f"n{number}", number))
    for number in range(1, new + 1):
        made.put(NEW, "sell", number, endpoint(f"n{number}", number))
    return made


def chosen(
    found: Routing, method: str = "sell", artifact: str | None = None, avoided: Avoided | None = None
) -> Instance:
    place = found.choose(method, artifact, 0.0, avoided)
    assert place is not None
    return place.instance


@pytest.mark.parametrize("weight", [1, 5, 25, 33, 50, 99])
def test_a_version_gets_exactly_its_share_of_ten_thousand_calls(weight: int) -> None:
    found = routing(3, 2)
    found.weigh({OLD: 100 - weight, NEW: weight})
    counts = Counter(chosen(found).artifact for _ in range(10_000))
    assert counts[NEW] == weight * 100
    # and so in every hundred of them, so that a short stage is fair, too
    assert Counter(chosen(found).artifact for _ in range(100))[NEW] == weight


async def test_shares_are_exact_with_many_callers_at_once_and_methods_take_turns_by_themselves() -> None:
    found = routing(3, 2)
    for number in (1, 2, 3):
        found.put(OLD, "buy", number, endpoint(f"n{number}", number))
    found.put(NEW, "buy", 1, endpoint("n1", 1))
    found.weigh({OLD: 75, NEW: 25})
    counts: Counter[tuple[str, str]] = Counter()

    async def caller(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(100):
            for method in ("sell", "buy"):
                one = chosen(found, method)
                counts[method, one.artifact] += 1
                one.in_flight += 1
                await asyncio.sleep(0 if rng.random() < 0.9 else 0.0001)
                one.in_flight -= 1

    await asyncio.gather(*(caller(seed) for seed in range(100)))
    assert counts["sell", NEW] == counts["buy", NEW] == 2500


def test_shares_hold_while_weights_and_instances_change() -> None:
    found, rng = routing(4, 4), random.Random(7)
    owed, got, calls = 0.0, 0, 0
    for _ in range(400):
        weight = rng.choice((5, 25, 50))
        found.weigh({OLD: 100 - weight, NEW: weight})
        number = rng.randrange(2, 5)
        found.drop(NEW, "sell", number)
        for _ in range(25):
            got += chosen(found).artifact == NEW
            owed += weight / 100
            calls += 1
        found.put(NEW, "sell", number, endpoint(f"n{number}", number))
    assert calls == 10_000
    assert abs(got - owed) <= 0.0002 * calls


def test_a_version_without_a_share_gets_nothing_and_one_that_is_not_named_neither() -> None:
    found = routing(2, 2)
    found.put("acme:shop:0.9", "sell", 1, endpoint("n1", 1))
    found.weigh({OLD: 100, NEW: 0})
    assert {chosen(found).artifact for _ in range(500)} == {OLD}
    found.weigh({NEW: 100, OLD: 0})
    assert {chosen(found).artifact for _ in range(500)} == {NEW}
    found.drop(NEW, "sell", 1)
    found.drop(NEW, "sell", 2)
    assert found.choose("sell", None, 0.0) is None
    assert found.withheld("sell") == ["acme:shop:0.9", OLD]


def test_a_share_goes_to_the_others_while_a_version_has_no_instance() -> None:
    found = routing(1, 0)
    found.weigh({OLD: 75, NEW: 25})
    assert {chosen(found).artifact for _ in range(100)} == {OLD}


def test_without_weights_calls_go_evenly_over_instances_of_all_versions() -> None:
    found = routing(3, 1)
    counts = Counter((one.artifact, one.number) for one in (chosen(found) for _ in range(8000)))
    assert set(counts) == {(OLD, 1), (OLD, 2), (OLD, 3), (NEW, 1)}
    assert all(1600 < count < 2400 for count in counts.values())


def test_a_full_artifact_is_exactly_that_version_whatever_the_weights() -> None:
    found = routing(1, 1)
    found.weigh({OLD: 100, NEW: 0})
    assert {chosen(found, artifact=NEW).artifact for _ in range(50)} == {NEW}
    assert found.choose("sell", "acme:shop:3.0", 0.0) is None


def test_instances_of_this_node_come_first_within_a_version() -> None:
    found = routing(5, 5, local=("n3",))
    assert {chosen(found).node for _ in range(200)} == {"n3"}
    found.weigh({OLD: 50, NEW: 50})
    counts = Counter((one.node, one.artifact) for one in (chosen(found) for _ in range(200)))
    assert counts == {("n3", OLD): 100, ("n3", NEW): 100}
    found.drop(NEW, "sell", 3)
    assert "n3" not in {one.node for one in (chosen(found) for _ in range(200)) if one.artifact == NEW}


def test_of_two_that_chance_names_the_less_loaded_is_taken() -> None:
    found = routing(2)
    busy = chosen(found)
    busy.in_flight = 5
    assert all(chosen(found) is not busy for _ in range(100))
    many = routing(50)
    loads: Counter[int] = Counter()
    for _ in range(5000):  # none ends: two choices keep them even, where one would not
        one = chosen(many)
        one.in_flight += 1
        loads[one.number] = one.in_flight
    assert max(loads.values()) - min(loads.values()) <= 12


def test_a_node_that_failed_this_call_is_passed_over_then_its_other_instances_then_itself() -> None:
    found = Routing(random.Random(1))
    found.put(OLD, "sell", 1, endpoint("a", 1))
    found.put(OLD, "sell", 2, endpoint("a", 2))
    found.put(OLD, "sell", 3, endpoint("b", 3))
    avoided = Avoided()
    first = found.choose("sell", OLD, 0.0)
    assert first is not None
    while first.instance.number != 1:
        first = found.choose("sell", OLD, 0.0)
        assert first is not None
    avoided.add(first.instance)
    assert {chosen(found, avoided=avoided).node for _ in range(50)} == {"b"}
    other = chosen(found, avoided=avoided)
    avoided.add(other)
    assert {chosen(found, avoided=avoided).number for _ in range(50)} == {2}
    avoided.add(chosen(found, avoided=avoided))
    assert chosen(found, avoided=avoided).number in {1, 2, 3}


def test_a_retry_stays_in_its_version_if_it_can_and_takes_nobodys_turn() -> None:
    found = routing(2, 2)
    found.weigh({OLD: 50, NEW: 50})
    counts: Counter[str] = Counter()
    for _ in range(1000):
        one = chosen(found)
        counts[one.artifact] += 1
        avoided = Avoided()
        avoided.add(one)
        again = chosen(found, avoided=avoided)
        assert again.artifact == one.artifact
        assert again is not one
    assert counts == {OLD: 500, NEW: 500}
    found.drop(NEW, "sell", 2)
    lonely = chosen(found, artifact=NEW)
    avoided = Avoided()
    avoided.add(lonely)
    assert chosen(found, avoided=avoided).artifact == OLD


def test_what_could_not_be_reached_is_the_last_choice_for_a_while_even_on_this_node() -> None:
    found = routing(3, local=("n1",))
    near = chosen(found)
    near.unreachable(0.0)
    assert {chosen(found).number for _ in range(50)} == {2, 3}
    for number in (2, 3):
        next(one for one in iter(lambda: chosen(found), None) if one.number == number).unreachable(0.0)
        if number == 2:
            assert {chosen(found).number for _ in range(20)} == {3}
    assert chosen(found) is not None  # all of them: better than nobody
    later = found.choose("sell", None, 1.0)
    assert later is not None
    assert later.instance is near
    near.reached()
    assert near.shunned_until == 0.0


def test_one_that_is_full_is_passed_over_for_a_moment_while_others_have_room() -> None:
    found = routing(2, local=("n1",))
    near = chosen(found)
    near.refused(0.0)
    assert chosen(found).number == 2
    assert chosen(found, artifact=OLD).number == 2
    later = found.choose("sell", None, 0.1)
    assert later is not None
    assert later.instance is near
    only = routing(1)
    chosen(only).refused(0.0)
    assert chosen(only).number == 1


def test_an_instance_at_another_address_is_another_one() -> None:
    found = Routing(random.Random(1))
    found.put(OLD, "sell", 1, endpoint("a", 1, "a:1"))
    found.put(OLD, "buy", 1, endpoint("a", 1, "a:1"))
    before = chosen(found)
    assert chosen(found, "buy") is before  # one load for all its methods
    before.in_flight = 9
    before.unreachable(0.0)
    found.put(OLD, "sell", 1, endpoint("a", 1, "a:2"))
    after = chosen(found)
    assert (after.address, after.in_flight, after.failures) == ("a:2", 0, 0)
    found.put(OLD, "buy", 1, endpoint("a", 1, "a:2"))
    assert chosen(found, "buy") is after
    found.drop(OLD, "sell", 1)
    found.drop(OLD, "buy", 1)
    assert found.choose("sell", None, 0.0) is None
    assert len(found) == 0
    assert not found._instances


def test_endpoints_come_and_go_at_random_and_exactly_the_present_ones_are_chosen() -> None:
    rng = random.Random(3)
    found, present = Routing(random.Random(2)), set()
    for _ in range(2000):
        number = rng.randrange(1, 12)
        if number in present and rng.random() < 0.5:
            found.drop(OLD, "sell", number)
            present.discard(number)
        else:
            found.put(OLD, "sell", number, endpoint(f"n{number % 3}", number))
            present.add(number)
        place = found.choose("sell", None, 0.0)
        assert (place.instance.number in present) if place is not None else not present
    seen = {chosen(found).number for _ in range(500)} if present else set()
    assert seen == present
