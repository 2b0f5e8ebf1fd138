"""The gRPC methods of etcd that are used, and which of them may be repeated."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hostler.drivers.store.etcd import rpc_pb2 as pb

if TYPE_CHECKING:
    import grpc.aio

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
