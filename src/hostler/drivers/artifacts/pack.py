"""Build a wheel from a folder with a `pyproject.toml`, or publish a built file: the same source gives the same bytes.

No code of the source is run. The wheel contains the module or the package of the project, from `src/` or from next to
`pyproject.toml`. It is not compressed, because compressor output differs between machines.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import os
import re
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.drivers.artifacts.folder import translate_file_errors, write_synced
from hostler.drivers.artifacts.metadata import MAX_SIZE, is_module, parse_source
from hostler.drivers.artifacts.wheel import ENTRY_POINTS, MAX_ENTRIES, MAX_METADATA, describe_wheel, normal, read_wheel
from hostler.errors import Invalid, NotFound

if TYPE_CHECKING:
    from hostler.ports.slices import ArtifactInfo

PROJECT = "pyproject.toml"
_SKIPPED = frozenset({"__pycache__"})
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class Packed(msgspec.Struct, frozen=True):
    """A file that can be published."""

    info: ArtifactInfo
    path: Path


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `pyproject.toml`."""

    name: str
    version: str
    group: str
    module: str
    summary: str = ""
    python: str = ""
    requires: tuple[str, ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()
    """Names inside the wheel, and their content."""


def pack(source: Path, to: Path, *, group: str | None = None, version: str | None = None) -> Packed:
    """Make a publishable file from a folder, a wheel or a module; a file that has to be built goes into `to`.

    Invalid: something is missing or wrong; the message says where. NotFound: no such file.
    """
    if not source.exists():
        raise NotFound(f"{source}: no such file or folder")
    if source.is_dir():
        project = read_project(source, group=group, version=version)
        path = to / _file_name(project)
        with translate_file_errors(to):
            path.unlink(missing_ok=True)
            write_synced(path, wheel_of(project))
        return Packed(describe_wheel(path, f"{project.group}:{project.name}:{project.version}"), path)
    if group is None:
        raise Invalid(f"{source}: the group is not known; give --group, such as --group org.example")
    if source.suffix == ".whl":
        found = read_wheel(source)
        artifact = f"{group}:{found.name}:{version or found.version}"
    else:
        artifact = f"{group}:{source.stem}:{version or _version_in(source)}"
        parse_source(source.name, _read(source))
    return Packed(describe_wheel(source, artifact), source)


def source_of(path: Path) -> tuple[Path, str]:
    """Return the import path and the module name of a folder or a module."""
    if not path.exists():
        raise NotFound(f"{path}: no such file or folder")
    if not path.is_dir():
        if path.suffix != ".py" or not is_module(path.stem) or "." in path.stem:
            raise Invalid(f"{path}: not a module; name a folder with {PROJECT}, or a .py file")
        return path.parent, path.stem
    module = read_project(path, group="development", version="0").module
    top = module.partition(".")[0]
    in_src = path / "src"
    return (in_src if (in_src / top / "__init__.py").is_file() or (in_src / f"{top}.py").is_file() else path), module


def read_project(folder: Path, *, group: str | None = None, version: str | None = None) -> Project:
    """Read the project of a folder. Invalid: what is wrong with it, and where."""
    where = folder / PROJECT
    if not where.is_file():
        raise NotFound(f"{where}: not found; begin with hostler slice new, or name a .whl or .py file")
    try:
        table = tomllib.loads(_read(where).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{where}: {error}") from None
    project = _table(where, table, "project")
    tool = _table(where, _table(where, table, "tool"), "hostler")
    name = _text(where, project, "name")
    if not _NAME.fullmatch(name):
        raise Invalid(f"{where}: project.name = {name!r}: letters, digits and . _ - only")
    version = version or (_text(where, project, "version") if "version" in project else None)
    if version is None:
        raise Invalid(f"{where}: project.version is missing; write it there, or give --version")
    if not _VERSION.fullmatch(version):
        raise Invalid(f"{where}: version {version!r}: letters, digits and . _ + - only")
    group = group or (_text(where, tool, "group") if "group" in tool else None)
    if group is None:
        raise Invalid(f'{where}: [tool.hostler] group = "org.example" is missing; write it there, or give --group')
    module = _module(where, project, name)
    return Project(
        name=name,
        version=version,
        group=group,
        module=module,
        summary=" ".join(_text(where, project, "description").split()) if "description" in project else "",
        python=_text(where, project, "requires-python") if "requires-python" in project else "",
        requires=tuple(_texts(where, project, "dependencies")),
        files=tuple(_files(folder, module.partition(".")[0])),
    )


def wheel_of(project: Project) -> bytes:
    """Return the wheel: the same project gives the same bytes, on every machine and at any time."""
    info = f"{_plain(project.name)}-{project.version.replace('-', '_')}.dist-info"
    entries = [
        *project.files,
        (f"{info}/METADATA", _metadata(project).encode()),
        (
            f"{info}/WHEEL",
            b"Wheel-Version: 1.0\nGenerator: hostler\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
        (f"{info}/entry_points.txt", f"[{ENTRY_POINTS}]\n{_plain(project.name)} = {project.module}\n".encode()),
    ]
    record = "".join(f"{name},sha256={_sum(data)},{len(data)}\n" for name, data in entries)
    entries.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, data in entries:
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, data)
    return out.getvalue()


def _metadata(project: Project) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {project.name}", f"Version: {project.version}"]
    lines += [f"Summary: {project.summary}"] if project.summary else []
    lines += [f"Requires-Python: {project.python}"] if project.python else []
    lines += [f"Requires-Dist: {one}" for one in project.requires]
    return "".join(f"{line}\n" for line in lines)


def _sum(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def _plain(name: str) -> str:
    return normal(name).replace("-", "_")


def _file_name(project: Project) -> str:
    return f"{_plain(project.name)}-{project.version.replace('-', '_')}-py3-none-any.whl"


# Content of the wheel


def _module(where: Path, project: dict[str, Any], name: str) -> str:
    points = _table(where, _table(where, project, "entry-points"), ENTRY_POINTS)
    if len(points) > 1:
        raise Invalid(f'{where}: [project.entry-points."{ENTRY_POINTS}"]: names several modules; leave one')
    module = next((_text(where, points, key) for key in points), _plain(name))
    if not is_module(module):
        raise Invalid(f'{where}: [project.entry-points."{ENTRY_POINTS}"]: {module!r} is not a module')
    return module


def _files(folder: Path, top: str) -> list[tuple[str, bytes]]:
    for root in (folder / "src", folder):
        package, module = root / top, root / f"{top}.py"
        if (package / "__init__.py").is_file():
            found = _read_files(package, top)
            break
        if module.is_file():
            found = [(f"{top}.py", _content(module))]
            break
    else:
        raise Invalid(f"{folder}: neither {top}.py nor {top}/__init__.py exists, here or in src/")
    if sum(len(data) for _, data in found) > MAX_SIZE - MAX_METADATA:
        raise Invalid(f"{folder}: larger than {MAX_SIZE} bytes; leave out what the slice does not need")
    for name, data in found:
        if name.endswith(".py"):
            parse_source(name, data)
    return found


def _read_files(package: Path, top: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    size = 0
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED and name[0] != ".")
        for name in (*folders, *names):
            if (path := Path(folder, name)).is_symlink():
                raise Invalid(f"{path}: is a link; replace it with the file itself")
        inside = os.path.relpath(folder, package)
        for name in sorted(names):
            if name[0] == "." or name.endswith(".pyc"):
                continue
            data = _content(package / inside / name)
            size += len(data)
            if size > MAX_SIZE or len(found) >= MAX_ENTRIES - 10:
                raise Invalid(
                    f"{package}: more than {MAX_SIZE} bytes or {MAX_ENTRIES} files; leave out what is not needed"
                )
            found.append((top + "/" + ("" if inside == "." else f"{inside}/") + name, data))
    return sorted(found)


def _content(path: Path) -> bytes:
    if path.is_symlink() or not path.is_file():
        raise Invalid(f"{path}: not a regular file; replace it with the file itself")
    return _read(path)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SIZE + 1)
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_SIZE:
        raise Invalid(f"{path}: larger than {MAX_SIZE} bytes; leave out what the slice does not need")
    return data


def _version_in(path: Path) -> str:
    """Return `__version__ = "1.0.0"` of a module."""
    for statement in parse_source(path.name, _read(path)).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if "__version__" in targets and isinstance(statement.value.value, str):
                return statement.value.value
    raise Invalid(f'{path}: the version is not known; add __version__ = "1.0.0" to it, or give --version')


# pyproject.toml


def _table(where: Path, table: dict[str, Any], name: str) -> dict[str, Any]:
    found = table.get(name, {})
    if not isinstance(found, dict):
        raise Invalid(f"{where}: {name}: must be a table")
    return found


def _text(where: Path, table: dict[str, Any], name: str) -> str:
    found = table.get(name)
    if not isinstance(found, str) or not found.strip() or not found.isprintable():
        raise Invalid(f"{where}: {name}: required, and must be one line of text")
    return found


def _texts(where: Path, table: dict[str, Any], name: str) -> list[str]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(one, str) and one.isprintable() for one in found):
        raise Invalid(f"{where}: {name}: must be a list of texts")
    return found
