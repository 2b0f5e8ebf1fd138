"""A store in a test namespace behaves as a production store that holds the same keys."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.drivers.store.memory import MemoryStore
from hostler.errors import Closed, Compacted, FutureRevision, Invalid, TooLarge
from hostler.keys import namespace
from hostler.keys.namespace import SLASH_ROOTS, Namespace, NamespacedStore
from hostler.ports.store import (
    MAX_REQUEST_BYTES,
    OPERATION_OVERHEAD,
    Delete,
    DeletePrefix,
    Get,
    Put,
    Store,
    Value,
    Version,
)
from hostler.testing import VirtualClock, run_virtual, store_claims

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hostler.testing import Claim

STANDARD = Namespace("Standard")
TOO_CLOSE_TO_THE_LIMIT = "a_request_of_the_greatest_size_is_taken_and_one_byte_more_is_not"


def conforming() -> NamespacedStore:
    return NamespacedStore(
        MemoryStore(clock=VirtualClock()), Namespace("Standard", slash_roots=(*SLASH_ROOTS, "/check-store/"))
    )


@pytest.mark.parametrize(
    "claim", [claim for claim in store_claims(persistent=False) if claim.name != TOO_CLOSE_TO_THE_LIMIT], ids=str
)
def test_a_store_in_a_namespace_is_a_store(claim: Claim) -> None:
    run_virtual(lambda: claim.check(conforming, persistent=False))


async def test_a_request_has_room_for_its_keys_as_they_stand() -> None:
    async with NamespacedStore(MemoryStore(), STANDARD) as store:
        assert isinstance(store, Store)
        key = "slices/x"
        room = MAX_REQUEST_BYTES - OPERATION_OVERHEAD - len(STANDARD.stored(key))
        await store.put(key, b"x" * room)
        with pytest.raises(TooLarge):
            await store.put(key, b"x" * (room + 1))


# Side by side: a production store, and one in a namespace with neighbours around it.

KEYS = [
    "!low",
    "-",
    ".x",
    "0",
    "blueprints/b",
    "endpoints/a:b:1/m:1",
    "slices/n/a:b:1",
    "sysvvm/1/1",
    "users",
    "u",
    "plasma",
]
KEYS += ["user", "usersx/y", "racks-", "zz", "hostler", "\U0010ffff", "rac", "workloadz/1", "plasmavmc", "p/q"]
KEYS += [root + tail for root in SLASH_ROOTS for tail in ("a", "a/b", "b", "0", "\U0010ffff")]
PREFIXES = sorted(
    {key[:cut] for key in KEYS for cut in range(len(key) + 1)} | {"/zz", "users/", "users/a", "plasmavmc/", "//"}
)
NEIGHBOURS = [
    "/CloudChamber/V0.1/Test/StandardX/users/a",
    "/CloudChamber/V0.1/Test/Standard",
    "/CloudChamber/V0.1/Test/A/b",
]
NEIGHBOURS += ["/CloudChamber/V0.1/Test/Standard//junk", "/CloudChamber/V0.1/Test/Standard//", *KEYS]

keys = st.sampled_from(KEYS)
prefixes = st.sampled_from(PREFIXES)
afters = st.none() | keys | prefixes | st.builds(str.__add__, keys, st.sampled_from(["\0", "0", "/"]))
operations = (
    st.builds(Put, keys, st.binary(max_size=2))
    | st.builds(Delete, keys)
    | st.builds(Get, keys)
    | st.builds(DeletePrefix, prefixes.filter(bool))
)
steps = st.one_of(
    st.tuples(st.just("put"), keys, st.binary(max_size=2)),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("delete_prefix"), prefixes),
    st.tuples(
        st.just("txn"),
        st.lists(
            st.builds(lambda k, n: Version(k) == n, keys, st.integers(0, 2))
            | st.builds(lambda k: Value(k) > b"", keys),
            max_size=2,
        ),
        st.lists(operations, max_size=4),
        st.lists(operations, max_size=4),
    ),
    st.tuples(st.just("get"), keys),
    st.tuples(st.just("range"), prefixes, afters, st.none() | st.integers(1, 4)),
)


async def outcome(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except Invalid as error:
        return type(error)


async def do(store: Store, step: tuple[Any, ...]) -> Any:
    verb, *arguments = step
    if verb == "range":
        return await store.range(arguments[0], after=arguments[1], limit=arguments[2])
    return await outcome(getattr(store, verb)(*arguments))


def mixed(step: tuple[Any, ...]) -> bool:
    """Whether the step deletes by a prefix that a test namespace refuses."""
    found = [step[1]] if step[0] == "delete_prefix" else []
    if step[0] == "txn":
        found = [op.prefix for op in (*step[2], *step[3]) if isinstance(op, DeletePrefix)]
    return any(not run.pure for prefix in found if prefix for run in STANDARD.runs(prefix))


def shifted(answer: Any, by: int) -> Any:
    """The answer with its revisions moved: the shared store counts the neighbours' writes too."""
    builtins = msgspec.to_builtins(answer) if not isinstance(answer, type) else answer
    if isinstance(builtins, dict):
        return {
            name: value + by if name.endswith("revision") and value else shifted(value, by)
            for name, value in builtins.items()
        }
    if isinstance(builtins, list | tuple):
        return [shifted(value, by) for value in builtins]
    return builtins


@settings(max_examples=dose(test=150, full=5_000), deadline=None)
@given(st.lists(steps, max_size=14), st.lists(prefixes, min_size=1, max_size=3))
def test_production_and_test_namespace_give_the_same_answers(plan: list[tuple[Any, ...]], watched: list[str]) -> None:
    asyncio.run(side_by_side(plan, watched))


async def side_by_side(plan: list[tuple[Any, ...]], watched: list[str]) -> None:
    async with MemoryStore() as plain, MemoryStore() as shared:
        for key in NEIGHBOURS:
            await shared.put(key, b"theirs")
        by = len(NEIGHBOURS)
        inside = NamespacedStore(shared, STANDARD)
        left = [plain.watch(prefix) for prefix in watched]
        right = [inside.watch(prefix) for prefix in watched]
        for watch in (*left, *right):
            await watch.__aenter__()
        for step in plan:
            if mixed(step):
                with pytest.raises(Invalid):
                    await getattr(inside, step[0])(*step[1:])
                continue
            one, other = await do(plain, step), await do(inside, step)
            if step[0] == "put":
                one = one + by
                assert other == one
            else:
                assert shifted(other, 0) == shifted(one, by), step
        for one_watch, other_watch in zip(left, right):
            await compare_events(one_watch, other_watch, by)
        for prefix in watched:
            for limit in (None, 1, 3):
                assert shifted(await pages(inside, prefix, limit), 0) == shifted(await pages(plain, prefix, limit), by)
        for key in NEIGHBOURS:
            kv = await shared.get(key)
            assert kv is not None
            assert kv.value == b"theirs"


async def compare_events(one_watch: Any, other_watch: Any, by: int) -> None:
    while True:
        one = await next_now(one_watch)
        other = await next_now(other_watch)
        assert shifted(other, 0) == shifted(one, by)
        if one is None:
            return


async def next_now(watch: Any) -> Any:
    """The next event that is there already, or None. (Reading is one step of the event loop in memory.)"""
    task = asyncio.ensure_future(anext(watch))
    for _ in range(5):
        await asyncio.sleep(0)
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def pages(store: Store, prefix: str, limit: int | None) -> list[Any]:
    page = await store.range(prefix, limit=limit)
    items = list(page.items)
    while page.more:
        page = await store.range(prefix, after=items[-1].key, limit=limit, revision=page.revision)
        items += page.items
    return items


async def test_every_prefix_gives_the_keys_of_production_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "CHUNK", 3)
    async with MemoryStore() as plain, MemoryStore() as shared:
        inside = NamespacedStore(shared, STANDARD)
        for key in NEIGHBOURS:
            await shared.put(key, b"theirs")
        for key in KEYS:
            await plain.put(key, key.encode())
            await inside.put(key, key.encode())
        for prefix in PREFIXES:
            expected = [kv.key for kv in (await plain.range(prefix)).items]
            for limit in (None, 1, 2, 100):
                found = await pages(inside, prefix, limit)
                assert [kv.key for kv in found] == expected, (prefix, limit)
                assert all(kv.value == kv.key.encode() for kv in found)


async def test_a_range_over_all_roots_is_of_one_revision() -> None:
    async with MemoryStore() as shared:
        inside = NamespacedStore(shared, STANDARD)
        for key in KEYS:
            await inside.put(key, b"")
        page = await inside.range("", limit=2)
        await inside.delete_prefix("/")
        rest = await inside.range("", after=page.items[-1].key, revision=page.revision)
        assert [kv.key for kv in (*page.items, *rest.items)] == sorted(KEYS)
        assert rest.revision == page.revision
        assert {kv.key for kv in (await inside.range("")).items} == {key for key in KEYS if not key.startswith("/")}
        with pytest.raises(FutureRevision):
            await inside.range("", revision=10_000)
        await inside.compact(page.revision + 1)
        for prefix in ("", "/zz", "slices/", "u"):
            with pytest.raises(Compacted):
                await inside.range(prefix, revision=page.revision)


@pytest.mark.parametrize("prefix", ["", "/", "/zz", "u", "users/", "slices/"])
async def test_a_closed_store_says_so_whatever_the_prefix(prefix: str) -> None:
    store = NamespacedStore(MemoryStore(), STANDARD)
    async with store:
        pass
    with pytest.raises(Closed):
        await store.range(prefix)
    with pytest.raises(Closed):
        async with store.watch(prefix):
            pass
    if prefix not in ("", "u"):
        with pytest.raises(Closed):
            await store.delete_prefix(prefix)


@pytest.mark.parametrize("key", ["/unheard/of", "users/x", "/"])
async def test_a_key_without_a_way_back_is_refused_by_every_verb(key: str) -> None:
    async with NamespacedStore(MemoryStore(), STANDARD) as store:
        refused = [
            store.get(key),
            store.put(key, b""),
            store.delete(key),
            store.txn([Version(key) == 0], []),
            store.txn([], [Put(key, b"")]),
            store.txn([], [Put("slices/a", b"")], [Get(key)]),
            store.txn([], [Delete(key), Put("slices/a", b"")]),
        ]
        for work in refused:
            with pytest.raises(Invalid):
                await work
        assert (await store.range("")).items == ()


async def test_status_names_the_namespace() -> None:
    async with NamespacedStore(MemoryStore(), STANDARD) as store:
        assert (await store.status()).details["namespace"] == STANDARD.prefix
