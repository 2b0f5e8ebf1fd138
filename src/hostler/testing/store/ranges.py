"""Claims: keys in order, page by page, as of one revision."""

from __future__ import annotations

import asyncio

from hostler.errors import FutureRevision
from hostler.ports.store import Put
from hostler.testing.store.claim import Trial, claim, refused, values

# Python and etcd sort these in the order of their UTF-8 bytes; UTF-16 or a locale would not.
IN_ORDER: tuple[str, ...] = (
    "\0",
    "\0a",
    "\n",
    " ",
    "/",
    "0",
    "A",
    "Z",
    "a",
    "aa",
    "ab",
    "b",
    "z",
    "\x7f",
    "\x80",
    "é",
    "ÿ",
    "Ā",
)
IN_ORDER += ("߿", "ࠀ", "中", "\ud7ff", "\ue000", "\ufffd", "\uffff", "\U00010000", "😀", "\U0010ffff", "\U0010ffffa")


@claim()
async def a_range_is_in_the_order_of_code_points(t: Trial) -> None:
    for name in reversed(IN_ORDER):
        await t.store.put(t.key(name), name.encode())
    page = await t.all()
    assert [kv.key for kv in page.items] == [t.key(name) for name in IN_ORDER]
    assert [kv.value for kv in page.items] == [name.encode() for name in IN_ORDER]
    assert page.more is False
    for name in IN_ORDER:
        assert (await t.got(t.key(name))).key == t.key(name)


@claim()
async def a_prefix_ends_where_it_ends(t: Trial) -> None:
    for prefix in ("rack1/", "a", "\x7f", "ÿ", "߿", "\ud7ff", "\uffff", "\U0010ffff", "\U0010ffff\U0010ffff", "\0"):
        names = [prefix, prefix + "\0", prefix + "x", prefix + "\U0010ffff\U0010ffff"]
        others = [prefix[:-1] + chr(ord(prefix[-1]) - 1) + "z"] if prefix[-1] > "\0" else []
        if prefix[-1] < "\U0010ffff":
            following = ord(prefix[-1]) + 1
            others.append(prefix[:-1] + chr(0xE000 if following == 0xD800 else following))
        root = t.key(f"{ord(prefix[0])}-{len(prefix)}/")
        await t.store.txn([], [Put(root + name, b"") for name in (*names, *others)])
        page = await t.store.range(root + prefix)
        assert [kv.key for kv in page.items] == [root + name for name in names]
        assert await t.store.delete_prefix(root + prefix) == len(names)
        assert {kv.key for kv in (await t.store.range(root)).items} == {root + name for name in others}


@claim()
async def rack1_with_a_slash_does_not_match_rack10(t: Trial) -> None:
    for name in ("rack1", "rack1/blade", "rack10/blade", "rack11"):
        await t.store.put(t.key(name), b"")
    assert list(await t.state(under="rack1/")) == [t.key("rack1/blade")]
    assert len(await t.state(under="rack1")) == 4


@claim()
async def the_empty_prefix_is_every_key(t: Trial) -> None:
    await t.store.put(t.key("a"), b"1")
    await t.store.put(t.key("b"), b"2")
    page = await t.store.range("")
    mine = [kv for kv in page.items if kv.key.startswith(t.prefix)]
    assert values(mine) == {t.key("a"): b"1", t.key("b"): b"2"}
    assert [kv.key for kv in page.items] == sorted(kv.key for kv in page.items)
    page = await t.store.range("", after=t.key("a"), limit=1)
    assert [kv.key for kv in page.items] == [t.key("b")]


@claim()
async def a_range_of_nothing_is_an_empty_page(t: Trial) -> None:
    revision = await t.store.put(t.key("a"), b"")
    page = await t.store.range(t.key("nothing/"))
    assert (page.items, page.revision, page.more) == ((), revision, False)


@claim()
async def limit_after_and_more_cut_a_range_into_pages(t: Trial) -> None:
    names = [f"{number:02}" for number in range(10)]
    await t.store.txn([], [Put(t.key(name), name.encode()) for name in names])
    for limit in (1, 3, 5, 9, 10, 11):
        seen: list[str] = []
        after = None
        while True:
            page = await t.store.range(t.prefix, after=after, limit=limit)
            seen += [kv.key for kv in page.items]
            assert len(page.items) == min(limit, 10 - len(seen) + len(page.items))
            assert page.more is (len(seen) < 10)
            if not page.more:
                break
            after = seen[-1]
        assert seen == [t.key(name) for name in names]


@claim()
async def after_need_not_be_a_key_that_exists(t: Trial) -> None:
    for name in ("b", "d", "f"):
        await t.store.put(t.key(name), b"")

    async def after(text: str) -> list[str]:
        page = await t.store.range(t.prefix, after=text)
        return [kv.key.removeprefix(t.prefix) for kv in page.items]

    assert await after(t.key("b")) == ["d", "f"]
    assert await after(t.key("c")) == ["d", "f"]
    assert await after(t.key("b\0")) == ["d", "f"]
    assert await after(t.key("f")) == []
    assert await after(t.key("z")) == []
    assert await after("\U0010ffff") == []
    assert await after(t.prefix) == ["b", "d", "f"]
    assert await after("") == ["b", "d", "f"]
    assert await after("\0") == ["b", "d", "f"]


@claim()
async def keys_only_leaves_out_the_values_and_nothing_else(t: Trial) -> None:
    lease = await t.store.grant(60)
    await t.store.put(t.key("a"), b"1")
    await t.store.put(t.key("a"), b"2")
    await t.store.put(t.key("b"), b"3", lease=lease)
    whole = (await t.all()).items
    page = await t.store.range(t.prefix, keys_only=True)
    assert [kv.value for kv in page.items] == [b"", b""]
    for bare, full in zip(page.items, whole, strict=True):
        assert (bare.key, bare.create_revision, bare.mod_revision, bare.version, bare.lease) == (
            full.key,
            full.create_revision,
            full.mod_revision,
            full.version,
            full.lease,
        )


@claim()
async def pages_are_consistent_at_one_revision_while_others_write(t: Trial) -> None:
    for number in range(40):
        await t.store.put(t.key(f"{number:02}"), b"before")
    whole = await t.all()
    writer = await t.second()
    done = asyncio.Event()

    async def disturb() -> None:
        for number in range(39, -1, -1):
            await writer.put(t.key(f"{number:02}"), b"after")
            await writer.put(t.key(f"{number:02}-new"), b"after")
            if number % 3 == 0:
                await writer.delete(t.key(f"{number:02}"))
        done.set()

    async def read() -> None:
        while True:
            items = list((page := await t.store.range(t.prefix, limit=7, revision=whole.revision)).items)
            while page.more:
                after = items[-1].key
                page = await t.store.range(t.prefix, after=after, limit=7, revision=whole.revision)
                items += page.items
            assert tuple(items) == whole.items
            if done.is_set():
                return

    await asyncio.gather(disturb(), read())


@claim()
async def a_revision_that_has_not_happened_cannot_be_read(t: Trial) -> None:
    revision = await t.store.put(t.key("a"), b"")
    for ahead in (1, 1_000_000):
        with refused(FutureRevision):
            await t.store.get(t.key("a"), revision=revision + ahead)
        with refused(FutureRevision):
            await t.store.range(t.prefix, revision=revision + ahead)
    assert (await t.store.range(t.prefix, revision=revision)).revision == revision


@claim()
async def a_range_of_many_large_values_arrives_whole(t: Trial) -> None:
    large = {t.key(f"{number}"): bytes([number]) * 1_000_000 for number in range(6)}
    for key, value in large.items():
        await t.store.put(key, value)
    assert await t.state() == large
