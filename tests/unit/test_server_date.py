"""The calendar of a server may leave what a date can say: a simulation's goes as far as it is let."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import pytest

from hostler.entry.server.serve import Server

LAST = 253_402_300_799.0
"""The last second of the year 9999."""


@pytest.mark.parametrize("beyond", [LAST + 1, 1e18, float("inf"), float("nan")])
async def test_beyond_the_year_9999_the_server_stays_and_says_the_last_date_that_there_was(beyond: float) -> None:
    now, app = LAST, object()
    server = Server(app, wall=lambda: now)._server  # type: ignore[arg-type]

    async def said() -> list[Any]:
        await server.on_tick(0)
        return [value.decode() for name, value in server.server_state.default_headers if name == b"date"]

    assert await said() == [formatdate(LAST, usegmt=True)]
    now = beyond
    assert await said() == [formatdate(LAST, usegmt=True)]
    now = LAST - 60
    assert await said() == [formatdate(LAST - 60, usegmt=True)]
