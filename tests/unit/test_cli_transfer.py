"""Copy, backup and restore: what arrives is what was there, whatever happens on the way."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
from typing import TYPE_CHECKING, Any

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.transfer import import_keys as filling
from hostler.engine.transfer.copy import copy, source_of
from hostler.engine.transfer.import_keys import MARKER, fill
from hostler.entry.backup import Backup, write_backup
from hostler.entry.cli import main
from hostler.errors import Conflict, Damaged, HostlerError, Invalid, NotFound, Unavailable, Uncertain
from hostler.keys.families import ENDPOINT, ROUTER, TICKET
from hostler.keys.lab import LAB_WORKER
from hostler.ports.store import MAX_REQUEST_BYTES, Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from hostler.engine.transfer.import_keys import Outcome
    from hostler.ports.store import Comparison, Operation, Store, TxnResult

ODD = {
    "/": b"",
    "/a": b"\xff\x00\xfe",
    "/a b": b"space",
    "/a\nb": b"line\nbreak",
    "/a\x00b": b"\x00",
    '/"quoted\\"': b'{"a":"\\u0000"}',
    "/ä": "ü".encode(),
    "/\ue000": b"private",
    "/\U0001f600": b"beyond the basic plane",
    "/\uffff": b"last of the basic plane",
    "/big": b"x" * (MAX_REQUEST_BYTES - 200),
    "/half1": b"y" * (MAX_REQUEST_BYTES // 2),
    "/half2": b"z" * (MAX_REQUEST_BYTES // 2),
    '{"keys":1}': b'{"keys":1,"sha256":"no"}',
    "~": b"end",
}


@pytest.fixture
async def source() -> AsyncIterator[MemoryStore]:
    async with MemoryStore() as store:
        yield store


@pytest.fixture
async def target() -> AsyncIterator[MemoryStore]:
    async with MemoryStore() as store:
        yield store


async def contents(store: Store, prefix: str = "") -> dict[str, bytes]:
    return {kv.key: kv.value for kv in (await store.range(prefix)).items}


async def put_all(store: Store, data: dict[str, bytes]) -> None:
    for key, value in data.items():
        await store.put(key, value)


async def copied(source: Store, target: Store, prefix: str = "", name: str = "source", **options: bool) -> Outcome:
    chosen = {"overwrite": False, "with_leased": False, "keep_source": False} | options
    return (await copy(source, target, (name, "target"), prefix=prefix, report=lambda _: None, **chosen)).outcome


class Struck:
    """A store whose every transaction may fail, before or after it was done."""

    def __init__(self, store: MemoryStore, strike: Callable[[int], str]) -> None:
        self._store, self._strike, self.transactions = store, strike, 0
        self.get, self.range = store.get, store.range

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        self.transactions += 1
        blow = self._strike(self.transactions)
        await asyncio.sleep(0)
        if blow == "unavailable":
            raise Unavailable("struck")
        if blow == "killed":
            raise RuntimeError("killed")
        result = await self._store.txn(when, then, otherwise)
        if blow == "uncertain":
            raise Uncertain("struck")
        return result


async def test_a_copy_is_identical_with_odd_keys_and_values(source: MemoryStore, target: MemoryStore) -> None:
    await put_all(source, ODD)
    outcome = await copied(source, target)
    assert await contents(target) == ODD
    assert (outcome.keys, outcome.written) == (len(ODD), len(ODD))


async def test_the_digest_depends_on_every_key_and_value(source: MemoryStore, target: MemoryStore) -> None:
    await put_all(source, {"/a": b"1", "/ab": b""})
    first = (await copied(source, target)).sha256
    async with MemoryStore() as other, MemoryStore() as its_copy:
        await put_all(other, {"/a": b"1", "/a2": b""})
        assert (await copied(other, its_copy)).sha256 != first


async def test_a_target_with_keys_is_refused_and_left_as_it_was(source: MemoryStore, target: MemoryStore) -> None:
    await put_all(source, {"/a": b"1"})
    await put_all(target, {"/z": b"9"})
    with pytest.raises(Conflict, match="/z"):
        await copied(source, target)
    assert await contents(target) == {"/z": b"9"}
    assert (await target.status()).revision == 2


async def test_only_the_prefix_must_be_empty(source: MemoryStore, target: MemoryStore) -> None:
    await put_all(source, {"/a/1": b"1", "/b/1": b"2"})
    await put_all(target, {"/z": b"9"})
    await copied(source, target, "/a/")
    assert await contents(target) == {"/a/1": b"1", "/z": b"9"}


async def test_overwriting_leaves_other_keys_alone_and_writes_only_what_differs(
    source: MemoryStore, target: MemoryStore
) -> None:
    await put_all(source, {"/a": b"1", "/b": b"2", "/c": b"3"})
    await put_all(target, {"/a": b"1", "/b": b"old", "/z": b"9"})
    outcome = await copied(source, target, overwrite=True)
    assert await contents(target) == {"/a": b"1", "/b": b"2", "/c": b"3", "/z": b"9"}
    assert (outcome.written, outcome.unchanged, outcome.left_alone) == (2, 1, 1)
    kept = await target.get("/a")
    assert kept is not None
    assert kept.version == 1


async def test_keys_with_a_lease_are_left_out_unless_asked_for(source: MemoryStore, target: MemoryStore) -> None:
    lease = await source.grant(60)
    await source.put("/leased", b"x", lease=lease)
    await source.put("/plain", b"y")
    done = await copy(
        *(source, target, ("s", "t")),
        prefix="",
        overwrite=False,
        with_leased=False,
        keep_source=False,  # type: ignore[arg-type]
        report=lambda _: None,
    )
    assert await contents(target) == {"/plain": b"y"}
    assert (done.outcome.keys, done.snapshot.leased) == (1, 1)
    await copied(source, target, overwrite=True, with_leased=True)
    found = await target.get("/leased")
    assert found is not None
    assert found.lease is None


@pytest.mark.parametrize(
    "key",
    [
        "/hostler/v1/alive/n1",
        "/hostler/v1/clocks/n1",
        "/plasmavmc/locks/o/p/00000000-0000-0000-0000-000000000001",
        "sysvvm/1/0",
        LAB_WORKER.fill(worker="w"),
        ROUTER.fill(router="r"),
        TICKET.fill(digest="d"),
        ENDPOINT.fill(artifact="g:a:1.0.0", method="m", instance=1),
    ],
)
async def test_heartbeats_and_locks_are_never_taken_as_keys_that_stay(source: MemoryStore, key: str) -> None:
    await source.put(key, b"{}", lease=await source.grant(60))
    await source.put("/leased", b"x", lease=await source.grant(60))
    origin = await source_of(source, "s", "", with_leased=True)
    assert [kv.key async for kv in origin.entries()] == ["/leased"]
    assert origin.leased == 2


async def test_a_leased_key_of_the_target_is_made_to_stay(source: MemoryStore, target: MemoryStore) -> None:
    await source.put("/a", b"x")
    await target.put("/a", b"x", lease=await target.grant(60))
    await copied(source, target, overwrite=True)
    found = await target.get("/a")
    assert found is not None
    assert found.lease is None


@pytest.mark.parametrize("last", range(1, 8))
async def test_a_copy_that_died_anywhere_goes_on_and_ends_with_what_the_source_holds_then(
    source: MemoryStore, target: MemoryStore, last: int
) -> None:
    data = {f"/{number:04d}": str(number).encode() for number in range(700)}
    await put_all(source, data)
    dying = Struck(target, lambda number: "killed" if number > last else "")
    with pytest.raises(RuntimeError):
        await copied(source, dying)  # type: ignore[arg-type]
    assert await target.get(MARKER) is not None, "an incomplete target must say so"
    await source.delete("/0003")
    await source.put("/0004", b"changed")
    await source.put("/new", b"new")
    outcome = await copied(source, target)
    assert outcome.resumed
    assert await contents(target) == await contents(source)
    if last > 4:
        assert outcome.unchanged > 0, "what was there already is not written again"


@pytest.mark.slow
async def test_lost_answers_do_no_harm(source: MemoryStore, target: MemoryStore) -> None:
    rng = random.Random(7)
    data = {f"/{number:04d}": str(number).encode() for number in range(1000)}
    await put_all(source, data)
    struck = Struck(target, lambda _: rng.choice(["", "uncertain", "unavailable"]))
    await copied(source, struck)  # type: ignore[arg-type]
    assert await contents(target) == data


async def test_a_target_that_never_answers_ends_it_with_advice(
    source: MemoryStore, target: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "PATIENCE", 0.2)
    await source.put("/a", b"1")
    with pytest.raises(Unavailable, match="run the same command again"):
        await copied(source, Struck(target, lambda _: "unavailable"))  # type: ignore[arg-type]


async def test_an_unfinished_copy_from_elsewhere_is_not_continued(source: MemoryStore, target: MemoryStore) -> None:
    await put_all(source, {"/a": b"1"})
    dying = Struck(target, lambda number: "killed" if number > 1 else "")
    with pytest.raises(RuntimeError):
        await copied(source, dying)  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="unfinished transfer from source"):
        await copied(source, target, name="elsewhere")
    with pytest.raises(Conflict, match="unfinished"):
        await copied(source, target, overwrite=True)
    async with MemoryStore() as third:
        with pytest.raises(Conflict, match="unfinished"):
            await copied(target, third)


async def test_of_two_copies_into_one_target_only_the_later_goes_on(source: MemoryStore, target: MemoryStore) -> None:
    await put_all(source, {f"/{number:04d}": b"x" for number in range(600)})
    second: list[Outcome] = []

    turn = asyncio.Lock()

    class Overtaken(Struck):
        async def txn(self, *arguments: Any) -> TxnResult:
            async with turn:
                if self.transactions == 2:
                    second.append(await copied(source, target))
                return await super().txn(*arguments)

    with pytest.raises(Conflict, match="took over"):
        await copied(source, Overtaken(target, lambda _: ""))  # type: ignore[arg-type]
    assert len(second) == 1
    assert await contents(target) == await contents(source)


async def test_a_stranger_who_writes_meanwhile_is_noticed(source: MemoryStore, target: MemoryStore) -> None:
    await put_all(source, {"/a": b"1", "/b": b"2"})

    class Disturbed(Struck):
        async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> TxnResult:
            result = await super().txn(when, then, otherwise)
            if any(isinstance(operation, Put) and operation.key == "/a" for operation in then):
                await target.put("/b", b"stranger")
            return result

    with pytest.raises(Conflict, match="'/b' is not what was written"):
        await copied(source, Disturbed(target, lambda _: ""))  # type: ignore[arg-type]
    assert await target.get(MARKER) is not None


# Backup


async def backup_of(store: Store, path: Path, **options: Any) -> None:
    origin = await source_of(store, "s", "", with_leased=False)
    chosen = {"force": False} | options
    await write_backup(path, origin, prefix="", engine="memory", report=lambda _: None, **chosen)


@pytest.mark.parametrize("name", ["b.jsonl", "b.gz"])
async def test_a_restored_backup_is_identical(
    source: MemoryStore, target: MemoryStore, tmp_path: Path, name: str
) -> None:
    await put_all(source, ODD)
    path = tmp_path / name
    await backup_of(source, path)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert path.stat().st_mode & 0o777 == 0o600
    await fill(target, Backup(path, ""), "", merge=False, report=lambda _: None)
    assert await contents(target) == ODD


async def test_a_backup_never_overwrites_unless_forced(source: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_text("precious")
    with pytest.raises(Invalid, match="--force"):
        await backup_of(source, path)
    assert path.read_text() == "precious"
    await backup_of(source, path, force=True)
    assert Backup(path, "").trailer.keys == 0


async def test_a_backup_that_fails_leaves_nothing(source: MemoryStore, tmp_path: Path) -> None:
    await put_all(source, {f"/{number}": b"x" for number in range(300)})
    origin = await source_of(source, "s", "", with_leased=False)
    await source.put("/x", b"1")
    await source.compact((await source.status()).revision)
    with pytest.raises(HostlerError):
        await write_backup(tmp_path / "b", origin, prefix="", engine="m", force=False, report=lambda _: None)
    assert list(tmp_path.iterdir()) == []


def _cut(data: bytes, at: int) -> bytes:
    return data[:at]


def _flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _double_last_entry(data: bytes, _: int) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join([*lines[:-1], lines[-2], lines[-1]])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("harm", [_cut, _flip])
async def test_every_truncated_or_altered_backup_is_refused(
    source: MemoryStore, tmp_path: Path, harm: Callable[[bytes, int], bytes], packed: bool
) -> None:
    await put_all(source, {"/a": b"1", "/b": b"\xff", "/c": b"three"})
    path = tmp_path / "b"
    await backup_of(source, path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        harmed = harm(whole, at)
        if packed:
            (tmp_path / "h.gz").write_bytes(gzip.compress(harmed))
        else:
            (tmp_path / "h").write_bytes(harmed)
        with pytest.raises((Damaged, Invalid)):
            Backup(tmp_path / ("h.gz" if packed else "h"), "")


async def test_a_harmed_gzip_is_refused(source: MemoryStore, tmp_path: Path) -> None:
    await put_all(source, {"/a": b"1", "/b": b"\xff"})
    await backup_of(source, tmp_path / "b.gz")
    whole = (tmp_path / "b.gz").read_bytes()
    for at in range(len(whole)):
        (tmp_path / "cut.gz").write_bytes(_cut(whole, at))
        with pytest.raises((Damaged, Invalid)):
            Backup(tmp_path / "cut.gz", "")
    (tmp_path / "more.gz").write_bytes(whole + b"more")
    with pytest.raises(Damaged):
        Backup(tmp_path / "more.gz", "")


async def test_other_ways_of_being_wrong_are_refused(source: MemoryStore, tmp_path: Path) -> None:
    await put_all(source, {"/a": b"1", "/b": b"2"})
    path = tmp_path / "b"
    await backup_of(source, path)
    whole = path.read_bytes()
    newer = whole.replace(b'"hostler-backup":1', b'"hostler-backup":2')
    for harmed in (_double_last_entry(whole, 0), whole + b"x", whole + whole, b"", b"\n", b"[]", newer):
        path.write_bytes(harmed)
        with pytest.raises((Damaged, Invalid)):
            Backup(path, "")
    with pytest.raises(NotFound):
        Backup(tmp_path / "none", "")


def test_a_harmed_backup_writes_nothing_not_even_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, path = f"sqlite://{tmp_path}/a.db", tmp_path / "b"
    assert main(["store", "put", "--store", url, "/a", "hello"]) == 0
    assert main(["store", "backup", "--store", url, str(path)]) == 0
    path.write_text(path.read_text().replace("hello", "jello"))
    assert main(["store", "restore", "--store", f"sqlite://{tmp_path}/new.db", str(path)]) == 8
    assert not (tmp_path / "new.db").exists()
    assert re.search("digest", capsys.readouterr().err)


def test_restore_refuses_a_store_with_keys_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, path = f"sqlite://{tmp_path}/a.db", f"sqlite://{tmp_path}/b.db", str(tmp_path / "b")
    for key in ("/a/1", "/b/1"):
        main(["store", "put", "--store", one, key, "x"])
    main(["store", "put", "--store", two, "/z", "y"])
    assert main(["store", "backup", "--store", one, path]) == 0
    assert main(["store", "restore", "--store", two, path]) == 4
    assert main(["store", "restore", "--store", two, path, "--prefix", "/a/"]) == 0
    assert main(["store", "restore", "--store", two, path, "--force"]) == 0
    capsys.readouterr()
    assert main(["store", "list", "--store", two, "--keys-only"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:]] == ["/a/1", "/b/1", "/z"]


def test_copying_a_store_onto_itself_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/a.db"
    assert main(["store", "copy", url, url]) == 2
    assert main(["store", "copy", url, "memory://"]) == 3, "a source that does not exist is not an empty one"
    assert not (tmp_path / "a.db").exists()
