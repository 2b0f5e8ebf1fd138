"""The slices of a node, in virtual time: every state walked, and every way in which a walk can go wrong."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from dose import seeds

from hostler.errors import NotFound, Unavailable
from hostler.keys.families import ALIVE, ENDPOINT, ROUTER, SLICE
from hostler.model.deployment import Endpoint, SliceSettings
from hostler.model.rollout import RouterRecord
from hostler.ports.slices import Life, Method

from .slice_scene import LIMITS, NODE, TTL, A, Hand, S, Scene, played

NAME = f"{A}#1"
LEFT = "the agent was restarted and it does not run"


def test_an_instance_walks_every_state_and_is_gone_at_the_end() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.command(S.LOAD, why="fewest here")
        await it.reach(S.LOADED)
        assert await it.endpoints() == {}
        await it.command(S.ACTIVATE)
        one = await it.reach(S.ACTIVE)
        assert one is not None
        assert (one.why, one.ready, one.restarts) == ("fewest here", True, 0)
        found = await it.endpoints()
        assert list(found) == ["call:1"]
        assert found["call:1"].address == it.place.rows[NAME].address
        assert (found["call:1"].node_id, found["call:1"].idempotent) == (NODE, True)
        entry = await it.entry()
        assert entry is not None
        assert entry.value.methods == ("call",)
        await it.command(S.DEACTIVATE)
        await it.reach(S.LOADED)
        assert await it.endpoints() == {}
        await it.command(S.UNLOAD)
        await it.reach(None)
        assert await it.entry() is None
        assert it.place.rows == {}
        walked = [state for _, _, state in (await it.audited()).walked]
        assert walked == [
            *(S.LOAD, S.LOADING, S.LOADED, S.ACTIVATE, S.ACTIVATING, S.ACTIVE),
            *(S.DEACTIVATE, S.DEACTIVATING, S.LOADED, S.UNLOAD, S.UNLOADING, None),
        ]

    played(play)


# What goes wrong with a step

ROADS = {"load": S.LOAD, "activate": S.ACTIVATE, "deactivate": S.DEACTIVATE, "unload": S.UNLOAD}


async def on_the_way(it: Scene, verb: str) -> None:
    """An instance that has come to where the verb is next."""
    await it.start()
    if verb != "load":
        await it.command(S.LOAD)
        await it.reach(S.LOADED)
    if verb == "deactivate":
        await it.command(S.ACTIVATE)
        await it.reach(S.ACTIVE)


@pytest.mark.parametrize("verb", ROADS)
def test_what_is_refused_has_failed_with_why_and_can_be_unloaded(verb: str) -> None:
    async def play(it: Scene) -> None:
        await on_the_way(it, verb)
        it.place.refuse(A, verb, "it does not import", times=1)  # type: ignore[arg-type]
        await it.command(ROADS[verb])
        one = await it.reach(S.FAILED, within=5)
        assert one is not None
        assert one.why == f"{A}: it does not import"
        assert await it.endpoints() == {}
        await it.command(S.UNLOAD)
        await it.reach(None)
        assert it.place.rows == {}

    played(play)


@pytest.mark.parametrize("verb", ROADS)
def test_a_step_beyond_its_limit_has_failed(verb: str) -> None:
    async def play(it: Scene) -> None:
        await on_the_way(it, verb)
        it.place.slow(A, 1000)
        await it.command(ROADS[verb])
        limit = getattr(LIMITS, f"{verb.removesuffix('e')}ing")
        began = it.clock.now()
        if verb == "deactivate":  # its grace is over before its limit
            await it.reach(S.LOADED)
            assert it.clock.now() - began < limit
            return
        one = await it.reach(S.FAILED)
        assert one is not None
        assert limit <= it.clock.now() - began < limit + 1
        assert f"longer than {limit:g} s" in one.why
        it.place.relent(A)
        await it.command(S.UNLOAD)
        await it.reach(None)
        assert it.place.rows == {}

    played(play)


def test_what_cannot_be_done_now_is_tried_again_until_its_limit() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        it.place.fault(A, "load", Unavailable("repository: out of reach"), times=3)
        await it.command(S.LOAD)
        await it.reach(S.LOADED, within=LIMITS.loading)
        it.place.fault(A, "activate", Unavailable("port: taken"))
        await it.command(S.ACTIVATE)
        began = it.clock.now()
        one = await it.reach(S.FAILED)
        assert LIMITS.activating <= it.clock.now() - began < LIMITS.activating + 1
        assert one is not None
        assert one.why.endswith("port: taken")

    played(play)


def test_an_artifact_that_is_nowhere_has_failed_at_once() -> None:
    async def play(it: Scene) -> None:
        it.place.fault(A, "load", NotFound(f"artifact {A}: not in the repository"))
        await it.start()
        await it.command(S.LOAD)
        one = await it.reach(S.FAILED, within=5)
        assert one is not None
        assert "not in the repository" in one.why

    played(play)


# What ends by itself


def test_what_crashed_has_no_endpoints_until_it_is_back_at_its_new_address() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        old = (await it.endpoints())["call:1"].address
        it.place.crash(NAME)
        await it.until(lambda: unready(it), within=1)
        assert await it.endpoints() == {}
        await it.until(lambda: ready(it), within=5)
        one = await it.one()
        assert one is not None
        assert (one.state, one.restarts) == (S.ACTIVE, 1)
        new = (await it.endpoints())["call:1"].address
        assert new == it.place.rows[NAME].address != old

    played(play)


async def unready(it: Scene) -> bool:
    one = await it.one()
    return one is not None and not one.ready


async def ready(it: Scene, number: int = 1) -> bool:
    one = await it.one(number)
    return one is not None and one.state is S.ACTIVE and one.ready


def test_what_crashes_again_and_again_has_failed() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        for _ in range(5):
            it.place.crash(NAME, "exit status 1")
            await it.until(lambda: unready(it))
            await it.until(lambda: ready(it))
        it.place.crash(NAME, "exit status 1")
        one = await it.reach(S.FAILED)
        assert one is not None
        assert "5 restarts" in one.why
        assert "exit status 1" in one.why
        assert one.restarts == 5
        assert await it.endpoints() == {}

    played(play)


def test_what_crashes_now_and_then_is_started_again_for_ever() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        for _ in range(12):
            it.place.crash(NAME)
            await it.until(lambda: unready(it))
            assert await it.until(lambda: ready(it)) < 4
            await it.clock.sleep(40)
        one = await it.one()
        assert one is not None
        assert one.restarts == 12

    played(play)


def test_what_cannot_be_started_again_has_failed_with_why() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        it.place.refuse(A, "activate", "no database")
        it.place.crash(NAME)
        one = await it.reach(S.FAILED)
        assert one is not None
        assert "no database" in one.why
        assert sum(1 for call in it.place.calls if call == ("activate", NAME)) == 6

    played(play)


def test_one_that_says_that_it_is_not_well_is_started_again() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        it.place.sicken(NAME)
        await it.until(lambda: unready(it))
        await it.until(lambda: ready(it))

    played(play)


def test_what_crashed_and_shall_go_goes() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        it.place.slow(A, 2)
        it.place.crash(NAME)
        await it.until(lambda: unready(it))
        await it.command(S.DEACTIVATE)
        await it.reach(S.LOADED)
        assert await it.endpoints() == {}
        await it.command(S.UNLOAD)
        await it.reach(None)
        assert it.place.rows == {}

    played(play)


# The agent is started again


def test_what_runs_is_adopted_by_the_next_agent() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1, 2)
        await it.command(S.LOAD, 3)
        await it.reach(S.LOADED, 3)
        before, calls = await it.endpoints(), list(it.place.calls)
        await it.restart()
        await it.clock.sleep(2 * TTL)  # the old lease is long gone
        assert await it.endpoints() == before
        assert it.place.calls == calls
        assert [await it.state(number) for number in (1, 2, 3)] == [S.ACTIVE, S.ACTIVE, S.LOADED]

    played(play)


def test_what_was_adopted_and_crashes_later_is_started_again() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        await it.restart()
        await it.clock.sleep(5)
        it.place.crash(NAME)
        await it.until(lambda: unready(it))
        await it.until(lambda: it.is_published(1))

    played(play)


@pytest.mark.parametrize("state", [S.LOADING, S.ACTIVATE, S.ACTIVATING, S.ACTIVE, S.DEACTIVATE, S.DEACTIVATING])
def test_what_does_not_run_any_more_has_failed(state: S) -> None:
    async def play(it: Scene) -> None:
        it.place.slow(A, 5)
        await it.start()
        for step in (S.LOAD, S.LOADING, S.LOADED, S.ACTIVATE, S.ACTIVATING, S.ACTIVE, S.DEACTIVATE, S.DEACTIVATING):
            if step in (S.LOAD, S.ACTIVATE, S.DEACTIVATE):
                if step is state:
                    await it.kill()
                await it.command(step)
            await it.reach(step) if step not in (S.LOAD, S.ACTIVATE, S.DEACTIVATE) else None
            if step is state:
                break
        await it.kill()
        it.place.reboot()
        await it.start()
        one = await it.reach(S.FAILED, within=10)
        assert one is not None
        assert one.why == LEFT
        assert await it.endpoints() == {}

    played(play)


def test_what_was_being_unloaded_and_does_not_run_is_gone_and_what_was_loaded_stays_so() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.command(S.LOAD, 1, 2)
        await it.reach(S.LOADED, 1, 2)
        it.place.slow(A, 5)
        await it.command(S.UNLOAD, 1)
        await it.reach(S.UNLOADING, 1)
        await it.kill()
        it.place.reboot()
        it.place.relent(A)
        await it.start()
        await it.reach(None, 1, within=10)
        assert await it.state(2) is S.LOADED
        await it.command(S.ACTIVATE, 2)
        await it.reach(S.ACTIVE, 2)
        assert it.place.rows[f"{A}#2"].life is Life.ACTIVE

    played(play)


def test_what_has_no_key_is_unloaded() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1, 2)
        await it.kill()
        await it.clock.sleep(2 * TTL)
        # The leader knows that the node is dead.
        await it.bare.delete(SLICE.fill(node=NODE, artifact=A))
        await it.start()
        await it.until(lambda: it.place.rows == {})
        assert await it.entry() is None
        await it.active(1)
        assert list(await it.endpoints()) == ["call:1"]

    played(play, audit=False)  # the leader's hand is a rough one


def test_a_node_that_comes_back_lets_the_endpoints_of_its_successor_stand() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1)
        it.store.down()
        await it.clock.sleep(2 * TTL)
        assert await it.endpoints() == {}
        # The leader knows that the node is dead, and the number is another node's.
        entry = await it.entry()
        assert entry is not None
        await it.bare.delete(entry.key)
        await it.bare.put(SLICE.fill(node="b", artifact=A), SLICE.encode(entry.value))
        endpoint = Endpoint(node_id="b", instance=1, state=S.ACTIVE, address="b:1")
        await it.bare.put(ENDPOINT.fill(artifact=A, method="call", instance=1), ENDPOINT.encode(endpoint))
        it.store.up()
        await it.until(lambda: it.place.rows == {})
        await it.clock.sleep(5)
        assert await it.endpoints() == {"call:1": endpoint}

    played(play, audit=False)  # the leader's hand is a rough one


def test_an_agent_that_leaves_takes_its_endpoints_with_it_and_the_next_brings_them_back() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1)
        await it.agent.aclose(leaving=True)
        assert await it.endpoints() == {}
        assert it.place.rows[NAME].life is Life.ACTIVE
        await it.restart()
        await it.until(lambda: it.is_published(1))

    played(play)


def test_another_life_of_a_number_is_not_served_by_the_process_of_the_last() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1)
        await it.kill()
        await it.clock.sleep(2 * TTL)
        await it.bare.delete(SLICE.fill(node=NODE, artifact=A))
        settings = SliceSettings(concurrency=7)
        await it.command(S.LOAD, 1, template=4, settings={4: settings})
        await it.start()
        await it.reach(S.LOADED)
        assert it.place.rows[NAME].run.settings == settings
        assert it.place.rows[NAME].life is Life.LOADED

    played(play, audit=False)


# The store


def test_while_the_store_is_away_what_runs_runs_and_afterwards_all_converges() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1, 2)
        calls, revision = list(it.place.calls), (await it.bare.status()).revision
        it.store.down()
        await it.clock.sleep(5)
        await it.command(S.DEACTIVATE, 2)
        await it.clock.sleep(100)
        assert it.place.calls == calls
        now = (await it.bare.status()).revision
        assert now - revision <= 2  # the leader's command, and the lease that lapsed
        assert await it.endpoints() == {}
        it.store.up()
        await it.reach(S.LOADED, 2)
        await it.until(lambda: shown(it, "call:1"))
        alive = await ALIVE.get(it.bare, node=NODE)
        page = await it.bare.range("endpoints/")
        assert alive is not None
        assert [kv.lease for kv in page.items] == [alive.lease]
        assert it.place.calls == [*calls, ("deactivate", f"{A}#2")]

    played(play)


async def shown(it: Scene, *names: str) -> bool:
    return list(await it.endpoints()) == list(names)


def test_what_crashes_while_the_store_is_away_is_started_again_and_published_when_it_is_back() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        it.store.down()
        it.place.crash(NAME)
        await it.until(lambda: it.place.rows[NAME].life is Life.ACTIVE, within=30)
        it.store.up()
        await it.until(lambda: it.is_published(1))
        one = await it.one()
        assert one is not None
        assert one.restarts == 1

    played(play, audit=False)  # nobody could take the endpoints away


def test_a_key_that_lapsed_alone_is_put_there_again_with_its_endpoints() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active()
        alive = await ALIVE.get(it.bare, node=NODE)
        assert alive is not None
        await it.bare.delete(alive.key)  # by hand: its endpoints stand, on a lease that nobody keeps alive
        await it.clock.sleep(3 * TTL)
        assert await shown(it, "call:1")
        assert (await it.audited()).alive == {NODE}

    played(play, audit=False)


def test_one_whose_node_is_another_agents_writes_nothing() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1)
        alive = await ALIVE.get(it.bare, node=NODE)
        assert alive is not None
        other = msgspec.structs.replace(alive.value, holder="another", place="elsewhere")
        revision = await it.bare.put(alive.key, ALIVE.encode(other), lease=await it.bare.grant(600))
        await it.command(S.LOAD, 2)
        await it.command(S.DEACTIVATE, 1)
        await it.clock.sleep(60)
        assert [await it.state(number) for number in (1, 2)] == [S.DEACTIVATE, S.LOAD]
        entry = await it.entry()
        assert entry is not None
        assert entry.mod_revision == revision + 2  # the two commands
        assert it.place.rows[NAME].life is Life.ACTIVE
        await it.bare.delete(alive.key)
        await it.reach(S.LOADED, 1, 2)

    played(play, audit=False)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_learned_from_a_conflict_is_done_though_the_news_are_late(seed: int) -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.command(S.LOAD, 1, 2)
        await it.reach(S.LOADED, 1, 2)
        it.store.faults.slow, it.store.faults.slowest = 0.7, 4.0
        it.place.slow(A, 1)
        await it.command(S.LOAD, 3)
        await it.reach(S.LOADING, 3)
        await it.command(S.ACTIVATE, 1)
        await it.command(S.ACTIVATE, 2)
        await it.reach(S.ACTIVE, 1, 2, within=100)
        await it.reach(S.LOADED, 3)

    played(play, seed)


def test_what_was_written_is_known_before_the_news_of_it() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.command(S.LOAD, 1)
        await it.reach(S.LOADING)
        it.store.faults.slowest = 1000.0
        it.store.script("event", "slow", prefix="slices/", times=1000)
        await it.reach(S.LOADED, within=2)

    played(play)


@pytest.mark.parametrize("kind", ["lost", "never", "unavailable"])
@pytest.mark.parametrize("nth", range(1, 8))
def test_a_write_whose_answer_is_lost_is_read_first(kind: str, nth: int) -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.until(lambda: it.agent.state().registered)
        it.store.script("txn", kind, prefix="slices/", nth=nth)  # type: ignore[arg-type]
        hand = Hand(it, 1)
        await hand.up()
        await hand.down()
        assert it.place.rows == {}
        states = [state for _, _, state in (await it.audited()).walked]
        assert S.FAILED not in states

    played(play)


@pytest.mark.parametrize("seed", seeds(test=3, pool=6, full=200))
def test_over_a_store_that_fails_in_every_way_all_converges(seed: int) -> None:
    async def play(it: Scene) -> None:
        faults, rng = it.store.faults, random.Random(seed)
        await it.start()
        hand = Hand(it, 1, 2, 3)
        faults.unavailable = faults.lost = faults.never = faults.slow = faults.lagged = 0.05
        up = asyncio.create_task(hand.up())
        for _ in range(4):
            await it.clock.sleep(rng.uniform(0.5, 3))
            it.place.crash(f"{A}#{rng.randint(1, 3)}")
        if rng.random() < 0.5:
            await it.restart()
        await up
        faults.unavailable = faults.lost = faults.never = faults.slow = faults.lagged = 0.0
        await hand.up(published=True)
        await hand.down()
        await it.until(lambda: it.place.rows == {})
        assert await it.endpoints() == {}

    played(play, seed)


# Many


def test_two_hundred_that_come_at_once_are_written_in_a_few_transactions() -> None:
    async def play(it: Scene) -> None:
        numbers = range(1, 201)
        await it.start()
        await it.active(*numbers)
        assert len(await it.endpoints()) == 200
        up = (await it.audited()).writes
        await it.command(S.DEACTIVATE, *numbers)
        await it.reach(S.LOADED, *numbers)
        await it.command(S.UNLOAD, *numbers)
        await it.reach(None, *numbers)
        down = (await it.audited()).writes - up
        # Each verb takes a while that differs by two fifths; what ends within one pace is written together.
        assert up <= 20
        assert down <= 20
        assert await it.endpoints() == {}

    played(play)


def test_a_node_at_rest_asks_nobody_anything_of_its_slices() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(*range(1, 51))
        await it.clock.sleep(5)
        listings, steps = it.keeper.sight.listings, it.keeper.workers.steps
        turns, written = it.keeper.workers.queue.turns, it.keeper.ledger.transactions
        await it.clock.sleep(250)
        assert it.keeper.sight.listings == listings
        assert (it.keeper.workers.steps, it.keeper.ledger.transactions) == (steps, written)
        assert it.keeper.workers.queue.turns == turns
        assert it.keeper.workers.queue.waiting == 0

    played(play)


def test_instances_of_one_key_go_their_own_ways() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1)
        await it.command(S.LOAD, 2)
        it.place.refuse(A, "load")
        await it.command(S.LOAD, 5)
        await it.reach(S.FAILED, 2, 5)
        entry = await it.entry()
        assert entry is not None
        assert entry.value.state is S.ACTIVE
        it.place.crash(f"{A}#1")
        it.place.relent(A)
        await it.command(S.UNLOAD, 5)
        await it.reach(None, 5)
        await it.until(lambda: it.is_published(1))
        assert await it.state(2) is S.FAILED

    played(play)


def test_an_interface_that_is_too_large_for_one_transaction_is_published_before() -> None:
    async def play(it: Scene) -> None:
        it.place.methods[A] = tuple(Method(name=f"m{number:03}") for number in range(300))
        await it.start()
        await it.active(1, 2)
        assert len(await it.endpoints()) == 600
        entry = await it.entry()
        assert entry is not None
        assert len(entry.value.methods) == 300
        await it.command(S.DEACTIVATE, 1, 2)
        await it.reach(S.LOADED, 1, 2)
        assert await it.endpoints() == {}

    played(play)


# What the records say


def test_instances_run_with_the_settings_of_their_templates() -> None:
    async def play(it: Scene) -> None:
        usual, small = SliceSettings(), SliceSettings(memory_mib=64, environment={"A": "b"})
        await it.start()
        await it.command(S.LOAD, 1)
        await it.command(S.LOAD, 2, template=3, settings={3: small})
        await it.reach(S.LOADED, 1, 2)
        runs = {name: row.run for name, row in it.place.rows.items()}
        assert (runs[f"{A}#1"].settings, runs[f"{A}#1"].template) == (usual, 0)
        assert (runs[f"{A}#2"].settings, runs[f"{A}#2"].template) == (small, 3)
        entry = await it.entry()
        assert entry is not None
        assert entry.value.settings == {3: small}

    played(play)


def test_a_record_that_another_program_wrote_has_one_instance() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        key = SLICE.fill(node=NODE, artifact=A)
        await it.bare.put(key, b'{"state": "LOAD", "timestamp": 5, "colour": "red"}')
        await it.reach(S.LOADED)
        kv = await it.bare.get(key)
        assert kv is not None
        said = msgspec.json.decode(kv.value)
        assert (said["state"], said["colour"], list(said["instances"])) == ("LOADED", "red", ["1"])
        await it.bare.put(key, b'{"state": "ACTIVATE", "timestamp": 9}')
        await it.reach(S.ACTIVE)
        await it.bare.put(key, b'{"state": "DEACTIVATE", "timestamp": 9}')
        await it.reach(S.LOADED)
        # It said nothing of methods: what this process published goes all the same.
        assert await it.endpoints() == {}

    played(play, audit=False)


def test_what_cannot_be_read_is_left_alone() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        await it.active(1)
        calls, key = list(it.place.calls), SLICE.fill(node=NODE, artifact=A)
        kv = await it.bare.get(key)
        assert kv is not None
        await it.bare.put(key, b'{"state": "DANCING"}')
        it.place.crash(f"{A}#2")
        await it.clock.sleep(30)
        await it.restart()
        await it.clock.sleep(30)
        found = await it.bare.get(key)
        assert found is not None
        assert found.value == b'{"state": "DANCING"}'
        assert it.place.calls == calls
        await it.bare.put(key, kv.value)
        await it.until(lambda: it.is_published(1))

    played(play, audit=False)


def test_the_driver_is_told_whose_calls_to_take() -> None:
    async def play(it: Scene) -> None:
        await it.start()
        for name in ("b", "c"):
            record = RouterRecord(router=name, token_sha256=name * 64, started_at=0.0)
            await it.bare.put(ROUTER.fill(router=name), ROUTER.encode(record))
        await it.until(lambda: it.place.admitted == {"b" * 64, "c" * 64}, within=1)
        await it.bare.delete(ROUTER.fill(router="b"))
        await it.until(lambda: it.place.admitted == {"c" * 64}, within=1)

    played(play)


def test_a_driver_that_is_out_of_reach_is_asked_again() -> None:
    async def play(it: Scene) -> None:
        it.place.down()
        await it.start()
        await it.command(S.LOAD)
        await it.clock.sleep(10)
        assert await it.state() is S.LOAD
        it.place.up()
        await it.reach(S.LOADED, within=10)

    played(play)


# Killed


class Cut:
    """A store whose nth transaction on slices ends its process: before it is done, or after."""

    def __init__(self, it: Scene, nth: int, *, after: bool) -> None:
        self._it, self._left, self._after = it, nth, after
        self.met = asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._it.store, name)

    async def txn(self, when: object, then: list[object], otherwise: object = ()) -> object:
        if not any(getattr(one, "key", "").startswith(("slices/", "endpoints/")) for one in then) or self.met.is_set():
            return await self._it.store.txn(when, then, otherwise)  # type: ignore[arg-type]
        self._left -= 1
        if self._left == 0 and not self._after:
            self.met.set()
            await asyncio.Event().wait()
        result = await self._it.store.txn(when, then, otherwise)  # type: ignore[arg-type]
        if self._left == 0:
            self.met.set()
            await asyncio.Event().wait()
        return result


async def lived(it: Scene, cut: Cut, how: str) -> bool:
    """A life of two instances, with a crash; whether it was cut."""

    async def life() -> None:
        hand = Hand(it, 1, 2)
        await hand.up()
        it.place.crash(NAME)
        await it.clock.sleep(0.5)
        await hand.up(published=True)
        await hand.down()
        await it.until(lambda: it.place.rows == {})
        assert await it.endpoints() == {}

    async def death() -> None:
        await cut.met.wait()
        await it.kill()
        if how == "rebooted":
            it.place.reboot()
        if how == "late":
            await it.clock.sleep(2 * TTL)
        await it.start()

    await it.start(cut)  # type: ignore[arg-type]
    living, dying = asyncio.create_task(life()), asyncio.create_task(death())
    try:
        await living
    finally:
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
    return cut.met.is_set()


@pytest.mark.parametrize("how", ["at once", "rebooted", "late"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_transaction_it_converges_and_no_endpoint_stands_that_must_not(how: str, after: bool) -> None:
    points = 0

    async def play(it: Scene) -> None:
        nonlocal points
        if await lived(it, Cut(it, points + 1, after=after), how):
            points += 1
        else:
            points = -points

    while points >= 0:
        played(play)
        assert points < 60
    assert -points >= 12
