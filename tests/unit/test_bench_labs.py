"""`python -m bench labs` measures what it says, at a small size, and refuses what it cannot measure."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import running
from dose import rotates
from harness.fork_server import ForkedProcess
from redis.asyncio import Redis

from bench import labs_claim, labs_live, labs_queue, labs_worker
from bench.__main__ import main
from bench.labs_live import Change
from bench.labs_worker import Pace, at_work, drain
from hostler.errors import Unavailable
from hostler.testing.ttl_servers import RedisServer

SMALL = ("--requests", "200", "--rounds", "1", "--live", "10", "--quiet", "0.5", "--labs", "200")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as found:
        yield found


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Any]:
    async with Redis.from_url(server.url) as client:
        yield client
        await client.flushall()


def _forked(command: Sequence[str], environ: Mapping[str, str], log: Path) -> ForkedProcess:
    """Fork a worker, which is what an interpreter that starts one takes most of its time for."""
    with log.open("ab") as file, Path(os.devnull).open("rb") as nothing:
        return running.fork_server().start(
            list(command[command.index("hostler") + 1 :]),
            environ={**os.environ, **environ},
            cwd=str(Path.cwd()),
            stdin=nothing.fileno(),
            stdout=file.fileno(),
            stderr=file.fileno(),
        )


@pytest.mark.slow
@rotates(3, "bench")
def test_ours_are_measured_on_a_redis_that_is_empty_afterwards(
    server: RedisServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labs_worker, "_start", _forked)
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    arguments = ("--redis", server.url, "--parts", "queue,live,sweep", *SMALL)
    assert main(["labs", *arguments, "--json", str(found), "--markdown", str(page)]) == 0
    rows = {row["what"]: row for row in json.loads(found.read_text())["rows"]}
    names = (labs_queue.UP, labs_queue.LATER, labs_queue.MIXED, labs_queue.ALONE, labs_queue.TWO)
    for name in names:
        row = rows[f"{name} (Redis with fsync always)"]
        assert row["found"] > 0
        assert (row["wanted"], row["ratio"]) == (1000, None)
    assert rows["10 labs live: changes in Redis in 0.5 s of rest"]["found"] == 0
    assert rows["… times its record is written when one lab changes, at most"]["found"] == 1
    assert rows["… changes of anything else than that lab's, at most"]["found"] == 0
    assert 0 < rows["200 labs: full pass and sweep"]["found"] < 5
    assert "… a sweep that repairs 6 of them" in rows
    assert "| 200 labs: full pass and sweep |" in page.read_text()
    assert "labs" in capsys.readouterr().out
    # It refuses one that somebody uses, and leaves it alone; this one is empty again, so it is not refused.
    assert main(["labs", "--redis", server.url, "--parts", "sweep", "--labs", "10"]) == 0


async def test_a_redis_that_somebody_uses_is_left_alone(
    redis: Any, server: RedisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await redis.set("theirs", "1")
    code = await asyncio.to_thread(main, ["labs", "--redis", server.url, "--parts", "sweep"])
    assert code != 0
    assert "it holds 1 key\n  next: give an empty one" in capsys.readouterr().err
    assert await redis.get("theirs") == b"1"


def test_what_is_missing_is_said(tmp_path: Path, server: RedisServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["labs"]) != 0
    assert "name an empty Redis" in capsys.readouterr().err
    assert main(["labs", "--redis", "redis://127.0.0.1:1/0"]) != 0
    assert "start one that is empty" in capsys.readouterr().err
    assert main(["labs", "--redis", server.url, "--peers", str(tmp_path)]) != 0
    assert "has no environment for arq, rq, celery, dramatiq" in capsys.readouterr().err
    assert main(["labs", "--parts", "queue,nothing"]) == 2
    assert "queue,live,sweep,claim" in capsys.readouterr().err


def test_without_qemu_warm_claims_are_said_to_be_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["labs", "--parts", "claim"]) == 0
    out = capsys.readouterr().out
    assert "warm claims on QEMU: not measured: qemu-system-x86_64, redis-server, unshare, ip not installed" in out


def test_ours_stand_beside_the_fastest_other_of_as_many_processes_round_by_round() -> None:
    ours = [Pace(3000, 100), Pace(1000, 300), Pace(4000, 100)]
    names = (labs_queue.UP, labs_queue.LATER, labs_queue.MIXED, labs_queue.ALONE, labs_queue.TWO)
    found = dict.fromkeys(names, ours)
    found |= {peer.name: [Pace(10, 1)] * 3 for peer in labs_queue.PEERS}
    single = next(peer.name for peer in labs_queue.PEERS[4:] if peer.processes == 1)
    double = next(peer.name for peer in labs_queue.PEERS[4:] if peer.processes == 2)
    found[single] = [Pace(1500, 200), Pace(1000, 600), Pace(1000, 200)]
    found[double] = [Pace(6000, 200), Pace(4000, 600), Pace(4000, 200)]
    rows = labs_queue.rows(found, "there")
    by_name = {row.what: row for row in rows if "…" not in row.what}
    alone, two = by_name[f"{labs_queue.ALONE} (there)"], by_name[f"{labs_queue.TWO} (there)"]
    assert (alone.found, alone.against, alone.other, alone.ratio, alone.cpu_ratio) == (3000, single, 1000, 2, 2)
    assert (two.against, two.other, two.ratio) == (double, 4000, 0.5)
    verdicts = [(row.what, row.found, row.reached) for row in rows if "… times" in row.what]
    like, of_all = (f"… times the fastest other {whom}" for whom in ("of as many processes", "of all"))
    equal = (like, 2, True)
    assert verdicts == [equal, (like, 0.5, False), equal, (of_all, 0.5, False), equal, equal]
    assert [row.found for row in rows[-len(labs_queue.PEERS) :]][:3] == [4000, 1000, 10]


def test_the_p95_of_claims_is_one_of_them() -> None:
    p95, p50, slowest = labs_claim.rows([*(0.1 for _ in range(18)), 0.9, 3.0])
    assert (p95.found, p95.reached, p50.found, slowest.found) == (0.9, True, 0.1, 3.0)
    assert labs_claim.rows([0.1, 0.2, 1.5])[0].reached is False


def test_a_record_that_is_written_twice_or_of_somebody_else_is_seen() -> None:
    record = labs_live.NAMES.server("ann")
    twice = [Change(record, "set"), Change(record, "expire"), Change(record, "set")]
    own, foreign, each = labs_live.rows([("ann", twice[:2]), ("ann", [*twice, Change("other:bob", "set")])])
    assert (own.found, own.reached) == (2, False)
    assert (foreign.found, foreign.reached) == (1, False)
    assert each.found == 3


async def test_a_worker_that_ends_is_told_with_its_last_words(redis: Any, tmp_path: Path) -> None:
    await redis.rpush("work", "1")
    async with at_work(["sh", "-c", "echo out of luck; exit 1"], {}, tmp_path) as crew:
        with pytest.raises(Unavailable, match="out of luck"):
            await drain(redis, [("LLEN", "work")], crew, 1)


async def test_processor_time_is_that_of_the_workers_and_whom_they_started(tmp_path: Path) -> None:
    burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"
    async with at_work(["sh", "-c", f"(sh -c '{burn}'); echo done; sleep 60"], {}, tmp_path) as crew:
        while "done" not in crew.output():
            await asyncio.sleep(0.02)
        assert crew.cpu() > 0.01
        assert crew.cpu() < os.times().elapsed
