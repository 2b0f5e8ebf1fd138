"""What a machine sends is unpacked below one folder, and nowhere else."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from hostler.entry.archive import pack, unpack
from hostler.errors import Refused


def made(*members: tuple[str, str, str]) -> io.BytesIO:
    """A tar of (kind, name, content or target)."""
    kinds = {
        "file": tarfile.REGTYPE,
        "folder": tarfile.DIRTYPE,
        "symlink": tarfile.SYMTYPE,
        "link": tarfile.LNKTYPE,
        "device": tarfile.CHRTYPE,
        "pipe": tarfile.FIFOTYPE,
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for kind, name, more in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kinds[kind], 0o6755
            if kind == "file":
                member.size = len(more)
                archive.addfile(member, io.BytesIO(more.encode()))
            else:
                member.linkname = more
                archive.addfile(member)
    out.seek(0)
    return out


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("file", "/etc/evil", "x")], "leads out"),
        ([("file", "../evil", "x")], "leads out"),
        ([("file", "a/../../evil", "x")], "leads out"),
        ([("folder", "..", "")], "leads out"),
        ([("symlink", "a", "/etc")], "outside"),
        ([("symlink", "a", "..")], "outside"),
        ([("symlink", "d/a", "../../evil")], "outside"),
        ([("link", "a", "/etc/passwd")], "leads out"),
        ([("link", "a", "../outside")], "leads out"),
        ([("device", "null", "")], "device"),
        ([("pipe", "p", "")], "device or a pipe"),
        # through links that each look harmless: p/q is p, so p/q/../.. is outside
        ([("symlink", "p/q", "."), ("symlink", "r", "p/q/../..")], "outside"),
        ([("symlink", "s", "d"), ("folder", "d", ""), ("file", "s/f", "x")], "not a folder"),
        ([("file", "f", "x"), ("symlink", "s", "f"), ("link", "h", "s")], "other than a file"),
    ],
)
def test_what_leads_out_of_the_folder_is_refused_and_nothing_outside_is_touched(
    members: list[tuple[str, str, str]], words: str, tmp_path: Path
) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "a" / "outside").write_text("as it was")
    with pytest.raises(Refused, match=words):
        unpack(made(*members), inside, lambda _: None)
    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if inside not in each.parents}
    assert left == {"a", "a/b", "a/outside"}
    assert (tmp_path / "a" / "outside").read_text() == "as it was"
    assert not list(inside.rglob("*.part"))


def test_links_that_were_here_before_are_not_followed_either(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    (inside / "d").symlink_to(outside)
    (outside / "kept").write_text("kept")
    (inside / "f").symlink_to(outside / "kept")
    with pytest.raises(Refused, match="not a folder"):
        unpack(made(("file", "d/evil", "x")), inside, lambda _: None)
    unpack(made(("file", "f", "new")), inside, lambda _: None)
    assert (inside / "f").read_text() == "new"
    assert not (inside / "f").is_symlink()
    assert [(each.name, each.read_text()) for each in outside.iterdir()] == [("kept", "kept")]


def test_modes_lose_what_gives_rights_and_files_replace_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("old")
    assert (
        unpack(made(("file", "./f", "new"), ("symlink", "d/l", "../f"), ("link", "h", "f")), tmp_path, lambda _: None)
        == 3
    )
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o755
    assert (tmp_path / "f").read_text() == (tmp_path / "d" / "l").read_text() == "new"
    assert (tmp_path / "h").stat().st_ino == (tmp_path / "f").stat().st_ino
    (tmp_path / "folder").mkdir()
    with pytest.raises(Refused, match="folder of this name"):
        unpack(made(("file", "folder", "x")), tmp_path, lambda _: None)
    with pytest.raises(Refused, match="in the way"):
        unpack(made(("folder", "f", "")), tmp_path, lambda _: None)


def test_who_asked_for_one_file_gets_one(tmp_path: Path) -> None:
    assert unpack(made(("file", "./there", "x")), tmp_path, lambda _: None, only="here") == 1
    assert (tmp_path / "here").read_text() == "x"
    for members in ([("symlink", "a", "b")], [("file", "a", "x"), ("file", "b", "y")], [("folder", "a", "")]):
        with pytest.raises(Refused, match="one file was requested"):
            unpack(made(*members), tmp_path, lambda _: None, only="other")
    with pytest.raises(Refused, match="not a tar stream"):
        unpack(io.BytesIO(b"tar: not found"), tmp_path, lambda _: None)


def test_what_is_packed_belongs_to_nobody_and_comes_out_alike(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "d").mkdir(parents=True)
    target.mkdir()
    (source / "d" / "f").write_bytes(os.urandom(300_000))
    (source / "l").symlink_to("d/f")
    counted: list[int] = []
    skipped: list[str] = []
    os.mkfifo(source / "p")
    out = io.BytesIO()
    pack(source, "name", out, counted.append, skipped.append)
    assert sum(counted) == 300_000
    assert len(skipped) == 1
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        assert {(member.uid, member.gid, member.uname) for member in archive} == {(0, 0, "")}
    out.seek(0)
    assert unpack(out, target, lambda _: None) == 2
    assert (target / "name" / "d" / "f").read_bytes() == (source / "d" / "f").read_bytes()
    assert os.readlink(target / "name" / "l") == "d/f"
