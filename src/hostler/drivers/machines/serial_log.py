"""The door through which one reads what a machine's serial port said."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class MachineLog:
    """A channel that says what `said` tells when it is entered, and ends. What is typed goes nowhere."""

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
