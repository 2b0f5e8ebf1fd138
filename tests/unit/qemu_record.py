"""Records of QEMU machines, for tests."""

from __future__ import annotations

from typing import Any

from hostler.drivers.machines.qemu.state import MachineRecord
from hostler.model.image import Image, Probe, Seeding
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label

DIGEST = "0" * 64


def image(**changes: Any) -> Image:
    fields: dict[str, Any] = {
        "digest": DIGEST,
        "files": {"disk": DIGEST, "kernel": DIGEST, "initrd": DIGEST},
        "disk_bytes": 2**20,
        "append": "console=ttyS0 quiet",
        "user": "hostler",
        "seeding": Seeding.FIRMWARE,
        "probe": Probe.SSH,
        "source": "a test",
        "made_at": 0.0,
    }
    return Image(**(fields | changes))


def record(**changes: Any) -> MachineRecord:
    fields: dict[str, Any] = {
        "label": Label("o", "p", "vm"),
        "spec": VmSpec(cpus=2, memory_mib=128),
        "number": 7,
        "image": image(),
        "mac": "52:54:00:01:02:03",
        "host_key": "ssh-ed25519 AAAA",
    }
    return MachineRecord(**(fields | changes))
