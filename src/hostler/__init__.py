"""Hostler: a control plane for virtual machines and workloads that keeps all its state in one key-value store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import (
    Closed,
    Compacted,
    Conflict,
    Damaged,
    Forbidden,
    FutureRevision,
    HostlerError,
    Invalid,
    KeyReused,
    Lagged,
    LeadershipLost,
    LeaseGone,
    Missed,
    NotFound,
    QuotaExceeded,
    Refused,
    Stale,
    TooLarge,
    TooManyTries,
    Unauthenticated,
    Unavailable,
    Uncertain,
)
from hostler.kit.lazy_import import importing
from hostler.ports.store import (
    Comparison,
    CreateRevision,
    Delete,
    DeletePrefix,
    Event,
    Get,
    KeyValue,
    Lease,
    ModRevision,
    Page,
    Put,
    Status,
    Store,
    TxnResult,
    Value,
    Version,
    Watch,
)
from hostler.wiring import open_store, open_ttl_storage

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.engine.elections import Elections, Leadership
    from hostler.engine.replica import Problem, Replica, ReplicaConfig
    from hostler.engine.service import Service, Standing

__version__ = "0.1.0"

# Imported on first use, because these names pull in asyncio and few programs need them. The command line starts faster.
__getattr__ = importing(
    __name__,
    {
        "Client": "client",
        "Elections": "engine.elections",
        "Leadership": "engine.elections",
        "Problem": "engine.replica",
        "Replica": "engine.replica",
        "ReplicaConfig": "engine.replica",
        "Service": "engine.service",
        "Standing": "engine.service",
    },
)

__all__ = [
    "Client",
    "Closed",
    "Compacted",
    "Comparison",
    "Conflict",
    "CreateRevision",
    "Damaged",
    "Delete",
    "DeletePrefix",
    "Elections",
    "Event",
    "Forbidden",
    "FutureRevision",
    "Get",
    "HostlerError",
    "Invalid",
    "KeyReused",
    "KeyValue",
    "Lagged",
    "Leadership",
    "LeadershipLost",
    "Lease",
    "LeaseGone",
    "Missed",
    "ModRevision",
    "NotFound",
    "Page",
    "Problem",
    "Put",
    "QuotaExceeded",
    "Refused",
    "Replica",
    "ReplicaConfig",
    "Service",
    "Stale",
    "Standing",
    "Status",
    "Store",
    "TooLarge",
    "TooManyTries",
    "TxnResult",
    "Unauthenticated",
    "Unavailable",
    "Uncertain",
    "Value",
    "Version",
    "Watch",
    "__version__",
    "open_store",
    "open_ttl_storage",
]
