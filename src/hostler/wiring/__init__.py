"""Composition of ports and drivers: URLs in, open objects out.

url      stores, TTL storages, queues and records of labs, power switches of nodes: each by its URL
machine  machines, and the images they are created from
slices   slices of a node, the repositories of their artifacts, and their calls
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.ports.url import DEFAULT_TIMEOUT, Options, local_path
from hostler.wiring.machine import machine_driver, machine_drivers, open_images, open_machines
from hostler.wiring.slices import (
    artifacts_in_order,
    artifacts_of_replica,
    describe_artifact,
    open_artifacts,
    open_slices,
    pack_artifact,
    slice_source,
    why_no_slice_users,
)
from hostler.wiring.url import (
    is_shared_store,
    is_store,
    open_board,
    open_inbox,
    open_power,
    open_power_reader,
    open_store,
    open_ttl_storage,
    open_watchdog,
    ttl_storage_on,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hostler.drivers.audit.chain import DayCheck
    from hostler.ports.audit_files import AuditFiles, DayFile
    from hostler.ports.hasher import Hasher

__all__ = [
    "DEFAULT_TIMEOUT",
    "Options",
    "artifacts_in_order",
    "artifacts_of_replica",
    "check_audit_files",
    "describe_artifact",
    "is_shared_store",
    "is_store",
    "local_path",
    "machine_driver",
    "machine_drivers",
    "open_artifacts",
    "open_audit_files",
    "open_board",
    "open_hasher",
    "open_images",
    "open_inbox",
    "open_machines",
    "open_power",
    "open_power_reader",
    "open_slices",
    "open_store",
    "open_ttl_storage",
    "open_watchdog",
    "pack_artifact",
    "slice_source",
    "ttl_storage_on",
    "why_no_slice_users",
]


def open_hasher() -> Hasher:
    """Return the password hasher; close it with `aclose`."""
    from hostler.drivers.hasher import Argon2Hasher

    return Argon2Hasher()


def open_audit_files(data: Path) -> AuditFiles:
    """Return the audit files of a data folder; nothing is created before the first line is filed."""
    from hostler.drivers.audit.folder import AuditFolder

    return AuditFolder(data / "audit")


def check_audit_files(data: Path, expected: Mapping[str, DayFile]) -> list[DayCheck]:
    """Verify that the files of a data folder are as written. `expected`: what the store recorded, by day."""
    from hostler.drivers.audit.chain import check
    from hostler.drivers.audit.folder import AuditFolder

    return check(AuditFolder(data / "audit").files(), expected)
