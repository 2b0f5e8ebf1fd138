"""Creates through the VM service, compared with the bare transaction of a create."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from bench.plane_shape import Recorder
from bench.report import Row
from hostler.engine.request import HOSTLER, Request
from hostler.entry.control_plane import ControlPlaneProcess
from hostler.entry.store_benchmark import alternate
from hostler.keys.families import VM
from hostler.model.vm import VmSpec
from hostler.model.vm_api import VmCreate
from hostler.settings import load

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.ports.store import Store

CLIENTS = 64
PROJECTS = 16
SPEC = VmSpec(cpus=1, memory_mib=1024, disk_gib=10, image="debian-12")


async def measure(store: Store, name: str, wanted: float, *, folder: Path, seconds: float) -> list[Row]:
    """Alternate between the service and the bare store, 64 clients each. Every create has an Idempotency-Key."""
    settings = load({"data": str(folder / "data")}, {}, toml="")
    numbers = itertools.count()
    recorder = Recorder(store, VM.prefix())
    async with ControlPlaneProcess(recorder, settings) as plane:
        vms = plane.services.vms

        async def create(client: int, turn: int) -> object:  # noqa: ARG001
            number = next(numbers)
            request = Request(HOSTLER, key=f"bench-{number}", fingerprint="f" * 64)
            asked = VmCreate(name=f"machine-{number:08}", spec=SPEC, labels={"tier": "web"})
            return await vms.create(request, "bench", f"project-{client % PROJECTS}", asked)

        await create(0, 0)
        shape = recorder.recorded()

        async def bare(client: int, turn: int) -> None:
            await shape.send(store, f"{client}-{turn}")

        ours, other = await alternate([create, bare], CLIENTS, seconds)
    return [
        Row(
            what=f"creates on {name}, {CLIENTS} clients",
            found=ours.per_second,
            unit="per second",
            wanted=wanted,
            against="the bare transaction",
            other=other.per_second,
            ratio=ours.per_second / other.per_second,
            cpu_ratio=other.cpu_us / ours.cpu_us,
        )
    ]
