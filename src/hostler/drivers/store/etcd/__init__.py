"""The store on etcd (3.4 or newer): a thin layer over its gRPC API.

    store     the verbs of the port
    cluster   which member to ask, what to repeat, what was lost
    stream    one long conversation, reopened when it breaks; `watching` and `leasing` each have one
    outcome   what each of etcd's errors means to the caller
    codec     our values ↔ etcd's messages
    rpc.proto what we use of etcd's API; the stubs beside it are generated
    bare      the same work without any of this, to measure what it costs

Not here: retries of a write whose outcome is unknown. The caller hears `Uncertain`.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; what it says of TLS, we say in our words

from .store import EtcdStore

__all__ = ["EtcdStore"]
