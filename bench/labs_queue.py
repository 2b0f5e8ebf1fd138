"""Acknowledged requests per second: Hostler's worker, which stores each durably, compared with Python task queues.

All use the same Redis in turn, each with its requests pushed beforehand. The tasks of the other queues do nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import uuid
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from bench import labs_peers
from bench.labs_worker import PATIENCE, Pace, at_work, drain, left
from bench.plane_http import until
from bench.report import Row
from hostler.entry.cli.options import path_url
from hostler.errors import Conflict, Unavailable
from hostler.keys.lab import LabNames
from hostler.model.lab import LabDecommission, LabRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from bench.labs_worker import Crew

WANTED = 1_000
NODES = 20
PUSHED = 200
"""Requests that are pushed at once while others are processed."""
LAB_ID = 5
NAMES = LabNames()
OWN_COUNTS = (
    *(("LLEN", name) for name in (NAMES.provision, NAMES.decommission)),
    *(("HLEN", NAMES.busy(queue)) for queue in ("provision", "decommission")),  # one per request in progress
)
_QUEUE = labs_peers.QUEUE
PEER_COUNTS: dict[str, tuple[tuple[str, str], ...]] = {
    "arq": (("ZCARD", _QUEUE),),
    "rq": (("LLEN", f"rq:queue:{_QUEUE}"), ("ZCARD", f"rq:wip:{_QUEUE}")),
    "celery": (("LLEN", _QUEUE), ("HLEN", "unacked")),
    "dramatiq": (("HLEN", f"dramatiq:{_QUEUE}.msgs"),),
}
"""By peer: the keys that hold requests until they are acknowledged."""


class Peer(msgspec.Struct, frozen=True):
    """A task queue and its configuration."""

    kind: str
    mode: str
    processes: int
    share: float
    """Fraction of Hostler's number of requests, chosen so that the run takes about as long."""

    @property
    def name(self) -> str:
        many = f"{self.processes} processes" if self.processes > 1 else "1 process"
        return f"{self.kind}, {self.mode}, {many}"


PEERS = (
    Peer("arq", "256 at once", 1, 0.3),
    Peer("arq", "256 at once", 2, 0.3),
    Peer("rq", "simple", 1, 0.05),
    Peer("rq", "simple", 2, 0.05),
    Peer("rq", "fork", 1, 0.01),
    Peer("celery", "solo", 1, 0.2),
    Peer("celery", "solo", 2, 0.2),
    Peer("celery", "prefork", 1, 0.2),
    Peer("dramatiq", "8 threads", 1, 0.3),
    Peer("dramatiq", "8 threads", 2, 0.3),
)
UP, ALONE, TWO, MIXED, LATER = (
    "hostler up, simulated machines",
    "hostler lab worker alone",
    "hostler lab worker, 2 processes",
    "hostler up, starts and stops mixed",
    "hostler up, pushed while it works",
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    url: str
    """URL of a Redis that is emptied repeatedly."""
    folder: Path
    peers: Path | None
    """A folder with an environment for each peer; None: without peers."""
    requests: int
    rounds: int


async def measure(redis: Any, plan: Plan, where: str, tell: Callable[[str], None]) -> list[Row]:
    """Run every contestant in each round. `where` describes the Redis."""
    found: dict[str, list[Pace]] = {}
    for number in range(plan.rounds):
        async for name, pace in _round(redis, plan, lambda what, at=number: tell(f"{what}, round {at + 1}")):  # type: ignore[misc]
            found.setdefault(name, []).append(pace)
    return rows(found, where)


def rows(found: dict[str, list[Pace]], where: str) -> list[Row]:
    """Return medians over the rounds: ours with the fastest peer of as many processes, and one-process with any.

    A ratio is the median of the ratios of the rounds.
    """
    peers = {peer: found[peer.name] for peer in PEERS if peer.name in found}
    made = []
    for name in (ALONE, TWO, UP, LATER, MIXED):
        like = {peer.name: paces for peer, paces in peers.items() if peer.processes == (2 if name == TWO else 1)}
        made += _rows(f"{name} ({where})", found[name], like, "of as many processes")
        if name == UP and peers:
            every = {peer.name: paces for peer, paces in peers.items()}
            made.append(_rows("", found[name], every, "of all")[1])
    for peer, paces in sorted(peers.items(), key=lambda pair: -_rate(pair[1])):
        made.append(Row(what=f"{peer.name} ({where})", found=_rate(paces), unit="per second"))
    return made


def _rows(what: str, ours: Sequence[Pace], others: dict[str, list[Pace]], whom: str) -> list[Row]:
    row = Row(what=what, found=_rate(ours), unit="per second", wanted=WANTED)
    if not others:
        return [row]
    fastest = max(others, key=lambda name: _rate(others[name]))
    pairs = list(zip(ours, others[fastest], strict=True))
    ratio = statistics.median(our.per_second / other.per_second for our, other in pairs)
    row = msgspec.structs.replace(
        row,
        against=fastest,
        other=_rate(others[fastest]),
        ratio=ratio,
        cpu_ratio=statistics.median(other.cpu_us / max(1.0, our.cpu_us) for our, other in pairs),
    )
    return [row, Row(what=f"… times the fastest other {whom}", found=ratio, unit="", wanted=1, against=fastest)]


def _rate(paces: Sequence[Pace]) -> float:
    return statistics.median(pace.per_second for pace in paces)


async def _round(redis: Any, plan: Plan, tell: Callable[[str], None]) -> AsyncIterator[tuple[str, Pace]]:
    peers = PEERS if plan.peers is not None else ()
    for peer in peers:
        tell(peer.name)
        yield peer.name, await _peer(redis, plan, peer)
    starts = list(itertools.islice(_starts(), plan.requests))
    tell(UP)
    later = list(itertools.islice(_starts(), plan.requests))
    for name, pace in zip((UP, LATER), await _own(redis, plan, "up", starts, then=later), strict=True):
        yield name, pace
    for name, how, requests, processes in (
        (MIXED, "up", list(itertools.islice(_requests(), plan.requests)), 1),
        (ALONE, "alone", starts, 1),
        (TWO, "alone", starts, 2),
    ):
        tell(name)
        yield name, (await _own(redis, plan, how, requests, processes=processes))[0]


async def _peer(redis: Any, plan: Plan, peer: Peer) -> Pace:
    assert plan.peers is not None  # noqa: S101 - else there are none
    count = max(10, round(plan.requests * peer.share))
    await redis.flushdb()
    script = Path(labs_peers.__file__)
    python, environ = plan.peers / peer.kind / "bin" / "python", {"PYTHONPATH": str(script.parent)}
    command = [str(python), str(script), peer.kind, plan.url]
    process = await asyncio.create_subprocess_exec(*command, "push", str(count), env={**os.environ, **environ})
    if await process.wait() or await left(redis, PEER_COUNTS[peer.kind]) != count:
        raise Unavailable(
            f"bench: {peer.kind} did not push {count} tasks; see the output above, or run without --peers"
        )
    with tempfile.TemporaryDirectory(dir=plan.folder) as folder:
        async with at_work([*command, "work", peer.mode], environ, Path(folder), processes=peer.processes) as crew:
            return await drain(redis, PEER_COUNTS[peer.kind], crew, count)


async def _own(
    redis: Any,
    plan: Plan,
    how: str,
    requests: Sequence[tuple[str, bytes]],
    *,
    then: Sequence[tuple[str, bytes]] = (),
    processes: int = 1,
) -> list[Pace]:
    """Measure requests that were pushed beforehand, then those of `then`, which are pushed while it works."""
    await redis.flushdb()
    await _push(redis, requests)
    with tempfile.TemporaryDirectory(dir=plan.folder) as folder:
        environ = {"HOSTLER_CONFIG": os.devnull, "HOSTLER_DATA": folder, "HOSTLER_REDIS": plan.url}
        command = [sys.executable, "-m", "hostler"]
        if how == "up":
            command += ["up", "--machines", "simulated", "--nodes", str(NODES), "--listen", "127.0.0.1:0"]
        else:
            command += ["lab", "worker", "--store", path_url("sqlite", Path(folder) / "bench.db")]
        async with at_work([*command, "--log-level", "warning"], environ, Path(folder), processes=processes) as crew:
            paces = [await drain(redis, OWN_COUNTS, crew, len(requests))]
            if then:
                paces.append(await _kept_up(redis, crew, then))
        if await redis.exists(NAMES.dead):
            raise Conflict(f"bench: requests were dead-lettered: {await redis.lrange(NAMES.dead, 0, 0)}")
    return paces


async def _kept_up(redis: Any, crew: Crew, requests: Sequence[tuple[str, bytes]]) -> Pace:
    """Measure from the first push until the last request is acknowledged."""
    began, worked = perf_counter(), crew.cpu()
    await _push(redis, requests)

    async def done() -> bool:
        crew.check()
        return await left(redis, OWN_COUNTS) == 0

    await until(f"{len(requests)} requests", done, PATIENCE)
    return Pace(len(requests) / (perf_counter() - began), (crew.cpu() - worked) * 1e6 / len(requests))


async def _push(redis: Any, requests: Sequence[tuple[str, bytes]]) -> None:
    for start in range(0, len(requests), PUSHED):
        async with redis.pipeline(transaction=False) as pipe:
            for queue, request in requests[start : start + PUSHED]:
                pipe.rpush(queue, request)
            await pipe.execute()


def _starts() -> Iterator[tuple[str, bytes]]:
    """Yield start requests of different users."""
    while True:
        yield NAMES.provision, LabRequest(webuserid=str(uuid.uuid4()), lab_id=LAB_ID).encode()


def _requests() -> Iterator[tuple[str, bytes]]:
    """Yield start requests, and stop requests of earlier users, in equal numbers in the long run."""
    before: list[str] = []
    while True:
        user = str(uuid.uuid4())
        before.append(user)
        yield NAMES.provision, LabRequest(webuserid=user, lab_id=LAB_ID).encode()
        if len(before) > PUSHED:
            yield NAMES.decommission, LabDecommission(webuserid=before.pop(0), lab_id=LAB_ID).encode()
