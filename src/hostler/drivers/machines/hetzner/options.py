"""What can be chosen for machines at Hetzner Cloud."""

from __future__ import annotations

import msgspec

from hostler.model.inventory import Capacity

ENDPOINT = "https://api.hetzner.cloud/v1"
IMAGE = "debian-13"
CAPACITY = Capacity(cpus=4096, memory_mib=16 * 2**20, disk_gib=2**20)
"""More than a project has: what there really is, nobody tells before it is asked for."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and for how long. Seconds."""

    answers_within: float = 15.0
    """For one call."""
    poll_first: float = 0.5
    poll_most: float = 5.0
    """Between two looks at what goes on there."""
    patience: float = 300.0
    """For one thing that goes on there."""
    locked_within: float = 60.0
    """For a server that is busy with something else."""
    ends_within: float = 10.0
    """For a guest to shut down before its server is deleted."""
    watch_every: float = 10.0
    """Between two looks at all servers."""
    silence: float = 1.0
    """After too many calls, if it is not told for how long; longer each time."""
    types_for: float = 3600.0
    """How long it is believed which server types there are."""


class HetznerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`repr`, and so no message and no log, shows the token."""

    token: str
    endpoint: str = ENDPOINT
    image: str = IMAGE
    """Of a machine that names none."""
    server_types: tuple[str, ...] = ()
    """Tried in this order, those that are large enough; none: any shared x86 type that is, the smallest first."""
    locations: tuple[str, ...] = ()
    """Tried in this order; none: theirs to choose."""
    firewall: str = ""
    ssh_keys: tuple[str, ...] = ()
    """Names of keys that are known there; root has them."""
    cloud_init: str = ""
    """For a machine that brings no user-data of its own."""
    user: str = "student"
    """As whom one logs into a machine that names nobody."""
    ipv4: bool = False
    """A public IPv4 address too, which costs extra."""
    probe: bool = True
    """Whether a machine is available only once its SSH server answered with its key; else once it runs."""
    ssh_port: int = 22
    boot_seconds: float = 120.0
    """After which a machine that does not answer says so."""
    capacity: Capacity = CAPACITY
    pace: Pace = Pace()

    def __repr__(self) -> str:
        return f"HetznerOptions(endpoint={self.endpoint!r})"
