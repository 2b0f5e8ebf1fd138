"""Machine drivers of a node by their kind, and the images that machines are created from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid
from hostler.ports.machine_driver import MachineDriver, NodeSetup
from hostler.settings.driver import MACHINES, installed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.kit.clock import Clock
    from hostler.ports.machine_driver import Images
    from hostler.ports.machines import Machines
    from hostler.settings import Settings


def machine_driver(kind: str) -> MachineDriver:
    """Return the installed driver of that name. Invalid: there is none, or it cannot be used."""
    return installed(MACHINES).get(kind, MachineDriver, "machines")


def machine_drivers() -> Iterator[tuple[str, MachineDriver]]:
    """Return all installed machine drivers that can be used, by name."""
    return installed(MACHINES).all(MachineDriver)


def open_machines(node: NodeSetup) -> Machines:
    """Return the machines of one node, to be entered with `async with`. `node.kind` names an installed driver."""
    return machine_driver(node.kind).open(node)


def open_images(
    folder: Path,
    *,
    machines: Path | None = None,
    default: str = "tiny",
    clock: Clock | None = None,
    settings: Settings | None = None,
) -> Images:
    """Return the images in `folder`, of the driver of the settings, else of the first that has images.

    `machines`: where the nodes that use them keep their machines; by default the sibling folder `machines`. Any number
    of processes may use it at the same time; it need not be closed. `settings` say how guests that are kept warm run.
    """
    drivers = sorted(machine_drivers(), key=lambda found: settings is None or found[0] != settings.machines)
    opener = next((driver.open_images for _, driver in drivers if driver.open_images is not None), None)
    if opener is None:
        raise Invalid("images: none of the installed machine drivers has images; see hostler config drivers")
    machines = machines or folder.parent / "machines"
    return opener(folder, machines=machines, default=default, clock=clock, settings=settings)
