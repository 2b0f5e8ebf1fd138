"""Files that go into the Debian guest in addition to its packages.

init            the initramfs: modules of the disk, then Debian's own init
90_hostler.cfg  cloud-init: the identity comes from a NoCloud disk; only the modules that are useful here
ready.service   reports on the guest's channel that sshd listens
10-hostler.conf sshd: keys only, one host key
wait.conf       limits the wait for the network
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
"""Target path of each file."""


def text(name: str) -> bytes:
    """Return one of the files above."""
    return (_HERE / name).read_bytes()
