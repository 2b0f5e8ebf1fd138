"""Doses: every seed and every mutant is run within a few commits, and all of them in soak or after a change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import dose
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MUTANTS = [f"mutant {number}" for number in range(11)]
SUITE = "src/hostler/sim"
OUR_FILE = "tests/dose.py"


@pytest.fixture(autouse=True)
def _of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test says which commit it is, what was changed, and how large the dose is."""
    monkeypatch.delenv("HOSTLER_DOSE", raising=False)
    monkeypatch.setenv(dose.CHANGED, "")
    _forget()
    yield
    _forget()


def _forget() -> None:
    dose.rotation.cache_clear()
    dose.changed_paths.cache_clear()


@pytest.fixture
def commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def choose(number: int) -> None:
        monkeypatch.setenv(dose.VARIABLE, str(number))
        _forget()

    return choose


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def choose(*paths: str) -> None:
        monkeypatch.setenv(dose.CHANGED, "\n".join(paths))
        _forget()

    return choose


def test_a_dose_is_small_in_test_and_full_in_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dose.dose(test=3, full=200) == 3
    monkeypatch.setenv("HOSTLER_DOSE", "1")
    assert dose.dose(test=3, full=200) == 200
    monkeypatch.setenv("HOSTLER_DOSE", "0.001")
    assert dose.dose(test=3, full=200) == 3


@pytest.mark.parametrize(("test", "pool"), [(1, 7), (2, 22), (3, 10), (5, 5), (9, 4)])
def test_consecutive_commits_run_every_seed(commit: Callable[[int], None], test: int, pool: int) -> None:
    run: set[int] = set()
    for number in range(1000, 1000 - (-pool // test)):
        commit(number)
        chosen = dose.seeds(test=test, pool=pool)
        assert len(chosen) == min(test, pool)
        run.update(chosen)
    assert run == set(range(pool))


def test_soak_runs_every_seed_of_the_pool_and_more_at_a_larger_dose(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked, number in (("0.01", 22), ("1", 22), ("2", 44)):
        monkeypatch.setenv("HOSTLER_DOSE", asked)
        assert dose.seeds(test=2, pool=22) == list(range(number))
    monkeypatch.setenv("HOSTLER_DOSE", "1")
    assert dose.seeds(test=2, pool=22, full=100) == list(range(100))


def test_consecutive_commits_run_every_mutant(commit: Callable[[int], None]) -> None:
    run: list[str] = []
    for number in range(1000, 1004):
        commit(number)
        chosen = dose.mutants_to_run(MUTANTS, SUITE)
        assert len(chosen) == 3, "a fifth, rounded up"
        run += chosen
    assert set(run) == set(MUTANTS)


def test_consecutive_commits_run_every_number(commit: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    run: list[int] = []
    for number in range(1000, 1005):
        commit(number)
        run += dose.every_nth(range(1, 32), 5)
    assert sorted(run) == list(range(1, 32))
    monkeypatch.setenv("HOSTLER_DOSE", "0.01")
    assert dose.every_nth(range(1, 32), 5) == range(1, 32)


def test_at_least_one_mutant_runs(commit: Callable[[int], None]) -> None:
    commit(17)
    assert len(dose.mutants_to_run(MUTANTS[:2], SUITE)) == 1
    assert dose.mutants_to_run([], SUITE) == []


def test_soak_runs_every_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_DOSE", "0.01")
    assert dose.mutants_to_run(MUTANTS, SUITE) == MUTANTS


@pytest.mark.parametrize("path", [SUITE, f"{SUITE}/world.py", OUR_FILE, "."])
def test_every_mutant_runs_after_a_change_of_what_it_concerns(changed: Callable[..., None], path: str) -> None:
    changed("README.md", path)
    assert dose.mutants_to_run(MUTANTS, SUITE, OUR_FILE) == MUTANTS


@pytest.mark.parametrize("path", ["README.md", f"{SUITE}ulation.py", f"{OUR_FILE}.orig", "src/hostler"])
def test_a_part_of_the_mutants_runs_after_a_change_of_something_else(changed: Callable[..., None], path: str) -> None:
    changed(path)
    assert len(dose.mutants_to_run(MUTANTS, SUITE, OUR_FILE)) == 3


def test_a_path_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="does not exist"):
        dose.mutants_to_run(MUTANTS, "src/hostler/no_such_file.py")


def test_the_changes_are_those_of_the_working_tree_and_of_the_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"diff": "src/hostler/sim/world.py\ndocs/ü.md\n", "ls-files": "new.py\n"}
    monkeypatch.setattr(dose, "_git", lambda verb, *_: said[verb])
    monkeypatch.delenv(dose.CHANGED)
    assert dose.changed_paths() == {"src/hostler/sim/world.py", "docs/ü.md", "new.py"}
    said.clear()
    dose.changed_paths.cache_clear()
    assert "new.py" in dose.changed_paths(), "workers use what the run began with"


def test_everything_counts_as_changed_where_git_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dose, "_git", lambda *_: None)
    monkeypatch.delenv(dose.CHANGED)
    assert dose.changed_paths() == {"."}


def test_git_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dose.CHANGED)
    assert not any(path.startswith("/") for path in dose.changed_paths())
    monkeypatch.delenv(dose.VARIABLE)
    assert dose.rotation() >= 0


class _Test:
    """A collected test, as far as rotation looks at it."""

    path = Path("a_file.py")

    def __init__(self, *marks: pytest.MarkDecorator) -> None:
        self._marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self._marks.get(name)


def _left(tests: list[_Test]) -> set[int]:
    found = dose.left_for_other_commits(cast("list[pytest.Item]", tests))
    return {tests.index(cast("_Test", test)) for test in found}


def test_consecutive_commits_run_every_test_that_rotates_and_always_the_others(commit: Callable[[int], None]) -> None:
    mark = dose.rotates(3, SUITE)
    tests = [_Test(mark), _Test(), _Test(mark), _Test(mark), _Test(mark)]
    left = []
    for number in range(3):
        commit(number)
        left.append(_left(tests))
    assert all(1 not in each and 2 <= len(each) <= 3 for each in left)
    assert set.intersection(*left) == set()


def test_all_that_rotates_runs_after_a_change_and_in_soak(
    changed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = [_Test(dose.rotates(2, SUITE)) for _ in range(4)]
    assert len(_left(tests)) == 2
    changed(f"{SUITE}/world.py")
    assert _left([_Test(dose.rotates(2, SUITE)) for _ in range(4)]) == set()
    monkeypatch.setenv("HOSTLER_DOSE", "1")
    assert _left(tests) == set()
