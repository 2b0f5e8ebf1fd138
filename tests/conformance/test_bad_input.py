"""URLs and files that cannot be: a clear typed error each, and nothing changed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import sqlite3
from typing import TYPE_CHECKING

import pytest

import hostler
from hostler import Damaged, HostlerError, Invalid, Unavailable, open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WRONG_URLS = [
    "",
    "memory",
    "nothing://",
    "http://localhost:2379",
    "sqlite3:///tmp/x.db",
    "://",
    "memory://host",
    "memory:///path",
    "memory://?unknown=1",
    "memory://?history=1&history=2",
    "memory://?history=",
    "memory://?history=none",
    "memory://?history=nan",
    "memory://?history=inf",
    "memory://?history=-1",
    "memory://#part",
    "sqlite://",
    "sqlite:///",
    "sqlite://relative.db",
    "sqlite://host/abs.db",
    "sqlite:relative.db",
    "sqlite:///tmp/folder/",
    "sqlite:///tmp/x%00.db",
    "sqlite:///tmp/x.db?timeout=0",
    "sqlite:///tmp/x.db?timeout=1&timeout=1",
    "sqlite:///tmp/x.db?timeout=",
    "sqlite:///tmp/x.db?mode=ro",
    "sqlite:///tmp/x.db#part",
    "file://",
    "file:///",
    "file://relative.json",
    "file://host/abs.json",
    "file:///tmp/folder/",
    "file:///tmp/x.json?unknown=1",
    "file:///tmp/x.json?history=0",
    "etcd://",
    "etcd:///",
    "etcd://host:0",
    "etcd://host:65536",
    "etcd://host:port",
    "etcd://:2379",
    "etcd://a:1,,b:2",
    "etcd://host:2379/path",
    "etcd://user:secret@host:2379",
    "etcd://host:2379?unknown=1",
    "etcd://host:2379?user=root",
    "etcd://host:2379?password=secret",
    "etcd://host:2379?ca=/x.pem",
    "etcds://host:2379?cert=/only-one.pem",
    "etcd://[::1",
]


@pytest.mark.parametrize("url", WRONG_URLS)
def test_a_url_that_cannot_be_is_refused_with_a_reason(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_store(url)
    assert str(caught.value).startswith(("store URL", "etcd: "))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", [None, 1, b"memory://", ["memory://"]])
def test_a_url_is_text(url: object) -> None:
    with pytest.raises(Invalid, match="must be a str"):
        open_store(url)  # type: ignore[arg-type]


def test_an_unknown_option_names_the_known_ones() -> None:
    with pytest.raises(Invalid, match="unknown option 'colour'; known: history"):
        open_store("memory://?colour=red")


async def use(url: str) -> None:
    async with open_store(url) as store:
        await store.get("/a")
        for kv in (await store.range("/")).items:
            await store.get(kv.key)
        await store.put("/a", b"changed")


async def refuses(url: str, *kinds: type[HostlerError]) -> HostlerError:
    """Opening, reading or writing must end in one of `kinds`; the error."""
    with pytest.raises(kinds) as caught:
        await use(url)
    assert str(caught.value)
    error: HostlerError = caught.value
    return error


def folder_state(folder: Path) -> dict[str, bytes]:
    """Every file and its bytes; locks and what SQLite keeps beside an open database are no data."""
    beside = (".lock", "-shm", "-wal", "-journal")
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.is_file() and not (path.name.endswith(beside) and path.stat().st_size == 0)
    }


async def filled(url: str, keys: int = 300) -> None:
    async with open_store(url) as store:
        for start in range(0, keys, 100):
            await store.txn([], [hostler.Put(f"/k/{n:04}", b"v" * 50) for n in range(start, min(start + 100, keys))])
        await store.delete("/k/0001")
        lease = await store.grant(3_600)
        await store.put("/leased", b"x", lease=lease)


# Paths that are no files


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_directory_is_no_store(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    await refuses(f"{scheme}://{tmp_path}/folder", Invalid, Damaged, Unavailable)
    assert (tmp_path / "folder").is_dir()
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_folder_that_does_not_exist_is_not_made_up(scheme: str, tmp_path: Path) -> None:
    await refuses(f"{scheme}://{tmp_path}/no/such/folder/state", Invalid, Unavailable)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_a_device_or_a_pipe_is_no_store(scheme: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    await refuses(f"{scheme}://{tmp_path}/pipe?timeout=2", Invalid, Damaged, Unavailable)


# Files of somebody else


async def test_a_foreign_sqlite_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "foreign.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE guests (name TEXT)")
        connection.execute("INSERT INTO guests VALUES ('somebody')")
    connection.close()
    before = folder_state(tmp_path)
    await refuses(f"sqlite://{path}", Invalid, Damaged)
    assert folder_state(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [b"hello, this is a letter\n" * 100, b"\0" * 8192, b'{"json": true}', os.urandom(10_000), b"SQLite format 3\0"],
    ids=["text", "zeros", "json", "noise", "header only"],
)
async def test_a_file_that_is_no_database_is_left_alone(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(content)
    await refuses(f"sqlite://{path}", Invalid, Damaged)
    assert folder_state(tmp_path)["state.db"] == content


# Damaged files


@pytest.mark.parametrize("damage", ["half", "last page", "header", "schema page"])
async def test_a_damaged_database_is_refused_and_left_alone(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await filled(f"sqlite://{path}", 2_000)
    content = bytearray(path.read_bytes())
    if damage == "half":
        content = content[: len(content) // 2]
    elif damage == "last page":
        content = content[:-4096]
    elif damage == "header":
        content[:16] = b"garbage garbage!"
    else:
        content[100:600] = bytes(500)
    path.write_bytes(content)
    await refuses(f"sqlite://{path}", Damaged, Invalid)
    assert path.read_bytes() == content


@pytest.mark.parametrize("seed", range(8))
async def test_flipped_bytes_never_give_a_foreign_error(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    await filled(f"sqlite://{path}", 1_000)
    content = bytearray(path.read_bytes())
    rng = random.Random(seed)
    for _ in range(200):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    with contextlib.suppress(Damaged, Invalid, Unavailable):
        await use(f"sqlite://{path}")


BAD_JSON: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda b: b[: len(b) // 2],
    "null": lambda _: b"null",
    "list": lambda _: b"[]",
    "other object": lambda _: b'{"somebody": "else"}',
    "not utf-8": lambda b: b.replace(b"/k/0002", b"/k/\xff\xfe02"),
    "noise": lambda _: bytes(range(256)) * 20,
    "zeros": lambda b: bytes(len(b)),
    "text after": lambda b: b + b"and more",
    "negative revision": lambda b: _edited(b, -5),
    "text as revision": lambda b: _edited(b, "seven"),
    "deep": lambda _: b"[" * 100_000,
}


def _edited(content: bytes, revision: object) -> bytes:
    document = json.loads(content)
    assert "revision" in document
    document["revision"] = revision
    return json.dumps(document).encode()


@pytest.mark.parametrize("damage", BAD_JSON)
async def test_a_damaged_state_file_is_refused_and_left_alone(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    await filled(f"file://{path}")
    content = BAD_JSON[damage](path.read_bytes())
    path.write_bytes(content)
    error = await refuses(f"file://{path}", Damaged, Invalid)
    assert str(path) in str(error)
    assert path.read_bytes() == content


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_an_undamaged_store_opens_again_after_all_that(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://{tmp_path}/state"
    await filled(url)
    content = (tmp_path / "state").read_bytes()
    (tmp_path / "state").write_bytes(b"broken " * 1000)
    await refuses(url, Damaged, Invalid)
    (tmp_path / "state").write_bytes(content)
    async with open_store(url) as store:
        assert len((await store.range("/k/")).items) == 299
