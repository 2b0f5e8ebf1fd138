"""The verbs of the store port on etcd, and requests to each member separately: status, release of free space."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

import grpc.aio

from hostler.drivers.store.etcd import codec
from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.auth import Access
from hostler.drivers.store.etcd.cluster import Cluster, CompactedRevision, Endpoint, LeaseExists
from hostler.drivers.store.etcd.codec import (
    ALARM,
    COMPACT,
    DEFRAGMENT,
    DELETE,
    GRANT,
    MEMBER_LIST,
    PUT,
    RANGE,
    STATUS,
    TXN,
    TXN_OF_READS,
)
from hostler.drivers.store.etcd.errors import alarms_of, words_of
from hostler.drivers.store.etcd.stream import EtcdLease, KeepAlives
from hostler.drivers.store.etcd.watching import Watches
from hostler.drivers.store.watch_hub import BACKLOG
from hostler.errors import Compacted, Forbidden, FutureRevision, HostlerError, Invalid, Unavailable
from hostler.kit.tasks import Closing
from hostler.ports.store import (
    Get,
    MemberStatus,
    Page,
    Status,
    TxnResult,
    check_delete_prefix,
    check_key,
    check_limit,
    check_prefix,
    check_put,
    check_revision,
    check_ttl,
    check_txn,
    lease_id,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.drivers.store.etcd.codec import Method
    from hostler.drivers.store.etcd.watching import EtcdWatch
    from hostler.ports.store import Comparison, KeyValue, Lease, Operation

_WITHIN = 2.0
_DEFRAGMENT_WITHIN = 600.0


async def members(cluster: Cluster) -> tuple[MemberStatus, ...]:
    """Return all members that the URL names, and those that they know; with the cause for those that do not answer."""
    found = dict(await _ask_each(cluster, cluster.targets))
    ids = {answer.header.member_id for answer in found.values() if isinstance(answer, pb.StatusResponse)}
    others = [target for id_, target in (await _members_of(cluster, found)) if id_ not in ids and target not in found]
    found |= dict(await _ask_each(cluster, others))
    return tuple(await asyncio.gather(*(_status_of(cluster, target, answer) for target, answer in found.items())))


async def defragment(cluster: Cluster, target: str) -> None:
    """Defragment one member. Unavailable: it did not answer, or refused.

    etcd answers a compaction before it has deleted the old values, 1,000 at a time. What is not deleted yet would be
    copied and keep its room, so first wait for that: a physical compaction to revision 1 compacts nothing, and is
    answered when the member has done all earlier ones.
    """
    await _ask(cluster, target, COMPACT, pb.CompactionRequest(revision=1, physical=True), _DEFRAGMENT_WITHIN)
    answer = await _ask(cluster, target, DEFRAGMENT, pb.DefragmentRequest(), _DEFRAGMENT_WITHIN)
    if isinstance(answer, str):
        raise Unavailable(f"etcd member {target}: not defragmented ({answer}); try again")


async def disarm(cluster: Cluster) -> None:
    """Clear the alarm NOSPACE of every member; other alarms are left alone."""
    listed = await cluster.call(ALARM, pb.AlarmRequest(action=pb.AlarmRequest.GET))
    for alarm in listed.alarms:
        if alarm.alarm == pb.AlarmMember.NOSPACE:
            request = pb.AlarmRequest(
                action=pb.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=pb.AlarmMember.NOSPACE
            )
            await cluster.call(ALARM, request)
    cluster.fullness.clear()


async def _ask_each(cluster: Cluster, targets: Iterable[str]) -> list[tuple[str, Any]]:
    """Return the status of each, or why there is none."""
    targets = list(targets)
    asking = (_ask(cluster, target, STATUS, pb.StatusRequest(), _WITHIN) for target in targets)
    return list(zip(targets, await asyncio.gather(*asking), strict=True))


async def _members_of(cluster: Cluster, found: dict[str, Any]) -> list[tuple[int, str]]:
    """Return id and address of every member of the cluster, as one that answers knows them."""
    for target, answer in found.items():
        if isinstance(answer, str):
            continue
        listed = await _ask(cluster, target, MEMBER_LIST, pb.MemberListRequest(), _WITHIN)
        if not isinstance(listed, str):
            urls = ((member.ID, urlsplit(member.clientURLs[0])) for member in listed.members if member.clientURLs)
            return [(id_, url.netloc) for id_, url in urls if url.netloc]
    return []


async def _ask(cluster: Cluster, target: str, method: Method[Any, Any], request: Any, within: float) -> Any:
    """Return the answer of one member, or in words why there is none. It need not reach the others."""
    try:
        metadata = await cluster.own_metadata(within)
    except HostlerError:
        metadata = None  # requests that need no user are answered anyway
    own = cluster.endpoint(target)
    endpoint = own or Endpoint(target, cluster.access)
    try:
        return await endpoint.stubs[method.index](request, timeout=within, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return words_of(error)
    finally:
        if own is None:
            await endpoint.channel.close(None)


async def _status_of(cluster: Cluster, target: str, answer: Any) -> MemberStatus:
    if isinstance(answer, str):
        problem = await asyncio.to_thread(cluster.access.connection_problem, target, _WITHIN)
        why, advice = problem or (answer, "")
        return MemberStatus(name=target, answers=False, why=why, advice=advice)
    leads = bool(answer.leader) and answer.leader == answer.header.member_id
    return MemberStatus(name=target, answers=True, size_bytes=answer.dbSize, leads=leads)


DEFAULT_TIMEOUT = 5.0
_LARGEST = 2**63 - 1
_ELECTION = 5.0
"""Maximum seconds that a cluster with default settings needs to elect a leader and to count leases again."""


class EtcdStore(Closing):
    """A store on the etcd cluster at `targets` (`host:port` each).

    `timeout` is the deadline of every verb. A member that fails is replaced by another; a verb ends with Unavailable
    only if none could be reached, or none accepted it, until its deadline. `quota_bytes`: the quota of the servers, if
    it is not etcd's default; servers from 3.6 on report it themselves.
    """

    def __init__(
        self,
        targets: Sequence[str],
        *,
        access: Access | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        quota_bytes: int | None = None,
        backlog: int = BACKLOG,
        rng: random.Random | None = None,
    ) -> None:
        if not targets:
            raise Invalid("etcd: no endpoint; name at least one as host:port")
        self._cluster = Cluster(targets, access or Access(), timeout, quota_bytes)
        self._watches = Watches(self._cluster, backlog=backlog)
        self._keep_alives = KeepAlives(self._cluster)
        self._rng = rng or random.SystemRandom()

    def __repr__(self) -> str:
        return f"EtcdStore({self._cluster.name!r})"

    async def __aenter__(self) -> Self:
        self._cluster.open()
        return self

    async def aclose(self) -> None:
        endpoints = self._cluster.shut()
        await self._watches.aclose()
        await self._keep_alives.aclose()
        for endpoint in endpoints:
            await endpoint.channel.close(None)

    # Reading

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        check_key(key)
        check_revision(revision)
        self._cluster.check_open()
        response = await self._range(pb.RangeRequest(key=key.encode(), revision=_at(revision)))
        return codec.key_value(response.kvs[0]) if response.kvs else None

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        # Not check_range: `after` may be a foreign key that is not UTF-8; `_after` checks it.
        check_prefix(prefix)
        check_limit(limit)
        check_revision(revision)
        self._cluster.check_open()
        start, end = codec.span(prefix)
        if after is not None:
            start = max(start, _after(after))
        request = pb.RangeRequest(
            key=start,
            range_end=end,
            limit=min(limit or 0, _LARGEST),
            revision=_at(revision),
            keys_only=keys_only,
        )
        response = await self._range(request)
        items = tuple(map(codec.key_value, response.kvs))
        return Page(items, revision or response.header.revision, response.more)

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> EtcdWatch:
        return self._watches.watch(prefix, start_revision, previous=previous)

    async def status(self) -> Status:
        self._cluster.check_open()
        key = b"\0"
        details: dict[str, str] = {}
        answer = await self._cluster.call(STATUS, pb.StatusRequest())
        revision, compacted = answer.header.revision, 0
        try:
            revision = (await self._cluster.call(RANGE, pb.RangeRequest(key=key))).header.revision
            await self._cluster.call(RANGE, pb.RangeRequest(key=key, revision=1))
        except CompactedRevision:
            compacted = await self._watches.compact_revision(key)
        except Forbidden:
            details["compact_revision"] = "unknown: the user may not read"
        details |= {
            "cluster": f"{answer.header.cluster_id:x}",
            "member": f"{answer.header.member_id:x}",
            "leader": f"{answer.leader:x}" if answer.leader else "none",
            "raft_term": str(answer.raftTerm),
            "raft_index": str(answer.raftIndex),
            "size_in_use_bytes": str(answer.dbSizeInUse),
        }
        fullness = self._cluster.fullness
        if fullness.is_assumed(answer):
            details["quota"] = "assumed: etcd's default; name another as ?quota_mib= in the store's URL"
        if answer.errors:
            details["errors"] = "; ".join(answer.errors)
        return Status(
            "etcd",
            answer.version,
            revision,
            compacted,
            answer.dbSize,
            details,
            quota_bytes=fullness.quota(answer),
            in_use_bytes=answer.dbSizeInUse,
            alarms=alarms_of(answer),
        )

    # Maintenance

    def oldest_needed(self) -> int | None:
        return self._watches.oldest_needed()

    async def members(self) -> tuple[MemberStatus, ...]:
        self._cluster.check_open()
        return await members(self._cluster)

    async def defragment(self, member: str) -> None:
        self._cluster.check_open()
        await defragment(self._cluster, member)

    async def disarm(self) -> None:
        self._cluster.check_open()
        await disarm(self._cluster)

    def lease_lateness(self, ttl: float) -> float:
        """A new leader gives every lease its whole ttl again, counted from its election."""
        return max(2.0, math.ceil(ttl)) + _ELECTION

    # Writing

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        check_put(key, value)
        number = lease_id(lease)
        self._cluster.check_open()
        request = pb.PutRequest(key=key.encode(), value=value, lease=number or 0)
        return (await self._cluster.call(PUT, request)).header.revision

    async def delete(self, key: str) -> bool:
        check_key(key)
        self._cluster.check_open()
        return (await self._cluster.call(DELETE, pb.DeleteRangeRequest(key=key.encode()))).deleted > 0

    async def delete_prefix(self, prefix: str) -> int:
        check_delete_prefix(prefix)
        self._cluster.check_open()
        start, end = codec.span(prefix)
        return (await self._cluster.call(DELETE, pb.DeleteRangeRequest(key=start, range_end=end))).deleted

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(when, then, otherwise)
        self._cluster.check_open()
        request = codec.txn_request(when, then, otherwise)
        reads = all(isinstance(operation, Get) for branch in (then, otherwise) for operation in branch)
        response = await self._cluster.call(TXN_OF_READS if reads else TXN, request)
        branch = then if response.succeeded else otherwise
        return TxnResult(response.succeeded, response.header.revision, codec.responses(branch, response.responses))

    async def compact(self, revision: int) -> None:
        check_revision(revision, optional=False)
        self._cluster.check_open()
        try:
            await self._cluster.call(COMPACT, pb.CompactionRequest(revision=_at(revision)))
        except CompactedRevision:
            raise Compacted(await self._watches.compact_revision(b"\0")) from None

    async def grant(self, ttl: float) -> EtcdLease:
        seconds = math.ceil(check_ttl(ttl))
        self._cluster.check_open()
        id_ = self._rng.randrange(1, 2**63)
        asked_at = asyncio.get_running_loop().time()
        try:
            granted = (await self._cluster.call(GRANT, pb.LeaseGrantRequest(TTL=seconds, ID=id_))).TTL
        except LeaseExists:
            # Only this call's earlier attempt can have created it; some of its time is gone.
            asked_at = asyncio.get_running_loop().time()
            granted = await self._keep_alives.keep(id_)
        return EtcdLease(self._cluster, self._keep_alives, id_, float(granted), asked_at)

    async def time_left(self, lease: int) -> float:
        return await EtcdLease(self._cluster, self._keep_alives, lease, 0.0, -math.inf).remaining()

    # Internal

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        try:
            return await self._cluster.call(RANGE, request)
        except CompactedRevision:
            raise Compacted(await self._watches.compact_revision(request.key)) from None


def _at(revision: int | None) -> int:
    if revision is not None and revision > _LARGEST:
        raise FutureRevision(f"revision {revision}: it has not happened yet")
    return revision or 0


def _after(after: str) -> bytes:
    """Return the smallest key that follows. `after` may be a foreign key that is not UTF-8."""
    if not isinstance(after, str):
        raise Invalid(f"after {after!r}: must be a str, not {type(after).__name__}")
    try:
        return after.encode("utf-8", "surrogateescape") + b"\0"
    except UnicodeEncodeError as error:
        raise Invalid(f"after {after!r}: not encodable as UTF-8 ({error.reason} at {error.start})") from None
