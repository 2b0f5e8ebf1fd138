"""What goes into the Debian guest beside its packages.

init            the initramfs: modules of the disk, then Debian's own init
90_hostler.cfg  cloud-init: a NoCloud disk says who the machine is; only what is of use here
ready.service   says on the guest's channel that sshd listens
10-hostler.conf sshd: keys only, one host key
wait.conf       the network is awaited, but not for ever
"""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent

FILES = {
    "/etc/cloud/cloud.cfg.d/90_hostler.cfg": "90_hostler.cfg",
    "/etc/systemd/system/hostler-ready.service": "ready.service",
    "/etc/systemd/system/systemd-networkd-wait-online.service.d/hostler.conf": "wait.conf",
    "/etc/ssh/sshd_config.d/10-hostler.conf": "10-hostler.conf",
}
"""Where each goes."""


def text(name: str) -> bytes:
    """One of the files above, as it goes into the guest."""
    return (_HERE / name).read_bytes()
