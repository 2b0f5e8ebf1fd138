"""`hostler agent`, which waits where a test wants it.

The environment names a folder (`PAUSES`). A file FOLDER/NAME has it wait at the step NAME until the file is gone;
FOLDER/NAME.reached says that it does. Beside the driver's own steps there is HALF: some of a machine's memory has gone
to the other node, and more will.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hostler.drivers.machines.qemu import driver
from hostler.drivers.machines.qemu.migration import send
from hostler.drivers.machines.qemu.migration.outgoing import STATE_GATE
from hostler.drivers.machines.qemu.migration.protocol import Gate

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.ports.machines import Channel

PAUSES = "TEST_PAUSES"
HALF = "send.half"
HALF_BYTES = 8 * 2**20
"""A guest that has just booted has some 70 MiB to send."""


class Pauses:
    """What the driver calls at each of its steps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, name: str) -> None:
        wanted = self._folder / name
        if wanted.exists():
            (self._folder / f"{name}.reached").touch()
            while wanted.exists():
                await asyncio.sleep(0.01)


class HalfWay:
    """A channel that pauses when so many bytes have been written."""

    def __init__(self, inner: Channel, pauses: Pauses) -> None:
        self._inner, self._pauses, self._left = inner, pauses, HALF_BYTES

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)

    async def read(self) -> bytes:
        return await self._inner.read()

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)
        before, self._left = self._left, self._left - len(data)
        if before > 0 >= self._left:
            await self._pauses(HALF)


def pausing(pauses: Pauses) -> None:
    """Let machines of this process pause."""

    class PausingMachines(driver.QemuMachines):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, step=pauses)

    class PausingGate(Gate):
        def __init__(self, path: Path, channel: Channel, subject: str) -> None:
            super().__init__(path, HalfWay(channel, pauses) if path.name == STATE_GATE else channel, subject)

    driver.QemuMachines = PausingMachines  # type: ignore[misc]
    send.Gate = PausingGate  # type: ignore[misc]


if __name__ == "__main__":
    from hostler.__main__ import main

    pausing(Pauses(Path(os.environ[PAUSES])))
    main()
