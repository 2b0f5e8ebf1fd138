"""`hostler events --tree` and `hostler why` where there is much: it is found, and what is left out is said."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from hostler.entry.cli import events, main, options
from hostler.model.control_api import Sort, TracePage, TraceView, WhyView


def step(number: int, parent: str = "") -> TraceView:
    return TraceView(
        id=str(number),
        parent=parent,
        sort=Sort.DECISION,
        revision=number,
        at=float(number),
        actor="machines",
        what="place",
        subject="vm a/b/c",
        why=f"step {number}",
    )


class Server:
    """Gives its pages one after the other."""

    def __init__(self, pages: dict[str | None, TracePage], view: WhyView | None = None) -> None:
        self.pages, self.view, self.asked = pages, view, list[tuple[str | None, int]]()
        self.decisions = self

    async def list(self, _: str | None, *, limit: int, after: str | None = None) -> TracePage:
        self.asked.append((after, limit))
        return self.pages[after]

    async def why(self, *_: object, **__: object) -> WhyView:
        assert self.view is not None
        return self.view


def run(server: Server, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    @asynccontextmanager
    async def reached(_: object) -> AsyncIterator[Any]:
        yield server

    for module in (events, options):
        monkeypatch.setattr(module, "open_client", reached)
        monkeypatch.setattr(module, "chosen_server", lambda: None)
    assert main([*words]) == 0


PAGES = {
    None: TracePage(items=(), unreadable=1, after="x"),
    "x": TracePage(items=(step(9, "7"), step(8)), before=(step(7),), after="y"),
    "y": TracePage(items=(step(7),), unreadable=1),
}


def test_an_empty_page_is_not_the_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(PAGES)
    run(server, monkeypatch, "events", "--tree", "--object", "vm/c")
    shown = capsys.readouterr()
    assert [line.partition(": ")[2] for line in shown.out.splitlines()] == [
        f"step {number} (machines)" for number in (7, 9, 8)
    ]
    assert server.asked == [(None, 100), ("x", 100), ("y", 98)]
    assert shown.err == "2 unreadable records are left out\n"


def test_what_is_older_than_was_asked_for_is_said_to_be_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server = Server(PAGES)
    run(server, monkeypatch, "events", "--tree", "--limit", "2")
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert shown.err == "1 unreadable record is left out\nthere may be older ones; show more: --limit 10\n"
    assert server.asked == [(None, 2), ("x", 2)]
    run(server, monkeypatch, "events", "--tree", "--limit", "2", "-o", "json")
    page = msgspec.json.decode(capsys.readouterr().out, type=TracePage)
    assert ([one.id for one in page.items], [one.id for one in page.before], page.after) == (["9", "8"], ["7"], "y")


def test_where_there_is_nothing_at_all_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Server({None: TracePage(items=())}), monkeypatch, "events", "--tree")
    assert "no decisions or requests are kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("20", "some steps in between are left out; show more: --limit 100\n"),
        ("500", "some steps in between are left out; show more: --limit 1000\n"),
        ("1000", "some steps in between are left out; GET /v1/decisions has all, page by page\n"),
    ],
)
def test_why_does_not_advise_what_was_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], limit: str, said: str
) -> None:
    view = WhyView(object="vm a/b/c", state="runs", steps=(step(2), step(1)), cut=True)
    run(Server({}, view), monkeypatch, "why", "vm/c", "--limit", limit)
    assert capsys.readouterr().err == said
