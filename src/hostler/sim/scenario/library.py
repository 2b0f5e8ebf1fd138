"""Scenarios that come with Hostler, by name, and scenarios in the user's files."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.errors import Invalid, NotFound
from hostler.sim.scenario.format import read_scenario

if TYPE_CHECKING:
    from hostler.sim.scenario.scenario import Scenario

SUFFIXES = (".yaml", ".yml", ".json")
LARGEST = 1024 * 1024
_PACKAGE = Path(__file__).resolve().parents[2]


def folder() -> Path:
    """Return the folder of the library: in the package, or next to `src` in a checkout. NotFound: missing."""
    for place in (_PACKAGE / "scenarios", _PACKAGE.parents[1] / "scenarios"):
        if place.is_dir():
            return place
    raise NotFound("scenarios: not included in this installation; reinstall Hostler, or name a file")


def names() -> list[str]:
    """Return the names of the library, sorted."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def is_file(what: str) -> bool:
    """Return whether `what` is the path of a file, not a name of the library."""
    return "/" in what or what.endswith(SUFFIXES)


def find(what: str) -> Scenario:
    """Return a scenario by its name in the library, or by the path of its file. NotFound, Invalid: not a scenario."""
    if is_file(what):
        return load(Path(what))
    known = names()
    if what not in known:
        close = difflib.get_close_matches(what, known, 1)
        hint = f"did you mean {close[0]}?" if close else "hostler sim list shows all"
        raise NotFound(f"scenario {what}: no such scenario; {hint}")
    return load(folder() / f"{what}.yaml")


def text_of(what: str) -> str:
    """Return the text of the file of a scenario."""
    return _text(Path(what) if is_file(what) else folder() / f"{find(what).name}.yaml")


def load(path: Path) -> Scenario:
    """Read a scenario from a file. An inventory that it names is read from the same folder."""
    return read_scenario(_text(path), str(path), include=lambda other: _text(path.parent / other))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise NotFound(f"{path}: cannot be read: {error.strerror}; check the path") from None
    if len(data) > LARGEST:
        raise Invalid(f"{path}: larger than {LARGEST // 1024} KiB; split it, or check the path")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{path}: not UTF-8; a scenario must be text") from None
