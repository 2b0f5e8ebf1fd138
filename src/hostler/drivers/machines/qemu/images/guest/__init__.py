"""Programs that run inside the tiny guest.

    init      the kernel's first program: modules, access to the identity, the disk; then executes `start`
    start     applies the identity: names, keys, addresses, sshd; then executes busybox's init (`inittab`)
    channel   answers on the guest's channel
    off       shuts down on the power button, faster than busybox's init would
    sudo      root for the machine's user
    first     the user's own script, once per instance

Scripts are for busybox's shell and begin with `#!/bin/sh`. A fork costs some milliseconds in an emulated guest, so they
read files with `read` and write them by redirection. The few system calls for which busybox has no applet are programs
in C (`COMPILED`), which are compiled when the image is built.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

PROGRAMS = ("start", "channel", "off", "sudo", "first")
"""Scripts installed in /lib/hostler of the machine."""
COMPILED = ("load", "reseed", "grow", "sudo")
"""Programs in C, installed in /bin of the machine. They need no library."""


def text(name: str) -> bytes:
    """Return one of the scripts above."""
    return (_HERE / f"{name}.sh").read_bytes()


def source(name: str) -> Path:
    """Return the file of a program in C."""
    return _HERE / f"{name}.c"
