"""Logs never stand in the way of the work."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from hostler.entry.server import logs
from hostler.entry.server.logs import configure, logger

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    configure("warning")


def test_standard_error_is_the_one_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    configure("info")
    now = io.StringIO()
    monkeypatch.setattr(sys, "stderr", now)
    logger(part="test").info("said")
    assert '"said"' in now.getvalue()


def test_a_standard_error_that_is_closed_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    configure("info")
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    logger(part="test").info("said to nobody")
    logging.getLogger("uvicorn").warning("nor this")


def test_a_log_that_was_closed_fails_nobody() -> None:
    gone = io.StringIO()
    configure("info", gone)
    gone.close()
    logger(part="test").info("said to nobody")
    logging.getLogger("hostler.agent").warning("nor this")


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_of_one_kind_are_limited_and_the_next_one_says_how_many_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    configure("info", stream)
    for number in range(2000):
        logging.getLogger("asyncio").error("socket.accept() out of system resource %s", number)
    assert len(_lines(stream)) == 10
    assert len(stream.getvalue()) < 10_000
    now[0] += 60
    logging.getLogger("asyncio").error("socket.accept() out of system resource %s", 1)
    logging.getLogger("asyncio").error("something else")
    *_, last, other = _lines(stream)
    assert last["suppressed"] == 1990
    assert "suppressed" not in other


def test_refused_requests_are_limited_by_their_status_and_what_was_done_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.time, "monotonic", lambda: 1000.0)
    stream = io.StringIO()
    configure("info", stream)
    log = logger(part="http")
    for _ in range(3000):
        log.info("request", status=401)
        log.info("request", status=201)
        log.warning("request refused", why="the store is out of reach")
    counts = Counter(line.get("status", line["event"]) for line in _lines(stream))
    assert counts == {401: 200, 201: 3000, "request refused": 50}
