"""The description of an artifact, validated strictly because it names files and the module to import.

Source code is untrusted: it is parsed to find out whether it is Python and marks methods, and never run.
"""

from __future__ import annotations

import ast
import re
from threading import Lock
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Damaged, Invalid
from hostler.model.deployment import Artifact
from hostler.ports.slices import ArtifactInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_SIZE = 64 * 1024 * 1024
"""Maximum size in bytes of an artifact's file."""
MAX_INFO = 256 * 1024
"""Maximum size in bytes of a description."""
MAX_REQUIRES = 200
MAX_REQUIREMENT = 1000
DESCRIPTION = "artifact.json"
INDEX = "index.json"
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,250}\.(whl|py)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGITS = re.compile(r"(\d+)")


def parse_artifact(artifact: str) -> Artifact:
    """Return its group, name and version, each of which is valid as a folder name. Invalid: not an artifact."""
    found = Artifact.parse(artifact)
    if found.group == INDEX:
        raise Invalid(f"artifact {artifact}: the list of all artifacts has that name; choose another group")
    return found


def check_info(info: ArtifactInfo) -> ArtifactInfo:
    """Return `info`. Invalid: a field is not valid."""
    parse_artifact(info.artifact)
    for wrong, why in (
        (not _FILE.fullmatch(info.file), f"file {info.file[:80]!r}: must be the plain name of a .whl or .py"),
        (not _SHA256.fullmatch(info.sha256), f"sha256 {info.sha256[:80]!r}: must be 64 of 0-9 a-f"),
        (not 0 < info.size <= MAX_SIZE, f"size {info.size}: must be from 1 to {MAX_SIZE} bytes"),
        (not is_module(info.module), f"module {info.module[:80]!r}: not a name that can be imported"),
        (len(info.requires) > MAX_REQUIRES, f"requires: names more than {MAX_REQUIRES} packages"),
        (any(len(one) > MAX_REQUIREMENT for one in info.requires), "requires: one of them is too long"),
    ):
        if wrong:
            raise Invalid(f"artifact {info.artifact}: {why}")
    return info


def is_module(name: str) -> bool:
    """Return whether it is a dotted name that `import` accepts."""
    return len(name) <= 255 and name.isascii() and all(part.isidentifier() for part in name.split("."))


def decode_info(data: bytes, artifact: str, where: str) -> ArtifactInfo:
    """Return the description of that artifact. Damaged: it cannot be used."""
    try:
        info = check_info(msgspec.json.decode(data, type=ArtifactInfo))
    except (msgspec.DecodeError, UnicodeDecodeError, Invalid) as error:
        raise Damaged(f"artifact {artifact}: {where} cannot be used ({error}); publish it again") from None
    if info.artifact != artifact:
        raise Damaged(f"artifact {artifact}: {where} describes {info.artifact[:255]} instead; publish it again")
    return info


def order(artifact: str) -> tuple[object, ...]:
    """Return a sort key: by group and name, then by version: 1.10 comes after 1.9."""
    group, _, rest = artifact.partition(":")
    name, _, version = rest.partition(":")
    numbers = tuple((int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(version) if part)
    return group, name, numbers, version


def in_order(found: Iterable[ArtifactInfo], base: str = "") -> tuple[ArtifactInfo, ...]:
    """Return all artifacts, or the versions of `group:name`, sorted."""
    chosen = (info for info in found if not base or info.artifact.startswith(f"{base}:"))
    return tuple(sorted(chosen, key=lambda info: order(info.artifact)))


MAX_READ = 2 * 1024 * 1024
"""Maximum size in bytes of a file that is parsed, because parsing takes time and memory. Larger files are accepted."""
_ALONE = Lock()
"""Python 3.11 miscounts when two threads parse at the same time, and raises a SystemError (gh-106905)."""
_LIBRARY, _MARK = "hostler.slices", "method"


def parse_source(name: str, data: bytes) -> ast.Module:
    """Parse source code, so that a syntax error is found before a node runs it."""
    try:
        with _ALONE:
            return ast.parse(data, filename=name)
    except SyntaxError as error:
        raise Invalid(f"{name}:{error.lineno or 1}: {error.msg}; correct it there") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Invalid(f"{name}: not Python ({error or type(error).__name__}); name another file") from None


def marks(tree: ast.Module) -> bool:
    """Return whether it uses `hostler.slices.method`, under any name, as a decorator or otherwise."""
    names, ways = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            if node.module in (_LIBRARY, f"{_LIBRARY}.declaring"):
                names |= {one.asname or one.name for one in node.names if one.name == _MARK}
                names |= {_MARK for one in node.names if one.name == "*"}
            if node.module == "hostler":
                ways |= {one.asname or one.name for one in node.names if one.name == "slices"}
        elif isinstance(node, ast.Import):
            ways |= {one.asname or one.name for one in node.names if one.name == _LIBRARY}
    return any(
        (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Attribute) and node.attr == _MARK and ast.unparse(node.value) in ways)
        for node in ast.walk(tree)
    )


def no_marks(name: str) -> Invalid:
    """Return the error for code that can be loaded but has no method to call."""
    return Invalid(f"{name}: nothing in it can be called; mark a function with @method of {_LIBRARY}")
