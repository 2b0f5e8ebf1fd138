"""Options of the QEMU driver."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - msgspec reads annotations at run time

import msgspec


class QemuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the QEMU driver. The defaults suit most nodes."""

    network: str = "user"
    """`user`, `isolated`, `bridge` or `bridge:NAME` (docs/networking.md)."""
    data: Path | None = None
    """Folder that Hostler's own `bridge` belongs to."""
    prefix6: str | None = None
    """IPv6 prefix of a bridge, if not the bridge's own."""
    uids: str | None = None
    """`FIRST-LAST`: user ids for machines, where the agent may change users."""
    accelerator: str | None = None
    """`kvm` or `tcg`; None: a probe decides."""
    reserve_gib: float = 2.0
    reserve_share: float = 0.05
    """New machines are refused while less disk is free than the lesser of the two: running machines need space too."""
    cpu_overcommit: int = 8
    """Guest CPUs offered per CPU of the host: few guests use theirs all the time."""
    shared_by: int = 1
    """Number of nodes that share this host's resources."""
    siblings: Path | None = None
    """Folder with one folder per node of this host; their number counts where it is larger than `shared_by`."""
    cpus: int | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    """Capacity of the node, if not that of the whole host."""
