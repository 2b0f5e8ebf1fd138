"""`client.invoke`, `client.stream` and `client.answers`: calls of slices."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from hostler.client.failure import error_of
from hostler.errors import Invalid, Uncertain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from hostler.client.transport import HttpTransport

WITHIN = 30.0
NDJSON = "application/x-ndjson"
MOST = 32 * 1024 * 1024
"""The largest size of one result, in bytes."""
_PROBLEM = b'{"type":"about:hostler/'


class Invocation:
    """Sends each call once. The server knows whether a call may be repeated, and repeats it."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def invoke(self, target: str, method: str, arguments: Mapping[str, Any] | None, within: float) -> Any:
        """Return the result of the method; for a method that streams, a list."""
        found: list[Any] = []
        async with aclosing(self._lines(target, method, arguments, within)) as lines:
            async for line, one in lines:
                if one:
                    return msgspec.json.decode(line)
                found.append(msgspec.json.decode(line))
        return found

    async def stream(
        self, target: str, method: str, arguments: Mapping[str, Any] | None, within: float
    ) -> AsyncGenerator[Any, None]:
        """Yield the results as they arrive; for a method that does not stream, its only result."""
        async with aclosing(self._lines(target, method, arguments, within)) as lines:
            async for line, _ in lines:
                yield msgspec.json.decode(line)

    async def answers(
        self, target: str, method: str, arguments: Mapping[str, Any] | None, within: float
    ) -> AsyncGenerator[tuple[Any, bool], None]:
        """Yield the results as they arrive, and with each whether the method streams."""
        async with aclosing(self._lines(target, method, arguments, within)) as lines:
            async for line, one in lines:
                yield msgspec.json.decode(line), not one

    # Private

    async def _lines(
        self, target: str, method: str, arguments: Mapping[str, Any] | None, within: float
    ) -> AsyncGenerator[tuple[bytes, bool], None]:
        """Yield the JSON of each result, and whether it is the only one."""
        try:
            data = msgspec.json.encode(dict(arguments or {}))
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid(f"{target} {method}: the arguments cannot be written as JSON: {error}") from None
        url = self._wire.address.to("invoke", target, method, query={"within": f"{within:.6f}"})
        async with self._wire.post(url, data, within) as answer:
            if answer.headers.get("Content-Type", "").partition(";")[0] != NDJSON:
                yield await answer.read(), True
                return
            held = b""  # a line that looks like a problem document is one if it is the last
            rest = bytearray()
            try:
                async for piece in answer.content.iter_any():
                    rest += piece
                    while (end := rest.find(b"\n")) >= 0:
                        line = bytes(rest[:end])
                        del rest[: end + 1]
                        if held:
                            yield held, False
                        held = line if line.startswith(_PROBLEM) else b""
                        if not held:
                            yield line, False
                    if len(rest) > MOST:
                        raise Invalid(f"{target} {method}: a result is too large for Hostler; check the url")
            except aiohttp.ClientPayloadError:
                if held:
                    raise _problem(held) from None
                raise Uncertain(
                    f"{target} {method}: the connection was lost during the results; check before you repeat it"
                ) from None
            if held:
                yield held, False


def _problem(line: bytes) -> Exception:
    """Return the error that a stream ended with."""
    status = msgspec.json.decode(line).get("status", 500)
    return error_of(status, {"Content-Type": "application/problem+json"}, line, writes=True)
