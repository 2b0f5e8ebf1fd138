"""One of two compared servers, which alternate under the same load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.plane_http import loaded
from bench.plane_process import TICKS

if TYPE_CHECKING:
    from bench.plane_http import Line
    from bench.plane_process import Process


class Side:
    """A server, connections to it, and its results by round."""

    def __init__(self, process: Process, opened: list[Line], request: bytes) -> None:
        self._process, self._opened, self._request = process, opened, request
        self.rates: list[float] = []
        self.cpu_us: list[float] = []

    async def round(self, seconds: float) -> None:
        """Send requests for some seconds."""
        before = self._process.cpu()
        # on a busy host there may be no answer in time
        count = max(1, await loaded(self._opened, self._request, seconds))
        self.rates.append(count / seconds)
        used = max(1 / TICKS, self._process.cpu() - before)  # a short round may end within a tick
        self.cpu_us.append(used * 1e6 / count)
