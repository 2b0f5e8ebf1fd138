"""`crash_points.launcher` for agents whose machines are QEMU's."""

from __future__ import annotations

import importlib
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crash_points import launcher
from warm_image import FOLDER, OPTIONS

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.images.folder import ImageFolder

from . import table

if TYPE_CHECKING:
    from crash_points.points import Points

    from hostler.ports.machine_driver import NodeSetup

LATER = ("asyncssh", "qemu.qmp", "hostler.entry.relay", "websockets")


class QemuKind(launcher.Kind):
    """They start from the saved state that all tests share."""

    def __init__(self) -> None:
        self._places: set[Path] = set()

    def starts(self, told: dict[str, Any]) -> None:
        self._places.add(Path(told["data"]) / "machines")

    def end(self) -> None:
        """Also of a test that was cut off: no machine outlives it."""
        for place in self._places:
            table.kill_all(place)

    def machines(self, node: NodeSetup, points: Points) -> QemuMachines:
        images = ImageFolder(FOLDER)
        return QemuMachines(node.folder, images=images, options=OPTIONS, clock=node.clock, step=points.step)

    def also(self, order: dict[str, Any]) -> dict[str, Any]:
        """`machines`, `node`: whose QEMU. `kills`: that too, or, unless the agent `dies`, alone."""
        where = Path(order["machines"]), order["node"]
        kills = partial(table.kill, *where) if order["kills"] else None
        return {"look": partial(table.count, *where), "also": kills, "dies": order["dies"]}


if __name__ == "__main__":
    for name in LATER:
        importlib.import_module(name)
    kind = QemuKind()
    launcher.main(socket.socket(fileno=int(sys.argv[1])), kind)
    kind.end()
