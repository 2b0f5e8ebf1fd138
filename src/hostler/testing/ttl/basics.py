"""Operations without concurrency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.errors import Invalid
from hostler.ports.ttl import MAX_VALUE_BYTES
from hostler.testing.claim import refused
from hostler.testing.ttl.claim import LONG, claim

if TYPE_CHECKING:
    from hostler.testing.ttl.claim import TtlTrial


@claim()
async def a_key_that_was_never_written_has_no_record(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.get(key) is None
    assert await t.storage.compare_and_swap(key, "old", "new", ttl=LONG) is False
    assert await t.storage.compare_and_delete(key, "old") is False
    assert await t.storage.get(key) is None


@claim()
async def an_inserted_record_is_there_for_everybody(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "mine", ttl=LONG) is True
    assert await t.storage.get(key) == "mine"
    assert await t.other.get(key) == "mine"


@claim()
async def a_live_record_is_not_inserted_over(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "mine", ttl=LONG)
    assert await t.other.insert_if_not_exist(key, "theirs", ttl=LONG) is False
    assert await t.other.insert_if_not_exist(key, "mine", ttl=LONG) is False
    assert await t.storage.get(key) == "mine"


@claim()
async def a_swap_replaces_the_value_it_names_and_no_other(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "one", ttl=LONG)
    assert await t.other.compare_and_swap(key, "One", "two", ttl=LONG) is False
    assert await t.other.compare_and_swap(key, "on", "two", ttl=LONG) is False
    assert await t.storage.get(key) == "one"
    assert await t.other.compare_and_swap(key, "one", "two", ttl=LONG) is True
    assert await t.storage.get(key) == "two"
    assert await t.storage.compare_and_swap(key, "one", "three", ttl=LONG) is False
    assert await t.storage.compare_and_swap(key, "two", "two", ttl=LONG) is True
    assert await t.other.get(key) == "two"


@claim()
async def a_delete_removes_the_value_it_names_and_no_other(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "one", ttl=LONG)
    assert await t.other.compare_and_delete(key, "two") is False
    assert await t.storage.get(key) == "one"
    assert await t.other.compare_and_delete(key, "one") is True
    assert await t.storage.get(key) is None
    assert await t.storage.compare_and_delete(key, "one") is False


@claim()
async def a_deleted_key_is_free_at_once(t: TtlTrial) -> None:
    key = t.key()
    for round_ in range(20):
        assert await t.storage.insert_if_not_exist(key, f"{round_}", ttl=LONG), f"round {round_}"
        assert await t.other.compare_and_delete(key, f"{round_}"), f"round {round_}"
        assert await t.storage.get(key) is None, f"round {round_}"


@claim()
async def records_under_keys_that_look_alike_are_different(t: TtlTrial) -> None:
    keys = [t.key(name) for name in ("1", "10", "1/", "a", "A", "ä", "a\u0308", "*", "1%", "%s")]
    for number, key in enumerate(keys):
        assert await t.storage.insert_if_not_exist(key, f"value {number}", ttl=LONG), key
    assert [await t.other.get(key) for key in keys] == [f"value {number}" for number in range(len(keys))]
    assert await t.storage.compare_and_delete(keys[0], "value 0")
    assert [await t.other.get(key) for key in keys[:2]] == [None, "value 1"]


@claim()
async def every_text_comes_back_as_it_was(t: TtlTrial) -> None:
    texts = [
        '{"address":"10.0.0.1","holder":"ab","fence":7}',
        'it\'s "quoted" -- ; DROP TABLE x; %s {} \\ \\n',
        "Größe 大きさ 🐎 \u202e",
        "line\nline\r\n\ttab \x00 \x7f",
        " ",
        "0",
        "x" * MAX_VALUE_BYTES,
    ]
    for number, text in enumerate(texts):
        key = t.key(f"{number} {text[:40]}")
        assert await t.storage.insert_if_not_exist(key, text, ttl=LONG), number
        assert await t.other.get(key) == text, number
        assert await t.other.compare_and_swap(key, text, text[::-1], ttl=LONG), number
        assert await t.storage.compare_and_delete(key, text[::-1]), number


@claim()
async def what_cannot_be_a_record_is_refused(t: TtlTrial) -> None:
    key, storage = t.key(), t.storage
    values: list[Any] = ["", b"bytes", None, 7, "\ud800", "x" * (MAX_VALUE_BYTES + 1)]
    for value in values:
        with refused(Invalid):
            await storage.insert_if_not_exist(key, value, ttl=LONG)
        with refused(Invalid):
            await storage.compare_and_swap(key, value, "new", ttl=LONG)
        with refused(Invalid):
            await storage.compare_and_swap(key, "old", value, ttl=LONG)
        with refused(Invalid):
            await storage.compare_and_delete(key, value)
    bad_keys: list[Any] = ["", b"bytes", None, "\ud800"]
    for bad_key in bad_keys:
        with refused(Invalid):
            await storage.insert_if_not_exist(bad_key, "value", ttl=LONG)
        with refused(Invalid):
            await storage.get(bad_key)
    ttls: list[Any] = [-1, -0.001, float("nan"), float("inf"), True, False, "5", None, 1e30]
    for ttl in ttls:
        with refused(Invalid):
            await storage.insert_if_not_exist(key, "value", ttl=ttl)
        with refused(Invalid):
            await storage.compare_and_swap(key, "old", "new", ttl=ttl)
    assert await storage.get(key) is None
