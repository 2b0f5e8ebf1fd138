"""What runs inside the tiny guest.

    init      the kernel's first program: modules, identity's door, the disk; then hands over to `start`
    start     who this machine is: names, keys, addresses, sshd; then hands over to busybox's init (`inittab`)
    channel   answers on the guest's channel
    off       switched off by the power button, faster than busybox's init would be
    sudo      root for the machine's user
    first     the user's own script, once in the life of an instance

    program   the few system calls for which busybox has no applet, as programs of some instructions

Scripts are for busybox's shell and say `#!/bin/sh`; each fork costs some milliseconds where the guest is emulated, so
they read files by `read` and write them by redirection.
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

PROGRAMS = ("start", "channel", "off", "sudo", "first")
"""Those that the machine finds in /lib/hostler."""


def text(name: str) -> bytes:
    """One of the files above, as it goes into the guest."""
    return (_HERE / f"{name}.sh").read_bytes()
