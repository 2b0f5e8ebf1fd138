"""The store on etcd (3.4 or newer): a thin layer over its gRPC API.

    store        the verbs of the port, and requests to single members
    cluster      chooses a member, repeats calls, reports lost answers
    stream       one long-lived stream, reopened when it breaks: that of the leases; `watching` has another
    errors       translates etcd's errors, and says what a full database proves
    codec        the gRPC methods, and the conversion of values to and from etcd's messages
    auth         certificates, user and password
    rpc.proto    the part of etcd's API that is used; the stubs next to it are generated

Not here: retries of a write whose outcome is unknown. The caller gets `Uncertain`.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is imported; the driver reports TLS errors itself

from hostler.drivers.store.etcd.store import EtcdStore

__all__ = ["EtcdStore"]
