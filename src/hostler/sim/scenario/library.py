"""The scenarios that come with Hostler, by name, and those of anybody's own files."""

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
    """Where they are: in the package, or beside `src` in a checkout. NotFound: nowhere."""
    for place in (_PACKAGE / "scenarios", _PACKAGE.parents[1] / "scenarios"):
        if place.is_dir():
            return place
    raise NotFound("scenarios: they did not come with this installation; install Hostler again, or name a file")


def names() -> list[str]:
    """Those of the library, in order."""
    return sorted(path.stem for path in folder().glob("*.yaml"))


def is_file(what: str) -> bool:
    """Whether it is the path of a file, not a name of the library."""
    return "/" in what or what.endswith(SUFFIXES)


def find(what: str) -> Scenario:
    """A scenario by its name in the library, or by the path of its file. NotFound, Invalid: it is none."""
    if is_file(what):
        return load(Path(what))
    known = names()
    if what not in known:
        close = difflib.get_close_matches(what, known, 1)
        hint = f"did you mean {close[0]}?" if close else "hostler sim list shows all"
        raise NotFound(f"scenario {what}: there is none of that name; {hint}")
    return load(folder() / f"{what}.yaml")


def text_of(what: str) -> str:
    """The file of a scenario, as it is written."""
    return _text(Path(what) if is_file(what) else folder() / f"{find(what).name}.yaml")


def load(path: Path) -> Scenario:
    """The scenario that a file holds. An inventory that it names is looked for beside it."""
    return read_scenario(_text(path), str(path), include=lambda other: _text(path.parent / other))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise NotFound(f"{path}: cannot be read: {error.strerror}; check the path") from None
    if len(data) > LARGEST:
        raise Invalid(f"{path}: larger than {LARGEST // 1024} KiB; a scenario is a page or two")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{path}: no UTF-8; a scenario is text") from None
