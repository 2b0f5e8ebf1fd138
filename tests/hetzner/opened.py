"""Drivers on the stand-in, and what the suite must know of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dose import dose, rotation
from harness import pace

from hostler.drivers.machines.hetzner import HetznerMachines, HetznerOptions, Pace
from hostler.drivers.machines.hetzner.labels import server_name
from hostler.model.vm import VmSpec
from hostler.testing import MachineSetup

from .standin import TOKEN

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.ports.machines import Machines

    from .cloud import Server
    from .standin import StandIn

SPEC = VmSpec(cpus=1, memory_mib=1024)
OTHER_SPEC = VmSpec(cpus=4, memory_mib=2048)
PACE = Pace(
    silence=0.02,
    answers_within=30.0,
    poll_first=0.002,
    poll_most=0.02,
    patience=60.0,
    locked_within=5.0,
    ends_within=1.0,
    watch_every=0.05,
)


def options(standin: StandIn, **changes: Any) -> HetznerOptions:
    return HetznerOptions(**({"token": TOKEN, "endpoint": standin.endpoint, "probe": False, "pace": PACE} | changes))


def hetzner(folder: Path, standin: StandIn, **changes: Any) -> HetznerMachines:
    return HetznerMachines(folder, options=options(standin, **changes))


def setup_of(standin: StandIn) -> MachineSetup:
    """With looks into the stand-in's own records, where there is no guest."""

    def server(vm: str) -> Server:
        return standin.cloud.named(server_name(vm))

    async def save(machines: Machines, vm: str, text: str) -> None:
        with standin.lock:
            server(vm).disk = text

    async def show(machines: Machines, vm: str) -> str:
        with standin.lock:
            return server(vm).disk

    async def boots(machines: Machines, vm: str) -> int:
        with standin.lock:
            return server(vm).boots

    async def power_off(machines: Machines, vm: str) -> None:
        with standin.lock:
            server(vm).status = "off"

    return MachineSetup(
        spec=SPEC,
        other_spec=OTHER_SPEC,
        unknown_image="no-such-image",
        within=60,
        grace=0.3,
        on_time=pace.check,
        points=dose(test=2, full=40),
        turn=rotation(),
        save=save,
        show=show,
        boots=boots,
        power_off=power_off,
        console=False,
    )
