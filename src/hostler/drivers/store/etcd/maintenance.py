"""Requests to each member separately: status, and release of free space."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc.aio

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.cluster import Endpoint
from hostler.drivers.store.etcd.codec import ALARM, COMPACT, DEFRAGMENT, MEMBER_LIST, STATUS
from hostler.drivers.store.etcd.errors import words_of
from hostler.errors import HostlerError, Unavailable
from hostler.ports.store import MemberStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.drivers.store.etcd.cluster import Cluster
    from hostler.drivers.store.etcd.codec import Method

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
