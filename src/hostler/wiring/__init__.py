"""Composition of ports and drivers: URLs in, open objects out.

url      the driver of a URL's scheme
store    stores
ttl      TTL storages: every store, and others
inbox    the queues and records of labs
power    the power switches of nodes
machine  machines, and the images they are created from
artifacts  repositories of slice artifacts
slices   drivers that run slices on a node
audit    files of the audit log
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.ports.url import DEFAULT_TIMEOUT, Options, local_path
from hostler.wiring.artifacts import (
    artifacts_in_order,
    artifacts_of_replica,
    describe_artifact,
    open_artifacts,
    pack_artifact,
    slice_source,
)
from hostler.wiring.audit import check_audit_files, open_audit_files
from hostler.wiring.inbox import open_board, open_inbox
from hostler.wiring.machine import machine_driver, machine_drivers, open_images, open_machines
from hostler.wiring.power import open_power, open_power_reader, open_watchdog
from hostler.wiring.slices import open_slices, why_no_slice_users
from hostler.wiring.store import is_shared_store, is_store, open_store
from hostler.wiring.ttl import open_ttl_storage, ttl_storage_on

if TYPE_CHECKING:
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
