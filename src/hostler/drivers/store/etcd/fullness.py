"""Detects that etcd's database is full, and what its answer proves then.

etcd executes no write that needs space while its alarm NOSPACE is active: a request that is sent after the alarm was
observed and is answered with "database space exceeded" wrote nothing. The one write that crosses the quota is executed
and gets the same answer, so a request that was sent before the alarm was observed may have been written.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import grpc.aio

from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.methods import STATUS
from hostler.kit.plural import sized
from hostler.ports.store import FULL

if TYPE_CHECKING:
    from hostler.drivers.store.etcd.cluster import Endpoint

DEFAULT_QUOTA = 2 * 2**30
"""etcd's default, if `--quota-backend-bytes` is not given."""
_KNOWN_FOR = 10.0
"""Seconds for which an observed alarm counts; after that it may have been cleared elsewhere."""
_FRESH_FOR = 1.0
"""Seconds after which the size is read again."""
_WITHIN = 1.0
_ALARM = re.compile(r"alarm:(\w+)")
ADVICE = "run hostler store repair"


def alarms_of(status: pb.StatusResponse) -> tuple[str, ...]:
    """Return the active alarms, each once."""
    return tuple(sorted({name for text in status.errors for name in _ALARM.findall(text)}))


class Fullness:
    """The observed fullness. `quota`: bytes, if the store's URL names it; servers before 3.6 do not report it."""

    def __init__(self, quota: int | None = None) -> None:
        self._quota = quota
        self._seen_at = -math.inf
        self.said = "etcd's database is full"

    def stands(self, now: float) -> bool:
        """Return whether a request that is sent now certainly writes nothing if it is answered with NOSPACE."""
        return now - self._seen_at < _KNOWN_FOR

    def clear(self) -> None:
        """Record that a write has just succeeded."""
        self._seen_at = -math.inf

    def quota(self, status: pb.StatusResponse) -> int | None:
        """Return the quota in bytes: from the server, else the URL, else etcd's default.

        None: full below the default.
        """
        known = status.dbSizeQuota or self._quota
        assumed = None if FULL in alarms_of(status) and status.dbSize < DEFAULT_QUOTA else DEFAULT_QUOTA
        return known or assumed

    def is_assumed(self, status: pb.StatusResponse) -> bool:
        """Return whether neither the server nor the URL names the quota."""
        return not (status.dbSizeQuota or self._quota)

    async def look(self, endpoint: Endpoint, now: float) -> None:
        """Read alarm and size of a member that has just answered NOSPACE."""
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
