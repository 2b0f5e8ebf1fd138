"""Hostler: a control plane for virtual machines and workloads that keeps all it knows in one key-value store."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hostler.errors import (
    Closed,
    Compacted,
    Conflict,
    Damaged,
    Forbidden,
    FutureRevision,
    HostlerError,
    Invalid,
    Lagged,
    LeadershipLost,
    LeaseGone,
    Missed,
    NotFound,
    Refused,
    TooLarge,
    Unavailable,
    Uncertain,
)
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
    from hostler.engine.elections import Elections, Leadership
    from hostler.engine.replica import Problem, Replica, ReplicaConfig
    from hostler.engine.service import Service, Standing

__version__ = "0.1.0"

# What few programs use, and asyncio with it, is imported when it is asked for: the command line starts sooner.
_WHERE = {
    "Elections": "elections",
    "Leadership": "elections",
    "Problem": "replica",
    "Replica": "replica",
    "ReplicaConfig": "replica",
    "Service": "service",
    "Standing": "service",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'hostler' has no attribute {name!r}")
    return getattr(import_module(f"hostler.engine.{_WHERE[name]}"), name)


__all__ = [
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
    "Refused",
    "Replica",
    "ReplicaConfig",
    "Service",
    "Standing",
    "Status",
    "Store",
    "TooLarge",
    "TxnResult",
    "Unavailable",
    "Uncertain",
    "Value",
    "Version",
    "Watch",
    "__version__",
    "open_store",
    "open_ttl_storage",
]
