"""docs/contracts.md lists every requirement of the five documents once, and names only tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUMBERS = {"V": 56, "R": 50, "I": 48, "L": 49, "D": 41}
ROW = re.compile(r"^\| ([VRILD]\d+) \|(.*)\|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str]]:
    """Id, requirement, status and test of each row."""
    text = (ROOT / "docs/contracts.md").read_text(encoding="utf-8")
    found = []
    for id_, rest in ROW.findall(text):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)]
        assert len(cells) == 3, f"{id_}: {len(cells)} cells"
        found.append((id_, *cells))
    return found


@cache
def functions(path: Path) -> set[str]:
    """The names of the tests in a test file, of the functions in another one (the published suites)."""
    begins = "test_" if path.is_relative_to(ROOT / "tests") else ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = (node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {name for name in names if name.startswith(begins)}


def test_every_requirement_has_one_row() -> None:
    expected = [f"{letter}{number}" for letter, last in NUMBERS.items() for number in range(1, last + 1)]
    assert [row[0] for row in rows()] == expected
    assert all(requirement for _, requirement, _, _ in rows())


def test_every_requirement_is_met_or_met_differently_for_a_reason() -> None:
    wrong = [id_ for id_, _, status, _ in rows() if not re.fullmatch(r"met|differently: \S.+", status)]
    assert wrong == []


def test_every_met_requirement_names_a_test() -> None:
    assert [id_ for id_, _, status, test in rows() if status == "met" and "`" not in test] == []


def test_every_named_test_exists() -> None:
    wrong: list[str] = []
    seen = 0
    for id_, _, _, cell in rows():
        for name in re.findall(r"`([^`]+)`", cell):
            seen += 1
            path, _, function = name.partition("::")
            if not (ROOT / path).exists() or (function and function not in functions(ROOT / path)):
                wrong.append(f"{id_}: {name}")
    assert seen > 200
    assert wrong == []
