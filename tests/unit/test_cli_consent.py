"""What destroys asks at a terminal; elsewhere a name is enough, and what takes more than was named wants `--yes`."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from hostler.entry.cli import main

if TYPE_CHECKING:
    from pathlib import Path

ABORTED, WRONG, NOT_FOUND, UNAVAILABLE = 130, 2, 3, 5
SERVER = ("--server", "http://127.0.0.1:1", "--token", "t")

NAMED = [
    (("vm", "delete", "web"), "web"),
    (("vm", "snapshot", "restore", "web", "before"), "before"),
    (("vm", "snapshot", "delete", "web", "before"), "before"),
    (("workload", "delete", "web"), "web"),
    (("blueprint", "delete", "shop"), "shop"),
    (("user", "delete", "ada"), "ada"),
    (("lab", "stop", "ada"), "ada"),
    (("node", "remove", "n1"), "n1"),
]
VOUCHED = [("node", "confirm-off", "n1")]


@pytest.fixture(autouse=True)
def _tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not there is asked again a few times: nothing here is about the pauses between."""
    monkeypatch.setattr("hostler.client.wire.Backoff", lambda *_, **__: SimpleNamespace(next=lambda: 0.0))


class Terminal(io.StringIO):
    """Somebody who types this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("words", "name"), NAMED, ids=lambda one: " ".join(one) if isinstance(one, tuple) else "")
def test_at_a_terminal_it_asks_first_and_elsewhere_a_name_is_enough(
    words: tuple[str, ...], name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main([*words, *SERVER]) == ABORTED
    question = capsys.readouterr().err
    assert name in question
    assert "?" in question
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert main([*words, *SERVER]) == UNAVAILABLE  # it went on, to a server that is not there
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert main([*words, "--yes", *SERVER]) == UNAVAILABLE
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    capsys.readouterr()
    assert main([*words, *SERVER]) == UNAVAILABLE
    assert "?" not in capsys.readouterr().err


@pytest.mark.parametrize("words", VOUCHED, ids=" ".join)
def test_what_somebody_has_to_stand_for_wants_a_yes_where_nobody_can_be_asked(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main([*words, *SERVER]) == WRONG
    assert "--yes" in capsys.readouterr().err
    assert main([*words, "--yes", *SERVER]) == UNAVAILABLE
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main([*words, *SERVER]) == ABORTED


def test_an_image_is_removed_after_a_question_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["image", "remove", "mine", "--data", str(tmp_path)]
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert main(words) == ABORTED
    assert main([*words, "--yes"]) == NOT_FOUND
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert main(words) == NOT_FOUND
