"""Names of modules and classes are words of docs/glossary.md, and one name has one meaning."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "hostler"
BENCHMARKS = Path(__file__).parents[2] / "bench"

BANNED_MODULES = frozenset(
    re.findall(
        r"\w+",
        """
    absence agenda annals arrival aside attention attic bell board books breaking census consent crew departure
    discretion doing door doors doubles electricity fit fleet floor form former fresh ground happening hearing
    helpers journey judgement kept known ledger line lines look looking manager measured million moments moving
    offer outlook own part parts pieces place places placing printed prompt reach right roll roster rounds scene
    seen sending shape share shelf shift shown side sight silence site slot slowing smallest standing stock strays
    surroundings sweep tally telling together topic trouble turn typed utils walk whole wire wish wishes word
    writing
        """,
    )
)
"""Private words for public ideas; the glossary has the word to use instead."""

BANNED_CLASSES = frozenset(
    re.findall(
        r"\w+",
        """
    Absences Agenda Annals Attention Attic Bell Board Books Census Chronicle Doors Doorway Fleet Floor Ground
    Handovers Happening Hearing Keeper Kept Known Ledger Looks Outlook Place Roll Rolls Roster Rounds Scene Seen
    Shelf Shift Side Sight Silence Site Slot Stock Strays Surroundings Tally Telling Topic Topics Wanted Way Wire
    Wish Wishes Writing
        """,
    )
)
STILL_BANNED = frozenset(
    {
        "bench.machines_plane.Way",
        "drivers.machines.qemu.migration.outgoing.Way",
        "drivers.machines.simulated.host.Kept",  # a tag of its journal
        "engine.controllers.migration.Way",
        "engine.migration_table.Way",
        "model.replica.Tally",
    }
)
"""Classes that still have a banned name: `package.module.Class`. This list may only become shorter."""

SHARED_NAMES = 13
"""Public class names in `engine` that two modules use for two concepts. This number may only become smaller."""


@cache
def classes() -> tuple[tuple[str, str], ...]:
    """Return (module, class name) of every class at the top of a module."""
    found = []
    for path in (*sorted(SOURCE.rglob("*.py")), *sorted(BENCHMARKS.glob("*.py"))):
        if path.name.endswith("_pb2.py"):
            continue
        root = BENCHMARKS.parent if path.parent == BENCHMARKS else SOURCE
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [(module, node.name) for node in tree.body if isinstance(node, ast.ClassDef)]
    return tuple(found)


def test_no_module_has_a_banned_name() -> None:
    modules = [*SOURCE.rglob("*.py"), *BENCHMARKS.glob("*.py")]
    assert len(modules) > 100
    assert [str(path) for path in modules if path.stem in BANNED_MODULES] == []


def test_no_class_has_a_banned_name_that_had_none_before() -> None:
    found = {f"{module}.{name}" for module, name in classes() if name in BANNED_CLASSES}
    assert found - STILL_BANNED == set()
    assert STILL_BANNED - found == set(), "these have another name now: remove them from the list"


def test_no_more_class_names_of_the_engine_have_two_meanings() -> None:
    modules = defaultdict(set)
    for module, name in classes():
        if module.startswith("engine.") and not name.startswith("_"):
            modules[name].add(module)
    shared = {name: sorted(where) for name, where in modules.items() if len(where) > 1}
    assert len(shared) == SHARED_NAMES, shared
