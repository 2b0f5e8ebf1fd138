"""Machines that are QEMU processes, each in a folder of its own, found again by whoever opens the place.

driver      the verbs; what they do is in `making`, `power`, `snapshot`
machine     one machine as it is known: its record, and the `link` to its process; `view` what it is by that
site        what the machines of a node share; `options` what can be chosen

state       the file that says what is known of a machine; `folder` where it lies, and the place of all, `reading` what
            is there
process     a machine's process: run with the least `rights` and within `limits`, found again (`finding`), ended;
            `guard` ends one that is not held, `child` any other program that we run
command     its command line; `monitor` what QEMU is told and tells, `serial` what comes out of the guest, `door`
disk        what `qemu-img` does to its disk; `whole` for steps that cannot be taken back half way
identity    who a machine is, as its `seed` tells it
network     how it is reached: `bridge` (`own_bridge`, `link_request`), `firewall`
readiness   how far a running one is on its way to its user
images      what machines are made of; `acceleration` what they run with, `warm` and `template` from what they may
            start faster
migration   how one is handed over: `departure`, `sending`, `arrival`
"""

from __future__ import annotations

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.options import QemuOptions

__all__ = ["ImageFolder", "QemuMachines", "QemuOptions"]
