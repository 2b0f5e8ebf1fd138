"""`hostler audit` reads the store and the files; `hostler audit verify` finds what was changed in them."""

from __future__ import annotations

import json
import signal
import stat
import time
from typing import TYPE_CHECKING

import pytest
from up_process import HostlerProcess, hostler, until, well

from hostler.engine.idempotent_writer import instants
from hostler.keys.families import AUDIT
from hostler.model.access import Audit
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = 1_500


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir(mode=0o700)
    return tmp_path / "data"


async def _written(data: Path) -> None:
    """What an earlier server left in the store, a day and an hour ago."""
    async with open_store(f"sqlite://{data / 'hostler.db'}") as store:
        now = time.time()
        for start in range(0, LINES, 100):
            puts = []
            for number in range(start, start + 100):
                at = now - (90_000 if number < 700 else 3_600) + number / 1000
                day, instant = instants(at)
                record = Audit(who="ada", verb="vm.create", subject=f"/s/{number}", at=at, source="10.0.0.7")
                puts.append(AUDIT.put(record, day=day, write=f"{instant}-{number}"))
            await store.txn([], puts)


@pytest.fixture
def up(data: Path) -> Iterator[list[HostlerProcess]]:
    started: list[HostlerProcess] = []
    yield started
    for process in started:
        process.kill()


async def test_old_lines_are_in_files_that_are_read_and_verified(data: Path, up: list[HostlerProcess]) -> None:
    await _written(data)
    arguments = ("up", "--data", data, "--listen", "127.0.0.1:0", "--nodes", 1, "--machines", "simulated")
    up.append(HostlerProcess(*arguments, folder=data.parent, environ={"HOSTLER_AUDIT_LINES": "1000"}))
    await up[0].url()
    folder, environ = data / "audit", {"HOSTLER_DATA": str(data)}
    await until(lambda: len(list(folder.glob("*.jsonl"))) >= 1, 20, lambda: "files of the audit")
    found = await well("audit", "--who", "ada", "--limit", LINES + 10, "-o", "json", **environ)
    assert [line["subject"] for line in json.loads(found.out)] == [f"/s/{n}" for n in reversed(range(LINES))]
    assert "incomplete" not in found.err
    assert "/s/1499" in (await well("audit", "--limit", 50, "--who", "ada", **environ)).out
    checked = await well("audit", "verify", **environ)
    assert "unbroken" in checked.out
    up[0].signal(signal.SIGTERM)  # it moves more lines to the files every ten seconds
    assert await up[0].ends() == 0
    files = sorted(folder.glob("*.jsonl"))
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    first = files[0].read_bytes()
    files[0].write_bytes(first.replace(b"/s/17", b"/s/18", 1))
    changed = await hostler("audit", "verify", **environ)
    assert changed.code == 8, changed
    assert "line 19: changed" in changed.out
    files[0].write_bytes(b"".join(first.splitlines(keepends=True)[:-1]))
    shorter = await hostler("audit", "verify", **environ)
    assert (shorter.code, "1 line is missing at its end" in shorter.out) == (8, True), shorter
