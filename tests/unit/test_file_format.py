"""The state file as text: what is written reads back, what is wrong is found, a person can work with it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.drivers.store.file.format import Content, parse
from hostler.drivers.store.file.state import Advance, Bounds, Copy, Draft
from hostler.drivers.store.local_store import HostTime
from hostler.drivers.store.mvcc import Mvcc
from hostler.errors import Compacted, Damaged, HostlerError, Invalid
from hostler.ports.store import Delete, KeyValue, Operation, Put


class Still:
    """Time that moves when told."""

    def __init__(self) -> None:
        self.at, self.date = 1_000.0, 1_800_000_000.0

    def now(self) -> float:
        return self.at

    def wall(self) -> float:
        return self.date

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def new_draft(bounds: Bounds | None = None, clock: Still | None = None, boot: str = "boot-1") -> Draft:
    return Draft(HostTime(clock or Still(), boot), bounds or Bounds(), random.Random(1))


def saved(draft: Draft, *operations: Operation) -> bytes:
    return batch(draft, lambda: draft.txn((), operations, ()))[0]


def batch(draft: Draft, *works: Callable[[], object]) -> tuple[bytes, Advance]:
    draft.begin()
    for work in works:
        work()
    finished = draft.finish()
    assert finished is not None
    return finished


def reread(data: bytes) -> Draft:
    draft = new_draft()
    draft.replace(parse("/state.json", data))
    return draft


def rewritten(draft: Draft) -> bytes:
    """What a save without any change would write, but for the number of the save."""
    draft.begin()
    draft._dirty = True
    finished = draft.finish()
    assert finished is not None
    return finished[0].replace(b'"saved": %d' % draft.saved, b'"saved": %d' % (draft.saved - 1))


def whole(state: Mvcc) -> list[Any]:
    """Everything that can be read of a store."""
    seen: list[Any] = [state.revision, state.compacted]
    for revision in range(max(1, state.compacted), state.revision + 1):
        seen += [state.range("", after=None, limit=None, revision=revision, keys_only=False)]
    seen.append(list(state.log(0)))
    seen.append(sorted((lease.id, lease.ttl, lease.deadline, sorted(lease.keys)) for lease in state.leases.values()))
    return seen


keys = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5) | st.sampled_from(["a", "b"])
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
values = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=20).map(lambda text: text.encode(errors="replace")),
    anything.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="replace")),
    anything.map(lambda value: json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")),
)


@pytest.mark.slow
@settings(max_examples=dose(test=80, full=3000), deadline=None)
@given(st.lists(st.tuples(keys, st.none() | values), min_size=1, max_size=12))
def test_what_was_written_reads_back_to_the_byte_with_its_whole_past(writes: list[tuple[str, bytes | None]]) -> None:
    draft, data = new_draft(), b""
    for key, value in writes:
        draft.begin()
        draft.txn((), (Delete(key) if value is None else Put(key, value),), ())
        finished = draft.finish()
        if finished is not None:
            data = finished[0]
    if data:
        json.loads(data)  # any reader of JSON takes it
        again = reread(data)
        assert whole(again.mvcc) == whole(draft.mvcc)
        assert rewritten(again) == data


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b'{"name":"vm1","cores":2}', '"json":{"name":"vm1","cores":2}'),
        (b"5", '"json":5'),
        (b'"quoted"', '"json":"quoted"'),
        (b'{"a": 1}', '"text":"{\\"a\\": 1}"'),
        (b'{"a":1,"a":2}', '"text":'),
        (b"1e5", '"text":"1e5"'),
        (b"100000000000000000000000000000", '"json":100000000000000000000000000000'),
        (b"hello", '"text":"hello"'),
        ("größe".encode(), '"text":"größe"'),
        (b"", '"text":""'),
        (b"two\nlines", '"text":"two\\nlines"'),
        (b"\xff\x00", '"base64":"/wA="'),
        (b"[" * 20 + b"]" * 20, '"json":[[['),
        (b"[" * 5_000 + b"]" * 5_000, '"text":"[[['),
        (b"[" * 100 + b"]" * 100, '"text":"[[['),
        (b"[" + b"[]," * 50 + b"[]]", '"json":[[],[]'),
    ],
)
def test_a_value_stands_in_the_form_that_a_person_can_read(value: bytes, form: str) -> None:
    data = saved(new_draft(), Put("k", value))
    assert f'\n{{"key":"k",{form}' in data.decode()
    assert reread(data).mvcc.get("k") == KeyValue("k", value, 2, 2, 1)


def test_one_change_changes_one_line_of_the_keys_and_adds_one_to_the_history() -> None:
    draft = new_draft()
    before = saved(draft, *(Put(f"k{number}", b"1") for number in range(5))).splitlines()
    after = saved(draft, Put("k3", b"2")).splitlines()
    differing = [line for line in after if line not in before and line.rstrip(b",") not in before]
    assert [line.split(b":")[0] for line in differing] == [b'"format"', b'"revision"', b'{"key"', b'{"revision"']


def test_keys_stand_in_order() -> None:
    data = saved(new_draft(), *(Put(key, b"") for key in ("b", "a/2", "é", "a", "a/10")))
    assert [line["key"] for line in json.loads(data)["keys"]] == ["a", "a/10", "a/2", "b", "é"]


def test_a_file_laid_out_anew_by_a_tool_reads_the_same() -> None:
    draft = new_draft()
    saved(draft, Put("a", b'{"n":[1,2,{"x":null}]}'), Put("b", b"\xff"))
    data = saved(draft, Put("a", b"text"), Delete("b"))
    pretty = json.dumps(json.loads(data), indent=4).encode()
    assert whole(reread(pretty).mvcc) == whole(draft.mvcc)


def test_a_history_cut_by_hand_is_read_as_compacted() -> None:
    draft = new_draft()
    saved(draft, Put("a", b"1"))
    file = json.loads(saved(draft, Put("a", b"2")))
    file["history"], file["compact_revision"] = [], file["revision"]
    again = reread(json.dumps(file).encode())
    assert again.mvcc.get("a") == draft.mvcc.get("a")
    with pytest.raises(Compacted):
        again.mvcc.get("a", 2)
    assert whole(reread(saved(again, Put("a", b"3"))).mvcc) == whole(again.mvcc)


def _good() -> dict[str, Any]:
    draft = new_draft()
    lease: list[int] = []
    batch(draft, lambda: lease.append(draft.grant(30.0)))
    saved(draft, Put("a", b"1"), Put("b", b"x", lease[0]))
    saved(draft, Put("a", b"2"))
    saved(draft, Delete("a"))
    loaded: dict[str, Any] = json.loads(saved(draft, Put("a", b"3")))
    return loaded


HARM: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field is missing": lambda f: f.pop("keys"),
    "a field is unknown": lambda f: f.update(extra=1),
    "a field has another type": lambda f: f.update(revision="5"),
    "the revision is behind its keys": lambda f: f.update(revision=3),
    "the revision is ahead of its history": lambda f: f.update(revision=9),
    "compacted ahead of the revision": lambda f: f.update(compact_revision=6),
    "compacted without losing history": lambda f: f.update(compact_revision=4),
    "a revision of the history is missing": lambda f: f["history"].pop(1),
    "the first revision of the history is missing": lambda f: f["history"].pop(0),
    "the last revision of the history is missing": lambda f: f["history"].pop(),
    "the history is in another order": lambda f: f["history"].reverse(),
    "a revision without changes": lambda f: f["history"][0].update(changes=[]),
    "a change of no kind": lambda f: f["history"][0]["changes"].append({}),
    "a change of both kinds": lambda f: f["history"][0]["changes"][0].update(delete="a"),
    "a date without a zone": lambda f: f["history"][0].update(at="2026-01-01T00:00:00"),
    "a key is there twice": lambda f: f["keys"].append(f["keys"][0]),
    "a key of the history is gone": lambda f: f["keys"].pop(0),
    "a deleted key is there": lambda f: f["history"][-1]["changes"][0].update(put="b"),
    "an empty key": lambda f: f["keys"][0].update(key=""),
    "a key without value": lambda f: f["keys"][0].pop("json"),
    "a key with two values": lambda f: f["keys"][0].update(text=""),
    "base64 that is none": lambda f: (f["keys"][0].pop("json"), f["keys"][0].update(base64="?")),
    "a version that does not follow": lambda f: f["keys"][0].update(version=7),
    "a version below one": lambda f: f["keys"][1].update(version=0),
    "created after it was changed": lambda f: f["keys"][1].update(create=9),
    "its lease is gone": lambda f: f.update(leases=[]),
    "a lease is there twice": lambda f: f["leases"].append(f["leases"][0]),
    "a lease of no time": lambda f: f["leases"][0].update(ttl=0),
    "a lease of number 0": lambda f: f["leases"][0].update(lease=0),
    "an old value from the future": lambda f: f["history"][1]["changes"][0]["was"].update(mod=5),
    "a deletion of nothing": lambda f: f["history"][2]["changes"][0].pop("was"),
}


@pytest.mark.parametrize("harm", HARM, ids=str)
def test_harm_is_found(harm: str) -> None:
    file = _good()
    reread(json.dumps(file).encode())
    HARM[harm](file)
    with pytest.raises(Damaged, match=r"^/state.json: damaged, .*; nothing was changed"):
        reread(json.dumps(file).encode())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\x00" * 100, b"SQLite format 3\x00", b'{"format": "hostler state"', b"\xff{}"]
)
def test_what_is_no_json_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged, match="/state.json"):
        parse("/state.json", data)


@pytest.mark.parametrize("data", [b"{}", b"[]", b"3", b'{"vms": []}', b'{"format": "other", "version": 1}'])
def test_foreign_json_is_refused_as_such(data: bytes) -> None:
    with pytest.raises(Invalid, match="not a state file of Hostler"):
        parse("/state.json", data)


def test_a_file_of_another_version_is_refused_with_both_versions() -> None:
    with pytest.raises(Invalid, match="version 2, this Hostler reads version 1"):
        parse("/state.json", b'{"format": "hostler state", "version": 2, "new": []}')


def test_a_file_cut_anywhere_is_never_read_as_whole() -> None:
    data = json.dumps(_good()).encode()
    for end in range(len(data)):
        with pytest.raises((Damaged, Invalid)):
            reread(data[:end])


@settings(max_examples=dose(test=80, full=3000), deadline=None)
@given(st.data())
def test_a_flipped_byte_is_an_error_of_ours_or_reads_as_a_store(data: st.DataObject) -> None:
    file = bytearray(json.dumps(_good()).encode())
    file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        whole(reread(bytes(file)).mvcc)
    except HostlerError:
        return


# What is new of a file, to one who has an earlier state


def follow(copy: Copy, data: bytes) -> Content:
    content = parse("/state.json", data, copy.known)
    advance = copy.way_to("/state.json", content)
    if advance is None:
        copy.replace(content)
    else:
        copy.take(advance)
    return content


@pytest.mark.slow
@settings(max_examples=dose(test=50, full=1500), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.binary(max_size=3), st.integers(0, 4)), max_size=25))
def test_copies_that_follow_at_their_own_pace_arrive_at_the_same_state(
    writes: list[tuple[str, bytes | None, int]],
) -> None:
    draft, slow, draft2 = new_draft(Bounds(revisions=8)), Copy(HostTime(Still(), "boot-1")), new_draft()
    leases: list[int] = []
    data = b""
    for key, value, who in writes:
        draft.begin()
        if who == 0:
            leases.append(draft.grant(30.0))
        elif who == 1 and leases:
            draft.revoke(leases.pop())
        lease = leases[-1] if leases and who == 2 else None
        draft.txn((), (Delete(key) if value is None else Put(key, value, lease),), ())
        finished = draft.finish()
        if finished is None:
            continue
        data = finished[0]
        if who:
            follow(draft2, data)
            assert whole(draft2.mvcc) == whole(draft.mvcc)
        if who == 4:
            follow(slow, data)
            assert whole(slow.mvcc) == whole(draft.mvcc)
        assert whole(reread(data).mvcc) == whole(draft.mvcc)
    if data and draft2.saved == draft.saved:
        assert rewritten(draft2) == data


def test_only_what_is_new_is_read_of_a_later_save() -> None:
    draft, copy = new_draft(), Copy(HostTime(Still(), "boot-1"))
    follow(copy, saved(draft, Put("a", b"1"), Put("b", b"1")))
    content = follow(copy, saved(draft, Put("a", b"2")))
    assert content.partial
    assert whole(copy.mvcc) == whole(draft.mvcc)


def test_a_key_line_that_a_person_rewrote_is_found_by_reading_all() -> None:
    draft, copy = new_draft(), Copy(HostTime(Still(), "boot-1"))
    follow(copy, saved(draft, Put("a", b"1")))
    data = saved(draft, Put("a", b"2")).replace(b'{"key":"a"', b'{ "key": "a"')
    assert not follow(copy, data).partial
    assert whole(copy.mvcc) == whole(draft.mvcc)


def test_a_reader_that_fell_behind_the_history_takes_the_whole_state() -> None:
    draft, copy = new_draft(Bounds(revisions=3)), Copy(HostTime(Still(), "boot-1"))
    follow(copy, saved(draft, Put("a", b"1")))
    data = b""
    for _ in range(10):
        data = saved(draft, Put("a", b"2"))
    assert not follow(copy, data).partial
    assert whole(copy.mvcc) == whole(draft.mvcc)


def test_an_older_or_another_file_is_refused() -> None:
    draft, copy, other = new_draft(), Copy(HostTime(Still(), "boot-1")), new_draft()
    old = saved(draft, Put("a", b"1"))
    follow(copy, saved(draft, Put("a", b"2")))
    for data in (old, saved(other, Put("a", b"1")), saved(other, Put("a", b"1"), Put("b", b""))):
        with pytest.raises(Damaged, match="another or an older state"):
            follow(copy, data)
    assert copy.mvcc.revision == 3


# How much history is kept


def test_history_is_bounded_by_count_age_and_size() -> None:
    clock = Still()
    for bounds, kept in ((Bounds(revisions=10), 11), (Bounds(size_bytes=1_500), 15)):
        draft = new_draft(bounds)
        for _ in range(100):
            saved(draft, Put("a", b"1"))
        history = len(list(draft.mvcc.log(0)))
        assert 5 < history <= kept
        assert draft.mvcc.compacted == draft.mvcc.revision + 1 - history
    draft = new_draft(Bounds(age=60), clock)
    for _ in range(100):
        clock.date += 10
        saved(draft, Put("a", b"1"))
    assert len(list(draft.mvcc.log(0))) == 7


@pytest.mark.slow
def test_ten_thousand_revisions_stay_readable_by_default() -> None:
    draft = new_draft()
    draft.begin()
    for number in range(20_000):
        draft.txn((), (Put(f"/vms/{number % 50}", b'{"n":%d}' % number),), ())
    finished = draft.finish()
    assert finished is not None
    again = reread(finished[0]).mvcc
    assert again.get("/vms/49", again.revision - 10_000 + 1) is not None
    assert again.compacted > 1


# Leases


def test_a_lease_of_an_earlier_boot_has_what_the_calendar_leaves_and_is_moved_to_this_boot() -> None:
    clock = Still()
    data, _ = batch(draft := new_draft(clock=clock), lambda: draft.grant(30.0))
    later = Still()
    later.at, later.date = 5.0, clock.date + 10.0
    after = new_draft(clock=later, boot="boot-2")
    after.replace(parse("/state.json", data))
    (lease,) = after.mvcc.leases.values()
    assert lease.deadline == pytest.approx(25.0)
    moved, _ = batch(after)
    assert json.loads(moved)["leases"][0]["boot"] == "boot-2"


def test_a_lease_never_gains_more_than_its_ttl_from_a_calendar_that_went_back() -> None:
    clock = Still()
    data, _ = batch(draft := new_draft(clock=clock), lambda: draft.grant(30.0))
    later = Still()
    later.at, later.date = 5.0, clock.date - 10_000.0
    after = new_draft(clock=later, boot="boot-2")
    after.replace(parse("/state.json", data))
    (lease,) = after.mvcc.leases.values()
    assert lease.deadline == 35.0


def test_a_batch_begins_by_ending_what_is_due() -> None:
    clock = Still()
    draft = new_draft(clock=clock)
    id_: list[int] = []
    batch(draft, lambda: id_.append(draft.grant(30.0)), lambda: draft.txn((), (Put("a", b"", id_[0]),), ()))
    clock.at += 29.9
    draft.begin()
    assert draft.finish() is None
    clock.at += 0.2
    data, advance = batch(draft)
    assert (reread(data).mvcc.get("a"), advance.ended) == (None, id_)
