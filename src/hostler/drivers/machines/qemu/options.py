"""What can be chosen for the machines of a node."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - msgspec reads annotations at run time

import msgspec


class QemuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults are what most nodes want."""

    network: str = "user"
    """`user`, `isolated`, `bridge` or `bridge:NAME` (docs/networking.md)."""
    data: Path | None = None
    """The folder that a `bridge` of our own belongs to."""
    prefix6: str | None = None
    """The IPv6 prefix of a bridge, if it is not the bridge's own."""
    uids: str | None = None
    """`FIRST-LAST`: the users that machines get, where we may change users."""
    accelerator: str | None = None
    """`kvm` or `tcg`; without one, what a guest that was tried says."""
    reserve_gib: float = 2.0
    reserve_share: float = 0.05
    """New machines are refused while less of the disk is free than the lesser of the two: what runs needs room too."""
    cpu_overcommit: int = 8
    """How many cpus of guests are promised for each of the host's: few guests need theirs all the time."""
    shared_by: int = 1
    """Nodes on this host that divide between them what it has."""
    siblings: Path | None = None
    """A folder with a folder for each node of this host; where there are more than `shared_by`, they count."""
    cpus: int | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    """What the node offers, where it is not all that the host has."""
