"""One of a thing is told as one, wherever people read it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hostler
from hostler.entry.cli import main
from hostler.entry.cli.vm.read import _shape
from hostler.model.vm import VmSpec
from hostler.sim.invariants import Verdict
from hostler.sim.scenario.run import verdict_lines

SOURCES = Path(hostler.__file__).parent
BY_HAND = re.compile(
    r"""\{['"]s?['"]\ (\*|if\ .{1,40}\ else\ ['"]s?['"])"""  # machine{'s' * (n != 1)}, machine{'s' if n > 1 else ''}
    r"""|\{len\([^{}]*\)(:,)?\}\ ([a-z]+\ )?(machines|nodes|keys|instances|slices|records|runs|steps|looks|tries)\b""",
    re.VERBOSE,
)
PAGE = Path(__file__).parents[2] / "web" / "src"
ON_THE_PAGE = re.compile(r"\{[^{}]*\} (machines|nodes|instances|slices|records|calls|lines more|blades|labs|users)\b")
ONE_IS_TOLD = re.compile(r"[nN]ame(s\.length|s) > 1|=== 1|\bone \?")
NEVER_ONE = {
    "engine/replica.py": "all of several",
    "engine/text.py": "which they are is said, not how many",
    "sim/invariants/__init__.py": "two or more of what there is to be one",
}


def test_nobody_makes_plurals_by_hand() -> None:
    found = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in sorted(SOURCES.rglob("*.py"))
        if path.relative_to(SOURCES).parts[0] != "testing"
        for line in path.read_text(encoding="utf-8").splitlines()
        if BY_HAND.search(line) and str(path.relative_to(SOURCES)) not in NEVER_ONE
    ]
    assert not found, "use hostler.kit.plural.counted"


def test_nor_does_the_page() -> None:
    found = [
        f"{path.relative_to(PAGE)}: {line.strip()}"
        for path in sorted(PAGE.rglob("*.ts*"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if ON_THE_PAGE.search(line) and not ONE_IS_TOLD.search(line)
    ]
    assert not found, "use count of web/src/ui"


@pytest.mark.parametrize(("cpus", "said"), [(1, "1 cpu, "), (2, "2 cpus, ")])
def test_a_machine_with_one_cpu_has_one(cpus: int, said: str) -> None:
    assert _shape(VmSpec(cpus=cpus, memory_mib=256)).startswith(said)


def test_a_store_with_one_key_and_a_prefix_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ("--store", f"sqlite://{tmp_path}/one.db")
    for words in (("put", "/a", "1"), ("check",), ("delete", "/a", "--prefix", "--yes")):
        assert main(["store", *words, *store]) == 0
    said = capsys.readouterr().out
    assert "no damage, 1 key read" in said
    assert "deleted 1 key\n" in said


def test_an_invariant_that_was_looked_at_once() -> None:
    verdicts = [Verdict(invariant=name, looks=looks, found=0) for name, looks in (("a", 1), ("b", 2))]
    outcome: Any = SimpleNamespace(verdicts=verdicts)
    assert list(verdict_lines(outcome)) == ["  a  holds (1 check)", "  b  holds (2 checks)"]
