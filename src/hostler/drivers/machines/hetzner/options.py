"""Options of the Hetzner Cloud driver."""

from __future__ import annotations

import msgspec

from hostler.model.inventory import Capacity

ENDPOINT = "https://api.hetzner.cloud/v1"
IMAGE = "debian-13"
CAPACITY = Capacity(cpus=4096, memory_mib=16 * 2**20, disk_gib=2**20)
"""More than any project has: the API does not report the real capacity in advance."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and time limits, in seconds."""

    answers_within: float = 15.0
    """Time limit of one call."""
    poll_first: float = 0.5
    poll_most: float = 5.0
    """Pause between two polls of running actions: the first one, and the maximum."""
    patience: float = 300.0
    """Time limit of one action."""
    locked_within: float = 60.0
    """How long a call is retried while the server is busy."""
    ends_within: float = 10.0
    """How long a guest may take to shut down before its server is deleted."""
    watch_every: float = 10.0
    """Pause between two listings of all servers."""
    silence: float = 1.0
    """First pause after too many calls, if the API gives none; it grows each time."""
    types_for: float = 3600.0
    """How long the list of server types is cached."""


class HetznerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the driver. `repr` omits the token, so no message and no log shows it."""

    token: str
    endpoint: str = ENDPOINT
    image: str = IMAGE
    """Image of a machine whose spec names none."""
    server_types: tuple[str, ...] = ()
    """Types to try in this order, if large enough; empty: any shared x86 type that is large enough, smallest first."""
    locations: tuple[str, ...] = ()
    """Locations to try in this order; empty: Hetzner Cloud chooses."""
    firewall: str = ""
    ssh_keys: tuple[str, ...] = ()
    """Names of SSH keys in the project; root accepts them."""
    cloud_init: str = ""
    """User-data of a machine whose spec has none."""
    user: str = "student"
    """Login user of a machine whose spec names none."""
    ipv4: bool = False
    """Whether servers also get a public IPv4 address, which costs extra."""
    probe: bool = True
    """Whether a machine is available only once its SSH server answered with its key; otherwise once it runs."""
    ssh_port: int = 22
    boot_seconds: float = 120.0
    """Time after which a machine that does not answer reports that."""
    capacity: Capacity = CAPACITY
    pace: Pace = Pace()

    def __repr__(self) -> str:
        return f"HetznerOptions(endpoint={self.endpoint!r})"
