"""Claims: one revision for each transaction that changes something; compacted history is never invented."""

from __future__ import annotations

from hostler.errors import Compacted, FutureRevision
from hostler.ports.store import Delete, DeletePrefix, Get, KeyValue, Put, Version
from hostler.testing.store.claim import Trial, claim, refused, take, values


@claim()
async def a_put_takes_the_next_revision(t: Trial) -> None:
    before = await t.revision()
    assert before >= 1
    for step in range(1, 6):
        assert await t.store.put(t.key("a"), b"%d" % step) == before + step
    assert await t.revision() == before + 5


@claim()
async def a_delete_takes_the_next_revision(t: Trial) -> None:
    before = await t.store.put(t.key("a"), b"1")
    assert await t.store.delete(t.key("a")) is True
    assert await t.revision() == before + 1


@claim()
async def all_operations_of_a_transaction_share_one_revision(t: Trial) -> None:
    await t.store.put(t.key("old"), b"")
    before = await t.revision()
    result = await t.store.txn([], [Put(t.key("a"), b"1"), Put(t.key("b"), b"2"), Delete(t.key("old"))])
    assert result.revision == before + 1 == await t.revision()
    assert {kv.mod_revision for kv in (await t.all()).items} == {before + 1}


@claim()
async def what_changes_nothing_takes_no_revision(t: Trial) -> None:
    await t.store.put(t.key("a"), b"1")
    before = await t.revision()
    assert await t.store.delete(t.key("absent")) is False
    assert await t.store.delete_prefix(t.key("absent/")) == 0
    await t.store.get(t.key("a"))
    for result in (
        await t.store.txn([], [Get(t.key("a"))]),
        await t.store.txn([], []),
        await t.store.txn([Version(t.key("a")) == 0], [Put(t.key("b"), b"")]),
        await t.store.txn([], [Delete(t.key("absent")), DeletePrefix(t.key("absent/"))]),
    ):
        assert result.revision == before
    lease = await t.store.grant(60)
    await lease.revoke()
    assert await t.revision() == before


@claim()
async def a_put_of_the_same_value_is_a_change(t: Trial) -> None:
    first = await t.store.put(t.key("a"), b"same")
    assert await t.store.put(t.key("a"), b"same") == first + 1
    assert (await t.got(t.key("a"))).version == 2


@claim()
async def a_key_tells_when_it_was_created_and_changed_and_how_often(t: Trial) -> None:
    key = t.key("a")
    created = await t.store.put(key, b"1")
    assert await t.store.get(key) == KeyValue(key, b"1", created, created, 1)
    await t.store.put(t.key("other"), b"")
    changed = await t.store.put(key, b"2")
    assert changed == created + 2
    assert await t.store.get(key) == KeyValue(key, b"2", created, changed, 2)


@claim()
async def a_deleted_key_starts_again_at_version_one(t: Trial) -> None:
    key = t.key("a")
    await t.store.put(key, b"1")
    await t.store.put(key, b"2")
    await t.store.delete(key)
    assert await t.store.get(key) is None
    again = await t.store.put(key, b"3")
    assert await t.store.get(key) == KeyValue(key, b"3", again, again, 1)
    await t.store.delete_prefix(t.prefix)
    again = await t.store.put(key, b"4")
    assert await t.store.get(key) == KeyValue(key, b"4", again, again, 1)


@claim()
async def delete_says_whether_there_was_a_key(t: Trial) -> None:
    await t.store.put(t.key("a"), b"")
    assert await t.store.delete(t.key("a")) is True
    assert await t.store.delete(t.key("a")) is False


@claim()
async def delete_prefix_deletes_what_starts_with_it_in_one_transaction(t: Trial) -> None:
    names = ["rack1", "rack1/", "rack1/a", "rack1/a/b", "rack1/\U0010ffff", "rack10", "rack10/a", "rack2/a"]
    for name in names:
        await t.store.put(t.key(name), name.encode())
    before = await t.revision()
    async with t.store.watch(t.prefix) as watch:
        assert await t.store.delete_prefix(t.key("rack1/")) == 4
        events = await take(watch, 4)
    assert await t.revision() == before + 1
    assert [event.kv.key for event in events] == [t.key(name) for name in names[1:5]]
    assert {event.kv.mod_revision for event in events} == {before + 1}
    assert list(await t.state()) == [t.key(name) for name in ("rack1", "rack10", "rack10/a", "rack2/a")]


@claim()
async def an_old_revision_shows_what_was_there_then(t: Trial) -> None:
    snapshots: dict[int, tuple[KeyValue, ...]] = {}

    async def note() -> None:
        page = await t.all()
        snapshots[page.revision] = page.items

    a, b = t.key("a"), t.key("b")
    for step in range(3):
        await t.store.put(a, b"%d" % step)
        await note()
        await t.store.txn([], [Delete(a), Put(b, b"%d" % step)])
        await note()
        await t.store.delete_prefix(t.prefix)
        await note()
        await t.store.put(t.key(f"c{step}"), b"")
        await note()
    assert len(snapshots) == 12
    for revision, items in snapshots.items():
        page = await t.all(revision=revision)
        assert page.items == items
        assert page.revision == revision
        by_key = {kv.key: kv for kv in items}
        for key in (a, b, t.key("c0"), t.key("never")):
            assert await t.store.get(key, revision=revision) == by_key.get(key)


@claim(reopens=True)
async def a_reopened_store_holds_what_was_written_and_counts_on(t: Trial) -> None:
    await t.store.put(t.key("a"), b"1")
    old = await t.store.put(t.key("a"), bytes(range(256)))
    await t.store.put(t.key("b"), b"")
    await t.store.delete(t.key("b"))
    before = await t.all()
    store = await t.reopen()
    assert await t.all() == before
    assert await store.put(t.key("b"), b"again") == before.revision + 1
    assert (await t.got(t.key("b"))).version == 1
    assert await store.put(t.key("a"), b"3") == before.revision + 2
    assert (await t.got(t.key("a"))).version == 3
    try:
        page = await t.all(revision=old)
    except Compacted:
        return  # history need not outlive the process, as long as no reader gets wrong data
    assert values(page.items) == {t.key("a"): bytes(range(256))}


async def _history(t: Trial) -> list[int]:
    """Write ten revisions: a key with many versions, one deleted early, one deleted late, one re-created."""
    put, delete = t.store.put, t.store.delete
    revisions = [await put(t.key("gone-early"), b"1"), await put(t.key("gone-late"), b"1")]
    revisions += [await put(t.key("often"), b"%d" % number) for number in range(3)]
    await delete(t.key("gone-early"))
    revisions += [revisions[-1] + 1, await put(t.key("again"), b"1")]
    await delete(t.key("again"))
    revisions += [revisions[-1] + 1, await put(t.key("again"), b"2")]
    await delete(t.key("gone-late"))
    return [*revisions, revisions[-1] + 1]


@claim()
async def after_compaction_older_reads_say_compacted(t: Trial) -> None:
    revisions = await _history(t)
    at = revisions[5]
    await t.store.compact(at)
    for revision in revisions[:5]:
        with refused(Compacted) as of_get:
            await t.store.get(t.key("often"), revision=revision)
        assert of_get.error.revision == at
        with refused(Compacted) as of_range:
            await t.all(revision=revision)
        assert of_range.error.revision == at


@claim()
async def compaction_changes_nothing_from_its_revision_on(t: Trial) -> None:
    revisions = await _history(t)
    before = {revision: await t.all(revision=revision) for revision in revisions}
    now = await t.all()
    for index in (1, 4, 5, 7, 9):
        await t.store.compact(revisions[index])
        for revision in revisions[index:]:
            assert await t.all(revision=revision) == before[revision]
            for kv in before[revision].items:
                assert await t.store.get(kv.key, revision=revision) == kv
        assert await t.all() == now
    assert (await t.got(t.key("often"))).version == 3
    assert await t.store.put(t.key("often"), b"next") == now.revision + 1
    assert (await t.got(t.key("often"))).version == 4


@claim()
async def compacting_to_where_it_is_already_says_compacted(t: Trial) -> None:
    revisions = await _history(t)
    await t.store.compact(revisions[4])
    for revision in (revisions[4], revisions[3], revisions[0]):
        with refused(Compacted) as refusal:
            await t.store.compact(revision)
        assert refusal.error.revision == revisions[4]
    await t.store.compact(revisions[5])


@claim()
async def compacting_the_future_is_refused(t: Trial) -> None:
    revision = await t.store.put(t.key("a"), b"1")
    old = await t.store.put(t.key("a"), b"2") - 1
    assert old == revision
    with refused(FutureRevision):
        await t.store.compact(old + 2)
    kv = await t.store.get(t.key("a"), revision=old)
    assert kv is not None
    assert kv.value == b"1"


@claim()
async def compacting_to_now_keeps_every_value(t: Trial) -> None:
    revisions = await _history(t)
    now = await t.all()
    await t.store.compact(revisions[-1])
    assert await t.all() == now
    assert await t.all(revision=revisions[-1]) == now
    assert await t.store.get(t.key("gone-early")) is None
    again = await t.store.put(t.key("gone-early"), b"")
    kv = await t.got(t.key("gone-early"))
    assert (kv.create_revision, kv.version) == (again, 1)


@claim()
async def a_watch_from_before_the_compaction_says_compacted(t: Trial) -> None:
    revisions = await _history(t)
    at = revisions[5]
    await t.store.compact(at)
    for start in (revisions[0], revisions[4]):
        with refused(Compacted) as refusal:
            async with t.store.watch(t.prefix, start_revision=start) as watch:
                await take(watch, 1)
        assert refusal.error.revision == at


@claim()
async def a_watch_from_the_compaction_on_has_every_event(t: Trial) -> None:
    revisions = await _history(t)
    async with t.store.watch(t.prefix, start_revision=revisions[0]) as watch:
        every = await take(watch, len(revisions))
    await t.store.compact(revisions[6])
    for index in (6, 7, 8, 9):
        async with t.store.watch(t.prefix, start_revision=revisions[index]) as watch:
            events = await take(watch, len(revisions) - index)
        assert [(event.type, event.kv) for event in events] == [(event.type, event.kv) for event in every[index:]]
        # The previous value of the first event may be compacted.
        assert [event.previous for event in events[1:]] == [event.previous for event in every[index + 1 :]]


@claim()
async def a_live_watch_goes_on_over_a_compaction(t: Trial) -> None:
    async with t.store.watch(t.prefix) as watch:
        revision = await t.store.put(t.key("a"), b"1")
        assert len(await take(watch, 1)) == 1
        await t.store.compact(revision)
        await t.store.put(t.key("a"), b"2")
        (event,) = await take(watch, 1)
        assert event.kv.value == b"2"


@claim()
async def every_client_sees_the_compaction(t: Trial) -> None:
    other = await t.second()
    old = await t.store.put(t.key("a"), b"1")
    await t.store.put(t.key("a"), b"2")
    at = await t.store.put(t.key("a"), b"3")
    assert (await other.range(t.prefix, revision=old)).revision == old
    await t.store.compact(at)
    with refused(Compacted) as refusal:
        await other.get(t.key("a"), revision=old)
    assert refusal.error.revision == at
    with refused(Compacted):
        await other.compact(at)


@claim()
async def a_large_history_can_be_compacted(t: Trial) -> None:
    for number in range(10):
        await t.store.txn([], [Put(t.key(f"{key}"), b"%d" % number) for key in range(100)])
    now = await t.all()
    await t.store.compact(now.revision - 1)
    assert await t.all() == now
    assert {kv.value for kv in (await t.all(revision=now.revision - 1)).items} == {b"8"}


@claim(reopens=True)
async def a_compaction_outlives_the_client(t: Trial) -> None:
    old = await t.store.put(t.key("a"), b"1")
    at = await t.store.put(t.key("a"), b"2")
    await t.store.compact(at)
    store = await t.reopen()
    with refused(Compacted):
        await store.get(t.key("a"), revision=old)
    assert (await t.got(t.key("a"))).value == b"2"
