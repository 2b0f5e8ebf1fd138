"""Whether etcd's database is full, and what its answer proves then.

etcd takes no write that needs room once its alarm NOSPACE stands: a request that is sent after the alarm was seen and
is answered with "database space exceeded" wrote nothing. The one write that crosses the quota is carried out and gets
the same answer, so a request that was sent before the alarm was seen may have been written.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import grpc.aio

from hostler.kit.plural import sized
from hostler.ports.store import FULL

from . import rpc_pb2 as pb
from .methods import STATUS

if TYPE_CHECKING:
    from .cluster import Endpoint

DEFAULT_QUOTA = 2 * 2**30
"""etcd's own, where `--quota-backend-bytes` is not given."""
_KNOWN_FOR = 10.0
"""Seconds for which an alarm that was seen counts; after that it may have been withdrawn without our knowledge."""
_FRESH_FOR = 1.0
"""Seconds after which the size is asked for again."""
_WITHIN = 1.0
_ALARM = re.compile(r"alarm:(\w+)")
ADVICE = "run hostler store repair"


def alarms_of(status: pb.StatusResponse) -> tuple[str, ...]:
    """The alarms that stand, each once."""
    return tuple(sorted({name for text in status.errors for name in _ALARM.findall(text)}))


class Fullness:
    """What is known of it. `quota`: bytes, where the URL of the store says so; servers before 3.6 do not."""

    def __init__(self, quota: int | None = None) -> None:
        self._quota = quota
        self._seen_at = -math.inf
        self.said = "etcd's database is full"

    def stands(self, now: float) -> bool:
        """Whether a request that is sent now is certain to write nothing if it is answered with NOSPACE."""
        return now - self._seen_at < _KNOWN_FOR

    def clear(self) -> None:
        """A write has just found room."""
        self._seen_at = -math.inf

    def quota(self, status: pb.StatusResponse) -> int | None:
        """In bytes: what the server says, else the URL, else etcd's default. None: it is full below that one."""
        known = status.dbSizeQuota or self._quota
        assumed = None if FULL in alarms_of(status) and status.dbSize < DEFAULT_QUOTA else DEFAULT_QUOTA
        return known or assumed

    def is_assumed(self, status: pb.StatusResponse) -> bool:
        """Whether neither the server nor the URL says what the quota is."""
        return not (status.dbSizeQuota or self._quota)

    async def look(self, endpoint: Endpoint, now: float) -> None:
        """Ask a member that has just answered NOSPACE for its alarm and its size."""
        if now - self._seen_at < _FRESH_FOR:
            return
        try:
            status: pb.StatusResponse = await endpoint.stubs[STATUS.index](pb.StatusRequest(), timeout=_WITHIN)
        except grpc.aio.AioRpcError:
            return
        quota = self.quota(status)
        of = "" if quota is None else f" of {sized(quota)}"
        self.said = f"etcd's database is full ({sized(status.dbSize)}{of})"
        if FULL in alarms_of(status):
            self._seen_at = now
