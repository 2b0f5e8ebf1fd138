"""Artefacts: what a failed test leaves for those who look into it.

Each failure is kept in a folder of its own, which the failure names: the report, what was printed and logged, the
files of the test's temporary folder, and the evidence that the test named itself (`keep`). `safe` is for claims about
safety: one violation fails the run, and its history is in the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

VARIABLE = "TEST_ARTEFACTS"
LARGEST_FILE = 2 << 20
LARGEST_FOLDER = 40 << 20
RUNS_KEPT = 20
_EVIDENCE: dict[str, str] = {}


class Unsafe(AssertionError):
    """A promise about safety is broken: nothing lost, nothing doubled, no stale write. It is never tried again."""


def safe(holds: object, claim: str, **evidence: object) -> None:
    """Fail with `Unsafe` unless a claim about safety holds; keep the evidence: histories, records, logs."""
    if holds:
        return
    for name, value in evidence.items():
        keep(name, value)
    raise Unsafe(claim)


def keep(name: str, value: object) -> None:
    """Keep a piece of evidence for the case that this test fails. Texts as they are, others line by line."""
    if isinstance(value, str):
        _EVIDENCE[name] = value
    elif isinstance(value, dict):
        _EVIDENCE[name] = "\n".join(f"{key}: {each!r}" for key, each in value.items())
    elif hasattr(value, "__iter__"):
        _EVIDENCE[name] = "\n".join(map(repr, value))
    else:
        _EVIDENCE[name] = repr(value)


class Artefacts:
    """The plugin: keeps what a failed test left, and names the folder in its report."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report: pytest.TestReport = yield
        if call.when == "setup":
            _EVIDENCE.clear()
        if report.failed:
            try:
                kept = self._keep(item, report)
            except OSError as error:  # a full disk must not hide the failure itself
                report.sections.append(("artefacts", f"could not be kept: {error}"))
            else:
                report.sections.append(("artefacts", f"kept in {kept}"))
        return report

    def _keep(self, item: pytest.Item, report: pytest.TestReport) -> Path:
        name = re.sub(r"[^\w.-]+", "_", item.nodeid.removeprefix("tests/"))[:150]
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        sections = "\n".join(f"---- {title} ----\n{text}" for title, text in report.sections)
        (folder / f"{report.when}.txt").write_text(f"{report.longreprtext}\n{sections}\n", errors="replace")
        for evidence, text in _EVIDENCE.items():
            (folder / f"{evidence}.txt").write_text(text, errors="replace")
        left = getattr(item, "funcargs", {}).get("tmp_path")
        if isinstance(left, Path) and left.is_dir():
            _copy(left, folder / "files")
        return folder


def _copy(source: Path, target: Path) -> None:
    """Plain files that are not too large, until there is too much of them."""
    left = LARGEST_FOLDER
    for folder, _, names in os.walk(source):
        for name in names:
            path = Path(folder) / name
            try:
                found = path.lstat()
                if not stat.S_ISREG(found.st_mode) or found.st_size > min(LARGEST_FILE, left):
                    continue
                copy = target / path.relative_to(source)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
            except OSError:  # it is going away while it is copied
                continue
            left -= found.st_size


def folder_of_run(root: Path, number: Callable[[], str]) -> Path:
    """Return the folder of this run, the same in all its workers. Of earlier runs the newest are kept."""
    if VARIABLE not in os.environ:
        runs = root / ".artefacts"
        for old in sorted(runs.glob("*/"))[: -RUNS_KEPT + 1]:
            shutil.rmtree(old, ignore_errors=True)
        os.environ[VARIABLE] = str(runs / number())
    return Path(os.environ[VARIABLE])
