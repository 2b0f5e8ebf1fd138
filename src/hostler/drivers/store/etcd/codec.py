"""The gRPC methods of etcd that are used, which of them may be repeated, and the conversion of values to messages."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.ports.store import Comparison, Delete, DeletePrefix, Get, KeyValue, Operation, Put, lease_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc.aio

    from hostler.ports.store import Response

Q = TypeVar("Q")
R = TypeVar("R")


class Kind(enum.Enum):
    """What may be done when an answer is lost."""

    READ = "ask again, anywhere"
    REPEATABLE = "writes, but a second time changes nothing: repeat"
    WRITE = "never repeat"


class Method(Generic[Q, R]):
    """One method. Its index finds the stub of an endpoint."""

    def __init__(
        self,
        path: str,
        kind: Kind,
        request: type[Q],
        response: type[R],
        *,
        streams: bool = False,
        grows: bool = False,
    ) -> None:
        """`grows`: it always needs space in the database, so its success proves that there is some."""
        self.path, self.kind, self.streams, self.grows = path, kind, streams, grows
        self.request, self.response = request, response
        self.verb = path.rpartition("/")[2]
        self.index = len(_METHODS)
        _METHODS.append(self)


_METHODS: list[Method[Any, Any]] = []

RANGE = Method("/etcdserverpb.KV/Range", Kind.READ, pb.RangeRequest, pb.RangeResponse)
PUT = Method("/etcdserverpb.KV/Put", Kind.WRITE, pb.PutRequest, pb.PutResponse, grows=True)
DELETE = Method("/etcdserverpb.KV/DeleteRange", Kind.WRITE, pb.DeleteRangeRequest, pb.DeleteRangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", Kind.WRITE, pb.TxnRequest, pb.TxnResponse)
TXN_OF_READS = Method("/etcdserverpb.KV/Txn", Kind.READ, pb.TxnRequest, pb.TxnResponse)
COMPACT = Method("/etcdserverpb.KV/Compact", Kind.WRITE, pb.CompactionRequest, pb.CompactionResponse)
# The driver chooses the lease's id, so a repeated grant finds the lease of the first one.
GRANT = Method(
    "/etcdserverpb.Lease/LeaseGrant", Kind.REPEATABLE, pb.LeaseGrantRequest, pb.LeaseGrantResponse, grows=True
)
REVOKE = Method("/etcdserverpb.Lease/LeaseRevoke", Kind.REPEATABLE, pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
TIME_TO_LIVE = Method(
    "/etcdserverpb.Lease/LeaseTimeToLive", Kind.READ, pb.LeaseTimeToLiveRequest, pb.LeaseTimeToLiveResponse
)
STATUS = Method("/etcdserverpb.Maintenance/Status", Kind.READ, pb.StatusRequest, pb.StatusResponse)
ALARM = Method("/etcdserverpb.Maintenance/Alarm", Kind.REPEATABLE, pb.AlarmRequest, pb.AlarmResponse)
DEFRAGMENT = Method(
    "/etcdserverpb.Maintenance/Defragment", Kind.REPEATABLE, pb.DefragmentRequest, pb.DefragmentResponse
)
MEMBER_LIST = Method("/etcdserverpb.Cluster/MemberList", Kind.READ, pb.MemberListRequest, pb.MemberListResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", Kind.READ, pb.AuthenticateRequest, pb.AuthenticateResponse)
WATCH = Method("/etcdserverpb.Watch/Watch", Kind.READ, pb.WatchRequest, pb.WatchResponse, streams=True)
KEEP_ALIVE = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive",
    Kind.REPEATABLE,
    pb.LeaseKeepAliveRequest,
    pb.LeaseKeepAliveResponse,
    streams=True,
)


def stubs(channel: grpc.aio.Channel) -> list[Any]:
    """Return a callable for each method, at its index."""
    made = []
    for method in _METHODS:
        make = channel.stream_stream if method.streams else channel.unary_unary
        made.append(make(method.path, method.request.SerializeToString, method.response.FromString))
    return made


_RESULTS = {
    "==": pb.Compare.EQUAL,
    "!=": pb.Compare.NOT_EQUAL,
    "<": pb.Compare.LESS,
    ">": pb.Compare.GREATER,
}
_TARGETS = {
    "version": (pb.Compare.VERSION, "version"),
    "create": (pb.Compare.CREATE, "create_revision"),
    "mod": (pb.Compare.MOD, "mod_revision"),
    "value": (pb.Compare.VALUE, "value"),
}


def key_value(kv: pb.KeyValue) -> KeyValue:
    """Convert a KeyValue from etcd's."""
    return KeyValue(
        kv.key.decode("utf-8", "surrogateescape"),  # a foreign key that is not UTF-8 can be read, not written
        kv.value,
        kv.create_revision,
        kv.mod_revision,
        kv.version,
        kv.lease or None,
    )


def span(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key of a prefix and the first one after it, as etcd expects a range."""
    start = prefix.encode()
    return start or b"\0", end_of(start)


def end_of(prefix: bytes) -> bytes:
    """Return the first key after all that start with `prefix`; `\\0` (which means: no end) if there is none."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] != 0xFF:
            return prefix[:at] + bytes((prefix[at] + 1,))
    return b"\0"


# Filled in place: building and copying each part takes three times as long.


def txn_request(when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]) -> pb.TxnRequest:
    """Build the request of a transaction."""
    request = pb.TxnRequest()
    for comparison in when:
        target, field = _TARGETS[comparison.target]
        made = request.compare.add()
        made.result = _RESULTS[comparison.operator]
        made.target = target
        made.key = comparison.key.encode()
        setattr(made, field, comparison.operand)
    for operation in then:
        _fill(request.success.add(), operation)
    for operation in otherwise:
        _fill(request.failure.add(), operation)
    return request


def _fill(made: pb.RequestOp, operation: Operation) -> None:
    if isinstance(operation, Put):
        put = made.request_put
        put.key, put.value = operation.key.encode(), operation.value
        if operation.lease is not None:
            put.lease = lease_id(operation.lease) or 0
    elif isinstance(operation, Get):
        made.request_range.key = operation.key.encode()
    elif isinstance(operation, Delete):
        made.request_delete_range.key = operation.key.encode()
    else:
        made.request_delete_range.key, made.request_delete_range.range_end = span(operation.prefix)


def responses(operations: Sequence[Operation], raw: Sequence[pb.ResponseOp]) -> tuple[Response, ...]:
    """Return the response to each operation of the branch that ran."""
    made: list[Response] = []
    for operation, response in zip(operations, raw, strict=True):
        if isinstance(operation, Put):
            made.append(None)
        elif isinstance(operation, Get):
            kvs = response.response_range.kvs
            made.append(key_value(kvs[0]) if kvs else None)
        elif isinstance(operation, DeletePrefix):
            made.append(response.response_delete_range.deleted)
        else:
            made.append(response.response_delete_range.deleted > 0)
    return tuple(made)
