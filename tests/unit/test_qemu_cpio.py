"""Archives that the kernel unpacks, read back by a reader that knows nothing of the writer."""

from __future__ import annotations

import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.drivers.machines.qemu.images.formats import Archive

FIELDS = (
    "ino",
    "mode",
    "uid",
    "gid",
    "nlink",
    "mtime",
    "size",
    "devmajor",
    "devminor",
    "rmajor",
    "rminor",
    "name",
    "sum",
)
Entry = tuple[str, dict[str, int], bytes]


def read(data: bytes) -> list[Entry]:
    """By the kernel's documentation (early-userspace/buffer-format)."""
    found, at = [], 0
    while True:
        assert data[at : at + 6] == b"070701", at
        numbers = {name: int(data[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i, name in enumerate(FIELDS)}
        end = at + 110 + numbers["name"]
        name = data[at + 110 : end]
        assert name.endswith(b"\0")
        start = -(-end // 4) * 4
        content = data[start : start + numbers["size"]]
        at = -(-(start + numbers["size"]) // 4) * 4
        if name == b"TRAILER!!!\0":
            assert not data[at:].strip(b"\0")
            return found
        found.append((name[:-1].decode(), numbers, content))


def test_every_kind_is_what_was_said_of_it() -> None:
    archive = Archive()
    archive.folder("tmp", 0o1777)
    archive.file("bin/sudo", b"\x7fELF", 0o4750, gid=1000)
    archive.link("bin/sh", "busybox")
    archive.device("dev/console", 0o600, 5, 1)
    archive.folder("home/user", 0o700, uid=1000, gid=1000)
    found = {name: (numbers, content) for name, numbers, content in read(archive.packed())}
    assert found["tmp"][0]["mode"] == stat.S_IFDIR | 0o1777
    assert found["bin/sudo"][0]["mode"] == stat.S_IFREG | stat.S_ISUID | 0o750
    assert (found["bin/sudo"][0]["uid"], found["bin/sudo"][0]["gid"]) == (0, 1000)
    assert found["bin/sudo"][1] == b"\x7fELF"
    assert stat.S_ISLNK(found["bin/sh"][0]["mode"])
    assert found["bin/sh"][1] == b"busybox"
    console = found["dev/console"][0]
    assert stat.S_ISCHR(console["mode"])
    assert (console["rmajor"], console["rminor"]) == (5, 1)
    assert found["home/user"][0]["uid"] == 1000
    assert all(numbers["mtime"] == 0 for numbers, _ in found.values())
    assert len({numbers["ino"] for numbers, _ in found.values()}) == len(found), "the same number would be a hard link"


def test_folders_come_before_what_is_in_them_and_once() -> None:
    archive = Archive()
    archive.file("/a/b/c/d", b"")
    archive.file("a/b/e", b"")
    names = [name for name, _, _ in read(archive.packed())]
    assert names == ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/e"]
    assert "a/b/c" in archive
    assert "a/x" not in archive


@pytest.mark.parametrize("path", ["", "/", "a//b", "../a", "a/../b", "./a"])
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        Archive().file(path, b"")


def test_nothing_is_there_twice() -> None:
    archive = Archive()
    archive.file("a/b", b"")
    with pytest.raises(ValueError, match="already"):
        archive.file("a/b", b"")
    with pytest.raises(ValueError, match="already"):
        archive.folder("a")


@settings(max_examples=40)
@given(st.dictionaries(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.binary(max_size=50), max_size=8))
def test_what_goes_in_comes_out(files: dict[str, bytes]) -> None:
    archive = Archive()
    for name, content in files.items():
        archive.file(name, content)
    assert {name: content for name, _, content in read(archive.packed())} == files
