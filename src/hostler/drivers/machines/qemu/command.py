"""The command line of a machine, as a pure function.

It contains no text from users. Names, keys, user-data and snapshot names are inside files. Paths are relative to the
machine's folder; everything else is a number or a constant. So nothing has to be escaped.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu.disk import layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.drivers.machines.qemu.state import MachineRecord

BINARY = "qemu-system-x86_64"
MACHINE = "q35"
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
FIRMWARE_NAMES = "opt/hostler/"


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """How a machine begins. All fields empty: it boots."""

    loadvm: str = ""
    """Tag of a snapshot with memory."""
    incoming: str = ""
    """Source of its memory and devices: `fd:N`, or `defer` until QMP names it."""
    append: str = ""
    """Additional kernel arguments."""


class Wiring(msgspec.Struct, frozen=True, kw_only=True):
    """Devices and files that a machine is connected to."""

    accelerator: str
    netdev: str
    """Value of `-netdev`, with the id `n0`."""
    firmware: tuple[str, ...] = ()
    """Names of files in `fw/` that the guest can read."""
    iso: bool = False
    """Whether it has a `seed.iso`."""


def command(record: MachineRecord, wiring: Wiring, boot: Boot | None = None) -> list[str]:
    """Return the command to run in the machine's folder.

    QEMU waits before the first instruction and outlives the guest.
    """
    boot = boot or Boot()
    spec = record.spec
    return [
        BINARY,
        "-name", f"hostler-{record.number},debug-threads=on",  # shows which thread is the guest
        *("-machine", f"{MACHINE},usb=off,vmport=off,dump-guest-core=off"),
        *("-accel", wiring.accelerator, "-cpu", "host" if wiring.accelerator == "kvm" else "max"),
        *("-smp", str(spec.cpus), "-m", f"{spec.memory_mib}M"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-S", "-no-shutdown"),
        *("-sandbox", SANDBOX, "-msg", "timestamp=on"),
        *_socket("qmp", "qmp.sock"), "-mon", "chardev=qmp,mode=control",
        *_socket("console", "serial.sock"), "-serial", "chardev:console",
        *_socket("guest", "guest.sock"), "-serial", "chardev:guest",
        *("-object", "rng-random,id=random,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=random"),
        *("-blockdev", json.dumps(layers(record.image.disk_format, node=True))),
        *("-device", "virtio-blk-pci,drive=disk,bootindex=1,werror=stop,rerror=stop"),
        *_seed(wiring),
        *("-netdev", wiring.netdev, "-device", f"virtio-net-pci,netdev=n0,mac={record.mac},romfile="),
        *_kernel(record, boot),
        *(("-loadvm", boot.loadvm) if boot.loadvm else ()),
        *(("-incoming", boot.incoming) if boot.incoming else ()),
    ]  # fmt: skip


def _socket(name: str, path: str) -> Sequence[str]:
    return "-chardev", f"socket,id={name},path={path},server=on,wait=off"


def _seed(wiring: Wiring) -> Sequence[str]:
    words: list[str] = []
    for name in wiring.firmware:
        words += ["-fw_cfg", f"name={FIRMWARE_NAMES}{name},file=fw/{name}"]
    if wiring.iso:
        node = {
            "driver": "raw", "node-name": "seed", "read-only": True,
            "file": {"driver": "file", "filename": "seed.iso", "read-only": True},
        }  # fmt: skip
        words += ["-blockdev", json.dumps(node), "-device", "virtio-blk-pci,drive=seed"]
    return words


def _kernel(record: MachineRecord, boot: Boot) -> Sequence[str]:
    files = record.image.files
    words: list[str] = []
    for name in ("kernel", "initrd"):
        if name in files:
            words += [f"-{name}", name]
    if "kernel" in files:
        words += ["-append", " ".join(text for text in (record.image.append, boot.append) if text)]
    return words
