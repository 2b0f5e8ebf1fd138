"""Wheels that strangers made: what they say is read strictly, and nothing in them gets out of its folder."""

from __future__ import annotations

import io
import stat
import struct
import zipfile
from typing import TYPE_CHECKING

import pytest
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.drivers.artifacts import wheel as wheel_module
from hostler.drivers.artifacts.pack import pack
from hostler.drivers.artifacts.wheel import describe_wheel, read_wheel, unpack
from hostler.errors import Invalid, NotFound

if TYPE_CHECKING:
    from pathlib import Path

INFO = "greeting-1.0.0.dist-info"
METADATA = "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0.0\n"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
SLICE = "from hostler.slices import method\n\n\n@method\ndef greet() -> str:\n    return ''\n"
USUAL = {"greeting.py": SLICE, f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": WHEEL}


def made(path: Path, files: dict[str, str | bytes] | None = None, **changes: object) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (USUAL if files is None else files).items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            for field, value in changes.items():
                if name == "greeting.py" or field == "compress_type":
                    setattr(entry, field, value)
            archive.writestr(entry, data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "greeting-1.0.0-py3-none-any.whl"


def test_a_wheel_says_what_it_is(path: Path) -> None:
    more = (
        "Requires-Dist: attrs >=20\nRequires-Dist: Hostler>=0.1\nRequires-Dist: tests; extra == 'dev'\n"
        'Requires-Dist: tomli; python_version < "3.11"\n\nRequires-Dist: not this, it is the text\n'
    )
    found = read_wheel(made(path, USUAL | {f"{INFO}/METADATA": METADATA + more}))
    assert (found.name, found.version, found.module) == ("greeting", "1.0.0", "greeting")
    assert found.requires == ("attrs >=20", 'tomli; python_version < "3.11"')
    info = describe_wheel(path, "org.example:Greeting:1.0.0")
    assert (info.file, info.module, info.size) == (path.name, "greeting", path.stat().st_size)


def test_the_module_is_the_entry_point_or_the_only_one_or_the_one_of_the_name(path: Path) -> None:
    def module(**files: str) -> str:
        named = {name.replace("__", "/"): text for name, text in files.items()}
        return read_wheel(made(path, USUAL | {name.replace("_py", ".py"): text for name, text in named.items()})).module

    points = {f"{INFO}/entry_points.txt": "[console_scripts]\na = b:c\n[hostler.slices]\nhello = other.part\n"}
    package = {"other/__init__.py": "", "other/part.py": ""}
    assert read_wheel(made(path, USUAL | package)).module == "greeting"
    assert read_wheel(made(path, USUAL | package | points)).module == "other.part"
    assert module(helper_py="") == "greeting"
    only = {name: text for name, text in USUAL.items() if name != "greeting.py"}
    assert read_wheel(made(path, only | {"other/__init__.py": ""})).module == "other"
    for files, said in (
        (only, "no modules"),
        (only | {"a.py": "", "b.py": ""}, "which of a, b"),
        (USUAL | points, "'other.part', which is not a module"),
        (USUAL | {f"{INFO}/entry_points.txt": "[hostler.slices]\na = greeting\nb = greeting\n"}, "several"),
        (USUAL | {f"{INFO}/entry_points.txt": "[hostler.slices]\na = greeting:run\n"}, "greeting:run"),
        (USUAL | {f"{INFO}/entry_points.txt": "no section"}, "cannot be read"),
    ):
        with pytest.raises(Invalid, match=said):
            read_wheel(made(path, files))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ("", "Name, once"),
        ("Name: greeting\n", "Version, once"),
        (METADATA + "Name: other\n", "Name, once"),
        (METADATA.replace("greeting", "../x"), r"Name '\.\./x'"),
        (METADATA.replace("1.0.0", "1/0"), "1/0"),
        (METADATA + "Requires-Dist: -e .\n", "Requires-Dist '-e .'"),
        (METADATA + "Requires-Dist: a" * 3 + "\n" * 1 + "Requires-Dist: b\n" * 300, "too many packages"),
        (METADATA + "x" * 2_000_000, "larger than"),
    ],
)
def test_metadata_that_say_too_little_or_too_much_are_refused(path: Path, metadata: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        read_wheel(made(path, USUAL | {f"{INFO}/METADATA": metadata}))


@pytest.mark.parametrize(
    "name",
    [
        *("../evil.py", "a/../../evil.py", "/etc/evil.py", "a//b.py", "./evil.py", "a/./b.py", "a\\..\\b.py"),
        *("C:evil.py", "a\nb.py", "a" * 300 + ".py", "d/" * 40 + "x.py", "..", "a/..", "\u202eyp.live"),
    ],
)
def test_no_entry_leads_out_of_the_folder(path: Path, tmp_path: Path, name: str) -> None:
    made(path, {**USUAL, name: "evil"})
    for act in (lambda: read_wheel(path), lambda: unpack(path, tmp_path / "in" / "to")):
        with pytest.raises(Invalid, match="is an unsafe path"):
            act()
    assert not list(tmp_path.rglob("evil*"))
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"external_attr": (stat.S_IFLNK | 0o777) << 16}, "a link or a device"),
        ({"external_attr": (stat.S_IFCHR | 0o777) << 16}, "a link or a device"),
        ({"external_attr": (stat.S_IFDIR | 0o777) << 16}, "a link or a device"),
        ({"compress_type": zipfile.ZIP_LZMA}, "compression method that wheels do not use"),
        ({"compress_type": zipfile.ZIP_BZIP2}, "compression method that wheels do not use"),
    ],
)
def test_links_devices_and_strange_compression_are_refused(path: Path, changes: dict[str, int], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        read_wheel(made(path, **changes))


def test_what_is_more_than_it_may_be_is_refused(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_module, "MAX_UNPACKED", 2_000_000)
    made(path, {**USUAL, "bomb.py": b"\0" * 2_000_000})
    assert path.stat().st_size < 20_000
    with pytest.raises(Invalid, match="unpacked it is larger than"):
        unpack(path, tmp_path / "to")
    monkeypatch.setattr(wheel_module, "MAX_ENTRIES", 50)
    with pytest.raises(Invalid, match="more than 50 files"):
        read_wheel(made(path, {**USUAL, **{f"m{number}.py": "" for number in range(50)}}))
    monkeypatch.setattr(wheel_module, "MAX_SIZE", 100)
    with pytest.raises(Invalid, match="larger than 100 bytes"):
        read_wheel(path)


def test_an_entry_that_is_longer_than_it_says_is_not_written_whole(path: Path, tmp_path: Path) -> None:
    made(path, {**USUAL, "bomb.py": b"\0" * 1_000_000})
    data = bytearray(path.read_bytes())
    short = struct.pack("<L", 10)
    for mark, offset in ((b"PK\3\4", 22), (b"PK\1\2", 24)):  # in the entry's head, and in the list
        at = data.rindex(b"bomb.py", 0, data.rindex(b"bomb.py")) if mark == b"PK\3\4" else data.rindex(b"bomb.py")
        start = data.rindex(mark, 0, at)
        data[start + offset : start + offset + 4] = short
    path.write_bytes(data)
    with pytest.raises(Invalid, match="bomb"):
        unpack(path, tmp_path / "to")
    assert not list(tmp_path.rglob("bomb*"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_no_name_is_there_twice_or_as_file_and_folder(path: Path) -> None:
    made(path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("greeting.py", "y = 2\n")
    with pytest.raises(Invalid, match="twice"):
        read_wheel(path)
    with pytest.raises(Invalid, match="twice"):
        read_wheel(made(path, {**USUAL, "Greeting.py": ""}))
    with pytest.raises(Invalid, match="as a file and as a folder"):
        read_wheel(made(path, {**USUAL, "greeting.py/x.py": ""}))


@pytest.mark.parametrize("data", [b"", b"PK\5\6", b"not a zip" * 100, b"PK\5\6" + b"\0" * 18])
def test_what_is_no_archive_is_refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(Invalid, match="greeting-1.0.0"):
        read_wheel(path)
    made(path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(Invalid, match="end"):
        read_wheel(path)


def test_only_pure_python_is_taken_and_only_under_its_own_name(path: Path) -> None:
    for said in (WHEEL.replace("true", "false"), WHEEL.replace("py3-none-any", "cp311-cp311-linux_x86_64"), ""):
        with pytest.raises(Invalid, match="not pure Python"):
            read_wheel(made(path, USUAL | {f"{INFO}/WHEEL": said}))
    with pytest.raises(Invalid, match="requires an installer"):
        read_wheel(made(path, USUAL | {"greeting-1.0.0.data/scripts/x": ""}))
    with pytest.raises(Invalid, match=r"one \.dist-info"):
        read_wheel(made(path, USUAL | {"other-1.dist-info/METADATA": METADATA}))
    made(path)
    for other in ("org.example:other:1.0.0", "org.example:greeting:1.0.1"):
        with pytest.raises(Invalid, match="publish it as org.example:greeting:1.0.0"):
            describe_wheel(path, other)
    with pytest.raises(Invalid, match="neither a wheel"):
        describe_wheel(path, "org.example:greeting:1.0.0", file="greeting.zip")


def test_unpacking_is_whole_or_not_at_all(path: Path, tmp_path: Path) -> None:
    unpack(made(path, {**USUAL, "deep/er/x.txt": "x", "deep/": ""}), tmp_path / "new" / "to")
    found = {str(one.relative_to(tmp_path / "new")) for one in (tmp_path / "new").rglob("*") if one.is_file()}
    assert found == {"to/deep/er/x.txt", "to/greeting.py", f"to/{INFO}/METADATA", f"to/{INFO}/WHEEL"}
    spoiled = bytearray(made(path, compress_type=zipfile.ZIP_STORED).read_bytes())
    spoiled[spoiled.index(b"@method")] ^= 1
    path.write_bytes(spoiled)
    with pytest.raises(Invalid, match="cannot be read"):
        unpack(path, tmp_path / "again" / "to")
    assert not list((tmp_path / "again").iterdir())


_NAMES = st.sampled_from(
    [
        "greeting.py",
        "a/b.py",
        "../x",
        "/x",
        "a/../../x",
        f"{INFO}/METADATA",
        f"{INFO}/WHEEL",
        f"{INFO}/entry_points.txt",
    ]
) | st.text("ab./\\:\0é", min_size=1, max_size=12)


@settings(max_examples=dose(test=60, full=20_000), deadline=None)
@given(
    files=st.lists(st.tuples(_NAMES, st.binary(max_size=60), st.integers(0, 0xFFFF)), max_size=6),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 40),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_whatever_comes_is_unpacked_inside_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, bytes, int]],
    flips: list[tuple[int, int]],
    cut: int,
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in USUAL.items():
            archive.writestr(name, text)
        for name, data, mode in files:
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, data)
    data = bytearray(out.getvalue())
    for at, value in flips:
        data[at % len(data)] = value
    path = folder / "greeting-1.0.0-py3-none-any.whl"
    path.write_bytes(data[: len(data) - cut] if cut < 5 else data)
    for act in (lambda: read_wheel(path), lambda: unpack(path, folder / "in" / "to")):
        try:
            act()
        except Invalid:
            continue
    outside = [one for one in folder.rglob("*") if not one.is_relative_to(folder / "in" / "to")]
    assert {one for one in outside if one != folder / "in"} == {path}
    assert all(one.is_file() or one.is_dir() for one in folder.rglob("*") if not one.is_symlink())
    assert not any(one.is_symlink() for one in folder.rglob("*"))


# Packing

PROJECT = """
[project]
name = "my-greeting"
version = "1.2.0"
description = "Says hello"
requires-python = ">=3.11"
dependencies = ["hostler", "attrs>=20"]

[tool.hostler]
group = "org.example"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "my_greeting" / "part").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name in ("__init__.py", "part/__init__.py", "part/one.py", "words.txt"):
        (folder / "my_greeting" / name).write_text(f"# {name}\n")
    (folder / "test_my_greeting.py").write_text("")
    return folder


def test_the_same_folder_is_the_same_bytes(project: Path, tmp_path: Path) -> None:
    first = pack(project, tmp_path)
    before = first.path.read_bytes()
    (project / "my_greeting/__pycache__").mkdir()
    (project / "my_greeting/__pycache__/x.pyc").write_text("")
    (project / "my_greeting/.hidden").write_text("")
    for path in project.rglob("*"):
        path.chmod(0o700)
    first.path.unlink()
    (tmp_path / "elsewhere").mkdir()
    moved = project.rename(tmp_path / "elsewhere/moved")
    again = pack(moved, tmp_path / "elsewhere")
    assert again.path.read_bytes() == before
    assert again.info == first.info
    assert first.info.artifact == "org.example:my-greeting:1.2.0"
    assert (first.info.file, first.info.module) == ("my_greeting-1.2.0-py3-none-any.whl", "my_greeting")
    assert first.info.requires == ("attrs>=20",)
    with zipfile.ZipFile(again.path) as archive:
        assert archive.testzip() is None
        told = {(one.date_time, one.compress_type, one.external_attr >> 16) for one in archive.infolist()}
        assert told == {((1980, 1, 1, 0, 0, 0), zipfile.ZIP_STORED, 0o100644)}, "what differs from machine to machine"
        assert [name for name in archive.namelist() if "dist-info" not in name] == [
            *("my_greeting/__init__.py", "my_greeting/part/__init__.py", "my_greeting/part/one.py"),
            "my_greeting/words.txt",
        ]
        record = archive.read("my_greeting-1.2.0.dist-info/RECORD").decode().splitlines()
        assert [line.partition(",")[0] for line in record] == archive.namelist()
    unpack(again.path, tmp_path / "unpacked")
    assert (tmp_path / "unpacked/my_greeting/part/one.py").read_text() == "# part/one.py\n"


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        (SLICE, True),
        ("import hostler.slices\n\n@hostler.slices.method(idempotent=True)\nasync def a(): ...\n", True),
        ("import hostler.slices as s\nb = s.method(print)\n", True),
        ("from hostler import slices\n@slices.method\ndef a(): ...\n", True),
        ("from hostler.slices import method as m\nif True:\n    @m\n    def a(): ...\n", True),
        ("from hostler.slices import *\n@method\ndef a(): ...\n", True),
        ("from hostler.slices import method\ndef a(): ...\n", False),
        ("def method(f): return f\n@method\ndef a(): ...\n", False),
        ("", False),
    ],
)
def test_what_could_never_be_called_is_not_published(path: Path, tmp_path: Path, text: str, fine: bool) -> None:
    module = tmp_path / "greeting.py"
    module.write_text(text)
    made(path, USUAL | {"greeting.py": text})
    for file in (module, path):
        if fine:
            describe_wheel(file, "g:greeting:1.0.0")
        else:
            with pytest.raises(Invalid, match="nothing in it can be called; mark a function with @method"):
                describe_wheel(file, "g:greeting:1.0.0")
    made(path, USUAL | {"greeting.py": "from inner import greet\n", "inner.py": SLICE, "odd.py": "print 'old'"})
    assert describe_wheel(path, "g:greeting:1.0.0").module == "greeting"
    needs = {f"{INFO}/METADATA": METADATA + "Requires-Dist: base\n"}
    describe_wheel(made(path, USUAL | needs | {"greeting.py": "from base import greet\n"}), "g:greeting:1.0.0")


def test_what_could_never_be_loaded_is_not_published(path: Path, tmp_path: Path) -> None:
    """A node would find out, and the version would be taken by then."""
    module = tmp_path / "greeting.py"
    for text in ("def broken(:\n", "x = " + "(" * 5000 + ")" * 5000, "\0"):
        module.write_text(SLICE + text)
        with pytest.raises(Invalid, match="greeting.py"):
            describe_wheel(module, "g:greeting:1")
        with pytest.raises(Invalid, match="greeting.py"):
            describe_wheel(made(path, USUAL | {"greeting.py": SLICE + text}), "g:greeting:1.0.0")
    module.write_text(SLICE)
    for name in ("a.b.py", "1a.py", "a-b.py"):
        with pytest.raises(Invalid, match="rename the file"):
            describe_wheel(module, "g:greeting:1", file=name)
    needs = METADATA + "Requires-Dist: base[x] @ https://example.org/base.whl\n"
    with pytest.raises(Invalid, match="slice_packages"):
        describe_wheel(made(path, USUAL | {f"{INFO}/METADATA": needs}), "g:greeting:1.0.0")
    needs = METADATA + "Requires-Dist: base @ https://example.org/base.whl ; extra == 'dev'\n"
    describe_wheel(made(path, USUAL | {f"{INFO}/METADATA": needs}), "g:greeting:1.0.0")
    spoiled = bytearray(made(path, USUAL | {"data.txt": "unread"}, compress_type=zipfile.ZIP_STORED).read_bytes())
    spoiled[spoiled.index(b"unread")] ^= 1
    path.write_bytes(spoiled)
    with pytest.raises(Invalid, match=r"data\.txt' in it cannot be read"):
        describe_wheel(path, "g:greeting:1.0.0")


def test_group_and_version_can_be_given_and_change_the_artifact(project: Path, tmp_path: Path) -> None:
    found = pack(project, tmp_path, group="com.example", version="2.0.0-rc1")
    assert found.info.artifact == "com.example:my-greeting:2.0.0-rc1"
    again = pack(found.path, tmp_path, group="other")
    assert again.info.artifact == "other:my-greeting:2.0.0-rc1"
    module = tmp_path / "solo.py"
    module.write_text(f'{SLICE}\n__version__ = "0.3"\n')
    assert pack(module, tmp_path, group="g").info.artifact == "g:solo:0.3"
    assert pack(module, tmp_path, group="g", version="1").info.artifact == "g:solo:1"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "my-greeting"', "", "name: required"),
        ('version = "1.2.0"', "", r"project.version is missing.*--version"),
        ('group = "org.example"', "", "--group"),
        ('group = "org.example"', 'group = "../x"', "group:name:version"),
        ('"my-greeting"', '"other"', "neither other.py nor other/__init__.py"),
        ("[project]", "[project", r"pyproject.toml: .*line 2"),
        ('["hostler", "attrs>=20"]', '"attrs"', "dependencies: must be a list"),
        ("[tool.hostler]", '[project.entry-points."hostler.slices"]\na = "a b"\n[tool.hostler]', "is not a module"),
    ],
)
def test_what_is_missing_or_wrong_in_a_project_is_named(
    project: Path, tmp_path: Path, old: str, new: str, said: str
) -> None:
    (project / "pyproject.toml").write_text(PROJECT.replace(old, new))
    with pytest.raises(Invalid, match=said):
        pack(project, tmp_path)


def test_broken_code_links_and_nothing_at_all_are_refused_by_name(project: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing.whl"):
        pack(tmp_path / "nothing.whl", tmp_path)
    with pytest.raises(NotFound, match="hostler slice new"):
        pack(tmp_path, tmp_path)
    (project / "my_greeting/bad.py").write_text("x = 1\ndef broken(:\n")
    with pytest.raises(Invalid, match=r"my_greeting/bad\.py:2: "):
        pack(project, tmp_path)
    (project / "my_greeting/bad.py").unlink()
    (project / "my_greeting/bad.py").symlink_to("/etc/passwd")
    with pytest.raises(Invalid, match="is a link"):
        pack(project, tmp_path)
    module = tmp_path / "solo.py"
    module.write_text("x = 1\n")
    with pytest.raises(Invalid, match="__version__"):
        pack(module, tmp_path, group="g")
    with pytest.raises(Invalid, match="--group"):
        pack(module, tmp_path)
