"""How much of a long campaign to run: how many rounds, which seeds, which mutants.

`make test` runs a small dose of each campaign, `make soak` the full one, `make soak DOSE=5` five times that. The
seeds of `make test` rotate with the commit, so that every seed of the pool is used within a few commits.
`TEST_SEED=N` repeats a run: the report of every run names its number. Mutants rotate too, unless what they test has
just been changed: then all of them run.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

T = TypeVar("T")

VARIABLE = "TEST_SEED"
CHANGED = "TEST_CHANGED"
"""The paths that were changed, for the workers of this run; a dot: every path."""
MOST_CHANGED = 50_000
"""Characters of the longest list of changed paths that is handed to the workers."""
REPOSITORY = Path(__file__).parents[1]


def dose(*, test: int, full: int) -> int:
    """Return how many rounds to run: `test` in `make test`, `full` times DOSE in `make soak`."""
    asked = os.environ.get("HOSTLER_DOSE")
    return test if not asked else max(test, math.ceil(full * float(asked)))


def seeds(*, test: int, pool: int, full: int | None = None) -> list[int]:
    """Return the seeds to run: `test` of the numbers below `pool` in `make test`, others with each commit.

    In `make soak` all of them, or all below `full` times DOSE.
    """
    asked = os.environ.get("HOSTLER_DOSE")
    if asked:
        return list(range(max(pool, math.ceil((full or pool) * float(asked)))))
    first = rotation() * test
    return sorted({(first + number) % pool for number in range(min(test, pool))})


def part(items: Iterable[T], *, test: int) -> list[T]:
    """Return the items to run, in their order: `test` of them in `make test`, others with each commit; all in soak."""
    every = list(items)
    if os.environ.get("HOSTLER_DOSE"):
        return every
    first = rotation() * test
    numbers = {(first + number) % len(every) for number in range(min(test, len(every)))}
    return [every[number] for number in sorted(numbers)]


def every_nth(numbers: range, nth: int) -> range:
    """Return every `nth` of the numbers in `make test`, beginning with another one at each commit; all in soak."""
    return numbers if os.environ.get("HOSTLER_DOSE") else numbers[rotation() % nth :: nth]


def mutants_to_run(mutants: Iterable[T], *paths: str) -> list[T]:
    """Return the mutants (or planted defects) to run: all in soak, or if one of `paths` was changed, else a fifth.

    `paths` are files and folders, relative to the repository, that decide whether a mutant is found: the suite, the
    port, the driver. The fifth, at least one, rotates with the commit.
    """
    every = list(mutants)
    if any(map(_was_changed, paths)):
        return every
    return part(every, test=math.ceil(len(every) / 5))


def rotates(every: int, *paths: str) -> pytest.MarkDecorator:
    """Mark tests whose claims other tests of the same run prove in another way.

    `make test` runs one in `every` of them, others with each commit; all of them in soak, or if one of `paths` was
    changed.
    """
    return pytest.mark.rotates(every=1 if any(map(_was_changed, paths)) else every)


def left_for_other_commits(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return those of the collected tests that rotate and are not this commit's."""
    if os.environ.get("HOSTLER_DOSE"):
        return []
    left, numbers = [], Counter[Path]()
    for item in items:
        mark = item.get_closest_marker("rotates")
        if mark is not None:
            numbers[item.path] += 1
            if (numbers[item.path] + rotation()) % mark.kwargs["every"]:
                left.append(item)
    return left


def _was_changed(path: str) -> bool:
    assert (REPOSITORY / path).exists(), f"{path} does not exist: what would its change be?"
    return any(each in (".", path) or each.startswith(f"{path}/") for each in changed_paths())


@functools.cache
def changed_paths() -> Collection[str]:
    """Return the paths that differ from the commit before the last: those of the last commit and of the working tree.

    A dot stands for every path: what was changed is not known.
    """
    if CHANGED not in os.environ:
        found = (
            _git("diff", "--name-only", "--no-renames", "HEAD~1"),
            _git("ls-files", "--others", "--exclude-standard"),
        )
        text = "." if None in found else "".join(filter(None, found))
        os.environ[CHANGED] = text if len(text) <= MOST_CHANGED else "."  # the workers of this run use the same
    return frozenset(os.environ[CHANGED].splitlines())


@functools.cache
def rotation() -> int:
    """Return the number that chooses the seeds of this run: that of the commit, unless TEST_SEED says another."""
    asked = os.environ.get(VARIABLE)
    if asked:
        return int(asked)
    counted = _git("rev-list", "--count", "HEAD")
    number = int(counted or 0)
    os.environ[VARIABLE] = str(number)  # the workers of this run use the same
    return number


def _git(*arguments: str) -> str | None:
    """Return what git prints; None: it failed, as outside a repository."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return ended.stdout if ended.returncode == 0 else None
