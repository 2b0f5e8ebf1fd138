"""`python -m bench plane` measures what it says, at a small size, and refuses what it cannot measure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from dose import rotates

from bench import plane_http
from bench.__main__ import main
from bench.plane_fill import machine, write_specs
from bench.plane_http import Line
from bench.plane_shape import Recorder
from bench.report import Row, cells, markdown
from hostler.errors import Conflict
from hostler.keys.families import VM
from hostler.ports.store import Put, Version
from hostler.wiring import open_store

SMALL = ("--seconds", "0.2", "--machines", "120", "--nodes", "4", "--agents", "5", "--place-nodes", "20")


def measured(tmp_path: Path, parts: str, *more: str) -> dict[str, dict[str, Any]]:
    found = tmp_path / "found.json"
    assert main(["plane", "--parts", parts, *SMALL, "--json", str(found), *more]) == 0
    return {row["what"]: row for row in json.loads(found.read_text())["rows"]}


@pytest.mark.slow
@rotates(3, "bench")
def test_creates_and_durable_placement_stand_beside_the_bare_transaction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "found.md"
    rows = measured(tmp_path, "create,place", "--markdown", str(page))
    assert list(rows) == ["creates on sqlite, 64 clients", "placed durably, 20 nodes"]
    for row in rows.values():
        assert row["found"] > 0
        assert row["other"] > 0
        assert row["ratio"] == pytest.approx(row["found"] / row["other"])
        assert row["reached"] is (row["found"] >= 1000)
    assert "| placed durably, 20 nodes |" in page.read_text()
    assert "creates on sqlite" in capsys.readouterr().out


@pytest.mark.slow
@rotates(3, "bench")
def test_a_get_over_http_stands_beside_the_bare_framework(tmp_path: Path) -> None:
    rows = measured(tmp_path, "get")
    first, ratio = rows.values()
    assert first["found"] > 0
    assert first["other"] > 0
    assert ratio["wanted"] == 0.5
    assert ratio["found"] == first["ratio"]


@pytest.mark.slow
@rotates(3, "bench")
def test_a_full_store_is_started_again_and_listed(tmp_path: Path) -> None:
    rows = measured(tmp_path, "many")
    assert all(what.startswith("120 VMs: ") and row["found"] > 0 for what, row in rows.items())
    wanted = {row["wanted"] for row in rows.values()} - {None}
    assert wanted == {10, 1024, 50}
    assert rows["120 VMs: memory of the server, at most"]["found"] > 20


@pytest.mark.slow
@rotates(3, "bench")
def test_one_change_wakes_one_of_several_agents(tmp_path: Path) -> None:
    rows = measured(tmp_path, "wake")
    assert rows["5 agents on sqlite: woken by one change, at most"]["found"] == 1


@pytest.mark.slow
@rotates(3, "bench")
def test_help_is_measured_beside_a_python_that_does_nothing(tmp_path: Path) -> None:
    rows = measured(tmp_path, "help")
    assert list(rows) == ["hostler --help", "hostler vm list --help"]
    assert all(0 < row["other"] < row["found"] for row in rows.values())


@pytest.mark.parametrize("parts", ["", "all", "create,", "create,nothing"])
def test_a_part_that_does_not_exist_is_refused(parts: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plane", "--parts", parts]) == 2
    assert "create,place,get,many,wake,help" in capsys.readouterr().err


async def test_a_store_that_somebody_uses_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite://{tmp_path}/used.db"
    async with open_store(url) as store:
        await write_specs(store, range(1))
    code = await asyncio.to_thread(main, ["plane", "--parts", "help", "--etcd", url])
    assert code != 0
    assert "give an empty one" in capsys.readouterr().err
    async with open_store(url) as store:
        assert len((await VM.list(store)).entries) == 1


async def test_the_bare_side_sends_the_same_transaction_under_keys_of_its_own() -> None:
    async with open_store("memory://") as store:
        await store.put("/there", b"1")
        recorder = Recorder(store, "/new")
        when = [Version("/new") == 0, Version("/there") > 0]
        await recorder.txn(when, [Put("/new", b"value"), Put("/more", b"v")])
        await recorder.txn([], [Put("/other", b"value")])
        shape = recorder.recorded()
        for turn in ("1", "2"):
            await shape.send(store, turn)
        assert [kv.value for kv in (await store.range("/hostler-bench/")).items] == [b"v", b"value", b"v", b"value"]
        with pytest.raises(Conflict):
            await shape.send(store, "2")
        await store.delete("/there")
        with pytest.raises(Conflict):
            await shape.send(store, "3")


async def test_an_answer_in_pieces_is_one_answer() -> None:
    line = Line()
    line.connection_made(_Nowhere())
    asking = asyncio.create_task(line.ask(b"GET"))
    await asyncio.sleep(0)
    for byte in b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello":
        assert not asking.done()
        line.data_received(bytes([byte]))
        await asyncio.sleep(0)
    reply = await asking
    assert (reply.status, reply.body) == (404, b"hello")


class _Nowhere(asyncio.Transport):
    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def test_a_ceiling_and_a_floor_are_judged_each_its_own_way() -> None:
    rows = [
        Row(what="a", found=3, unit="ms", wanted=3, at_most=True),
        Row(what="b", found=3.5, unit="ms", wanted=3, at_most=True),
        Row(what="c", found=2, unit="per second", wanted=3),
        Row(what="d", found=2, unit="per second"),
    ]
    assert [row.reached for row in rows] == [True, False, False, None]
    assert [row[3] for row in cells(rows)] == ["yes", "NO", "NO", ""]
    assert "| b | 3.50 ms | ≤ 3 | NO |" in markdown(rows)


def test_machines_of_the_full_store_differ() -> None:
    assert len({(vm.id, vm.name) for vm in map(machine, range(100))}) == 100


async def test_a_round_in_which_nothing_was_answered_has_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none_in_time(*_: object) -> int:
        return 0

    class Idle:
        def cpu(self) -> float:
            return 1.0

    monkeypatch.setattr(plane_http, "measure_load", none_in_time)
    side = plane_http.MeasuredServer(Idle(), [], b"")  # type: ignore[arg-type]
    await side.round(0.1)
    assert side.rates == [10.0]
    assert side.cpu_us[0] > 0
