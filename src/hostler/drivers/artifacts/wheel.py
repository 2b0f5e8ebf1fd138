"""Read a wheel or a module from an untrusted source, and unpack it without writing outside the target folder.

Every entry is checked before any is written: its name, its kind, its size. An error names the entry. Only pure Python
is accepted, because such a wheel needs no installer: once unpacked, it can be imported.
"""

from __future__ import annotations

import configparser
import email.policy
import os
import re
import secrets
import shutil
import stat
import struct
import zipfile
import zlib
from email.parser import BytesParser
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.artifacts.folder import checksum_of, translate_file_errors
from hostler.drivers.artifacts.metadata import (
    MAX_READ,
    MAX_REQUIREMENT,
    MAX_REQUIRES,
    MAX_SIZE,
    check_info,
    is_module,
    marks,
    no_marks,
    parse_artifact,
    parse_source,
)
from hostler.errors import Invalid
from hostler.kit.fsync import sync_folder
from hostler.ports.slices import ArtifactInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

MAX_ENTRIES = 10_000
MAX_UNPACKED = 512 * 1024 * 1024
"""Maximum total size in bytes of the files in one wheel."""
MAX_METADATA = 1024 * 1024
MAX_SOURCE = 16 * 1024 * 1024
"""Maximum number of bytes of source that are parsed to find a marked method."""
MAX_PATH = 400
MAX_DEPTH = 30
MAX_DIRECTORY = 8 * 1024 * 1024
"""Maximum size in bytes of the archive's central directory."""
ENTRY_POINTS = "hostler.slices"
_END = struct.Struct("<4s4H2LH")
_CHUNK = 256 * 1024
_BAD_IN_NAME = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')
_EXTRA = re.compile(r";.*\bextra\b")
_NAME = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_ELSEWHERE = re.compile(r"[^;]*@")
"""`name @ URL`."""
_HOSTLER = "hostler"


class Wheel(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a wheel."""

    name: str
    version: str
    module: str
    """The module to import: the entry point of the group `hostler.slices`, else the only top-level module."""
    requires: tuple[str, ...] = ()
    """Without Hostler itself, and without requirements of extras."""


def describe_wheel(path: Path, artifact: str, *, file: str = "") -> ArtifactInfo:
    """Return the description of the file as that artifact. Invalid: not a wheel or module, or one of another name.

    `file` is its name, if its path does not tell.
    """
    wanted, file = parse_artifact(artifact), file or path.name
    with translate_file_errors(path):
        sha256, size = checksum_of(path)
    if file.endswith(".whl"):
        found = read_wheel(path, named=file, whole=True)
        if normal(found.name) != normal(wanted.name) or found.version != wanted.version:
            raise Invalid(
                f"artifact {artifact}: {file} is {found.name} {found.version};"
                f" publish it as {wanted.group}:{found.name}:{found.version}"
            )
        module, requires = found.module, found.requires
    elif file.endswith(".py"):
        module, requires = file.removesuffix(".py"), ()
        _check_module(path, file, module)
    else:
        raise Invalid(f"artifact {artifact}: {file[:80]!r} is neither a wheel (.whl) nor a module (.py)")
    info = ArtifactInfo(artifact=artifact, file=file, sha256=sha256, size=size, module=module, requires=requires)
    return check_info(info)


def normal(name: str) -> str:
    """Return a package's name normalized as packaging tools compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _check_module(path: Path, file: str, module: str) -> None:
    if "." in module or not is_module(module):
        raise Invalid(f"{file}: {module[:80]!r} is not a name that can be imported; rename the file")
    if path.stat().st_size <= MAX_READ and not marks(parse_source(file, path.read_bytes())):
        raise no_marks(file)


def read_wheel(path: Path, *, named: str = "", whole: bool = False) -> Wheel:
    """Return the metadata of a wheel. Invalid: not a usable wheel.

    `whole`: check all of its content, as far as possible without running it.
    """
    named = named or path.name
    with _Archive(path, named) as archive:
        found = _read(archive)
        if whole:
            archive.check()
            _check_sources(archive, found)
        return found


def _check_sources(archive: _Archive, wheel: Wheel) -> None:
    """Check that the imported module is Python, and that a method is marked, unless a required package may mark one."""
    parts = wheel.module.split(".")
    above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    imported = [name for part in above for name in (f"{part}/__init__.py", f"{part}.py") if name in archive.entries]
    others = [name for name in archive.names() if name.endswith(".py") and name not in imported]
    left, marked = MAX_SOURCE, bool(wheel.requires)
    for name in (*reversed(imported), *others):
        size = archive.entries[name].file_size
        if marked and name in others:
            return
        if size > min(left, MAX_READ):
            marked = True  # not known
            continue
        left -= size
        try:
            marked |= marks(parse_source(f"{archive.named}: {name}", archive.read(name, MAX_READ)))
        except Invalid:
            if name in imported:
                raise
    if not marked:
        raise no_marks(archive.named)


def unpack(path: Path, to: Path) -> None:
    """Unpack the wheel as the folder `to`, which must not exist: completely, or not at all.

    Invalid: an entry would be written outside, or exceeds a limit.
    """
    fresh = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    with translate_file_errors(to.parent), _Archive(path, path.name) as archive:
        fresh.mkdir(mode=0o755, parents=True)
        try:
            archive.unpack(fresh)
            fresh.rename(to)
            sync_folder(to.parent)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise


class _Archive:
    """A zip file. Invalid: not a zip file, or with content that no wheel has."""

    def __init__(self, path: Path, named: str) -> None:
        self.named = named[:200]
        with translate_file_errors(path):
            self._file = path.open("rb")
        try:
            self._check_end()
            self._zip = zipfile.ZipFile(self._file)
            self.entries = self._check_files(self._zip.infolist())
        except (zipfile.BadZipFile, zlib.error, struct.error, ValueError, NotImplementedError, EOFError) as error:
            self._file.close()
            raise self.wrong(f"not a wheel ({error})") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._zip.close()
        self._file.close()

    def wrong(self, why: str) -> Invalid:
        """Return the error to raise."""
        return Invalid(f"{self.named}: {why}; build it again, from a source that you trust")

    def names(self) -> Iterable[str]:
        """Return the names of all files in it."""
        return self.entries

    def read(self, name: str, most: int = MAX_METADATA) -> bytes:
        """Return the content of a small file in it."""
        entry = self.entries[name]
        if entry.file_size > most:
            raise self.wrong(f"{name} is larger than {most} bytes")
        return b"".join(self._chunks(entry))

    def check(self) -> None:
        """Read all of it, which verifies the checksum of each file."""
        for entry in self.entries.values():
            for _ in self._chunks(entry):
                pass

    def unpack(self, to: Path) -> None:
        """Write all of it below `to`."""
        for name, entry in self.entries.items():
            path = to / name
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            with os.fdopen(descriptor, "wb") as out:
                for chunk in self._chunks(entry):
                    out.write(chunk)
                out.flush()
                os.fsync(out.fileno())

    def _check_end(self) -> None:
        """Check the length of the central directory before anything is read into memory."""
        size = self._file.seek(0, os.SEEK_END)
        if size > MAX_SIZE:
            raise self.wrong(f"it is larger than {MAX_SIZE} bytes")
        if size < _END.size:
            raise self.wrong("not a wheel (too short)")
        self._file.seek(size - _END.size)
        mark, *_, count, length, start, comment = _END.unpack(self._file.read(_END.size))
        if mark != b"PK\5\6" or comment or start + length + _END.size != size:
            raise self.wrong("not a wheel (no end-of-archive record)")
        if count > MAX_ENTRIES or length > MAX_DIRECTORY:
            raise self.wrong(f"more than {MAX_ENTRIES} files in it")
        self._file.seek(0)

    def _check_files(self, found: list[zipfile.ZipInfo]) -> Mapping[str, zipfile.ZipInfo]:
        files: dict[str, zipfile.ZipInfo] = {}
        seen: set[str] = set()
        above: set[str] = set()
        total = 0
        if len(found) > MAX_ENTRIES:
            raise self.wrong(f"more than {MAX_ENTRIES} files in it")
        for entry in found:
            name = self._check_name(entry)
            self._check_kind(entry, name)
            total += entry.file_size
            if total > MAX_UNPACKED:
                raise self.wrong(f"unpacked it is larger than {MAX_UNPACKED} bytes")
            parts = name.lower().split("/")
            above.update("/".join(parts[:depth]) for depth in range(1, len(parts)))
            if entry.is_dir():
                above.add("/".join(parts))
                continue
            if "/".join(parts) in seen:
                raise self.wrong(f"{name!r} is in it twice")
            seen.add("/".join(parts))
            files[name] = entry
        if both := min(seen & above, default=""):
            raise self.wrong(f"{both!r} is in it as a file and as a folder")
        return files

    def _check_name(self, entry: zipfile.ZipInfo) -> str:
        name = entry.orig_filename.removesuffix("/")
        parts = name.split("/")
        if (
            not name
            or len(name) > MAX_PATH
            or len(parts) > MAX_DEPTH
            or any(part in ("", ".", "..") or len(part.encode(errors="replace")) > 255 for part in parts)
            or _BAD_IN_NAME.search(name)
            or not name.isprintable()
        ):
            raise self.wrong(f"{entry.orig_filename[:200]!r} is an unsafe path")
        return name

    def _check_kind(self, entry: zipfile.ZipInfo, name: str) -> None:
        mode = entry.external_attr >> 16
        kind = stat.S_IFMT(mode)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (kind == stat.S_IFDIR and not entry.is_dir()):
            raise self.wrong(f"{name!r} is neither a file nor a folder, but a link or a device")
        if entry.flag_bits & 0x1:
            raise self.wrong(f"{name!r} is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.wrong(f"{name!r} has a compression method that wheels do not use")
        if entry.is_dir() and entry.file_size:
            raise self.wrong(f"{name!r} is a folder with content")

    def _chunks(self, entry: zipfile.ZipInfo) -> Iterable[bytes]:
        """Yield its bytes: exactly as many as the directory says, or raise Invalid."""
        size = 0
        try:
            with self._zip.open(entry) as file:
                while chunk := file.read(_CHUNK):
                    size += len(chunk)
                    if size > entry.file_size:
                        break
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, struct.error, NotImplementedError) as error:
            raise self.wrong(f"{entry.filename[:200]!r} in it cannot be read ({error})") from None
        if size != entry.file_size:
            raise self.wrong(f"{entry.filename[:200]!r} in it does not have its declared size")


def _read(archive: _Archive) -> Wheel:
    tops = sorted({name.partition("/")[0] for name in archive.names()})
    infos = [top for top in tops if top.endswith(".dist-info")]
    if len(infos) != 1 or f"{infos[0]}/METADATA" not in archive.entries:
        raise archive.wrong("it must contain exactly one .dist-info folder, with METADATA")
    if data := [top for top in tops if top.endswith(".data")]:
        raise archive.wrong(f"{data[0]} in it requires an installer; a slice must be pure Python")
    _check_pure(archive, f"{infos[0]}/WHEEL")
    metadata = BytesParser(policy=email.policy.compat32).parsebytes(archive.read(f"{infos[0]}/METADATA"), True)
    name, version = (_one(archive, metadata.get_all(field), field) for field in ("Name", "Version"))
    if not _NAME.fullmatch(name) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+!-]*", version):
        raise archive.wrong(f"its metadata say Name {name[:80]!r}, Version {version[:80]!r}")
    return Wheel(
        name=name,
        version=version,
        module=_module(archive, name, infos[0]),
        requires=_requires(archive, metadata.get_all("Requires-Dist") or []),
    )


def _check_pure(archive: _Archive, name: str) -> None:
    if name not in archive.entries:
        raise archive.wrong(f"{name} is missing")
    said = BytesParser(policy=email.policy.compat32).parsebytes(archive.read(name), True)
    pure = str(said.get("Root-Is-Purelib", "")).strip().lower() == "true"
    tags = [str(tag).strip() for tag in said.get_all("Tag") or []]
    if not pure or not any(re.fullmatch(r"[a-z0-9.]*py3[a-z0-9.]*-none-any", tag) for tag in tags):
        raise archive.wrong(f"it is not pure Python 3 (tags: {', '.join(tags)[:200] or 'none'})")


def _one(archive: _Archive, values: Sequence[object] | None, field: str) -> str:
    if values is None or len(values) != 1 or not str(values[0]).strip():
        raise archive.wrong(f"its metadata must say {field}, once")
    return str(values[0]).strip()


def _requires(archive: _Archive, values: Sequence[object]) -> tuple[str, ...]:
    texts = [" ".join(str(value).split()) for value in values]
    if len(texts) > MAX_REQUIRES or any(len(text) > MAX_REQUIREMENT for text in texts):
        raise archive.wrong("it requires too many packages")
    for text in texts:
        if not text.isprintable() or not _NAME.match(text):
            raise archive.wrong(f"its metadata say Requires-Dist {text[:80]!r}")
    needed = tuple(text for text in texts if not _EXTRA.search(text) and not is_hostler(text))
    if elsewhere := next((text for text in needed if _ELSEWHERE.match(text)), ""):
        raise archive.wrong(f"it requires {elsewhere[:200]!r}, but nodes fetch packages only from slice_packages")
    return needed


def is_hostler(requirement: str) -> bool:
    """Return whether it requires Hostler itself, which is always available."""
    found = _NAME.match(requirement)
    return found is not None and normal(found[1]) == _HOSTLER


def _module(archive: _Archive, name: str, info: str) -> str:
    """Return the module to import."""
    points = _entry_points(archive, f"{info}/entry_points.txt")
    if len(points) > 1:
        raise archive.wrong(f"it has several entry points of {ENTRY_POINTS} ({', '.join(points)[:200]}); leave one")
    if points:
        module = points[0]
        if not is_module(module) or not _has(archive, module):
            raise archive.wrong(f"its entry point of {ENTRY_POINTS} is {module[:80]!r}, which is not a module in it")
        return module
    found = modules(archive.names())
    same = [module for module in found if normal(module) == normal(name)]
    if len(found) != 1 and len(same) != 1:
        known = ", ".join(found)[:200] or "no modules"
        raise archive.wrong(f"which of {known} is the slice? name it as an entry point of {ENTRY_POINTS}")
    return (same or found)[0]


def modules(names: Iterable[str]) -> list[str]:
    """Return modules and packages at the top level."""
    found = set()
    for name in names:
        top, _, rest = name.partition("/")
        module = top.removesuffix(".py") if not rest and top.endswith(".py") else top if rest == "__init__.py" else ""
        if module and is_module(module) and "." not in module:
            found.add(module)
    return sorted(found)


def _has(archive: _Archive, module: str) -> bool:
    path = module.replace(".", "/")
    return f"{path}.py" in archive.entries or f"{path}/__init__.py" in archive.entries


def _entry_points(archive: _Archive, name: str) -> list[str]:
    if name not in archive.entries:
        return []
    found = configparser.RawConfigParser(delimiters=("=",), strict=True)
    try:
        found.read_string(archive.read(name).decode())
    except (configparser.Error, UnicodeDecodeError):
        raise archive.wrong(f"{name} in it cannot be read") from None
    return [value for _, value in found.items(ENTRY_POINTS)] if found.has_section(ENTRY_POINTS) else []
