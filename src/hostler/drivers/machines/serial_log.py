"""Channel that reads the recorded output of a machine's serial port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class MachineLog:
    """Channel that returns the result of `said` as of its entry, then ends. Input is discarded."""

    def __init__(self, said: Callable[[], bytes]) -> None:
        self._said, self._rest = said, b""

    async def __aenter__(self) -> Self:
        self._rest = self._said()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    async def read(self) -> bytes:
        data, self._rest = self._rest, b""
        return data

    async def write(self, data: bytes) -> None:
        del data
