"""Logs never stand in the way of the work."""

from __future__ import annotations

import io
import logging
import sys
from typing import TYPE_CHECKING

import pytest

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
