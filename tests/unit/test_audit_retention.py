"""Retention of the audit log: it keeps up with writers, files what it deletes, and says what is on other machines."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from controller_world import World, play
from service_scene import ADMIN
from test_attic import DAY, cleaned, filled, led

from hostler.drivers.audit.chain import check
from hostler.drivers.audit.folder import AuditFolder
from hostler.engine.access.audit import AuditFilter, page
from hostler.engine.controllers.garbage_collection import SETTLED
from hostler.engine.controllers.janitor import FILLING_EVERY
from hostler.engine.idempotent_writer import instants
from hostler.errors import Damaged, HostlerError, Unavailable
from hostler.keys.families import AUDIT, AUDIT_FILE
from hostler.model.access import Audit, AuditFile
from hostler.ports.audit_files import DayFile

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.store.memory import MemoryStore


def writer(world: World) -> Any:
    numbers = itertools.count()

    async def write(count: int, *, ago: float = 0.0) -> None:
        """So many lines, one transaction each hundred."""
        for start in range(0, count, 100):
            puts = []
            for _ in range(min(100, count - start)):
                number = next(numbers)
                at = world.clock.wall() - ago
                day, instant = instants(at)
                record = Audit(who="ada", verb="vm.create", subject=f"/s/{number}", at=at)
                puts.append(AUDIT.put(record, day=day, write=f"{instant}-{number:08d}"))
            await world.raw.txn([], puts)

    return write


async def subjects(world: World, files: AuditFolder | None, *, newest: bool, limit: int = 130) -> list[str]:
    """Of every line, page by page."""
    found, after = [], None
    while True:
        got = await page(
            world.raw,
            ADMIN,
            None,  # type: ignore[arg-type]
            AuditFilter(),
            limit=limit,
            after=after,
            newest=newest,
            clock=world.clock,
            files=files,
        )
        found += [item.subject for item in got.items]
        after = got.after
        if after is None:
            return found


async def in_store(world: World) -> int:
    return len((await world.raw.range(AUDIT.prefix(), keys_only=True)).items)


def test_it_keeps_up_with_the_highest_rate_loses_nothing_and_both_are_read(tmp_path: Path) -> None:
    """628 writes a second were measured, and 200,000 lines are the default bound: 318 s of writes. Here it is 50 s."""

    async def story(world: World) -> None:
        leader, write = await led(world), writer(world)
        files = AuditFolder(tmp_path / "audit", threads=False)
        await write(3_000, ago=60.0)
        janitor = await cleaned(world, leader, files=files, most_audit=5_000)
        most = 0
        for _ in range(150):
            await write(100)
            await world.clock.sleep(1)
            most = max(most, await in_store(world))
        assert most <= 5_000 + (SETTLED + FILLING_EVERY + 2) * 100, "it grows for one pause at most"
        await world.clock.sleep(SETTLED + 2 * FILLING_EVERY)
        assert await in_store(world) <= 5_000
        assert janitor.counters["forgotten_audit"] >= 12_500
        everything = [f"/s/{number}" for number in range(18_000)]
        assert await subjects(world, files, newest=False, limit=1000) == everything
        assert await subjects(world, files, newest=True, limit=1000) == everything[::-1]
        recorded = {
            one.parts["day"]: DayFile(one.parts["day"], one.value.lines, one.value.chain)
            for one in (await AUDIT_FILE.list(world.raw)).entries
        }
        assert sum(one.lines for one in recorded.values()) == janitor.counters["forgotten_audit"]
        assert [one.problems for one in check(files.files(), recorded)] == [()] * len(recorded)

    play(story)


def test_what_is_old_goes_to_the_file_of_its_day_and_pages_go_through_both(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        leader, write = await led(world), writer(world)
        files = AuditFolder(tmp_path / "audit", threads=False)
        for ago in (93, 92, 91, 2, 0):
            await write(250, ago=ago * DAY)
        await cleaned(world, leader, files=files, audit_kept=90 * DAY)
        await asyncio.sleep(5)
        assert await in_store(world) == 500
        assert len(await files.days()) == 3
        everything = [f"/s/{number}" for number in range(1250)]
        assert await subjects(world, files, newest=False) == everything
        assert await subjects(world, files, newest=True) == everything[::-1]
        day = (await files.days())[1]
        one = await page(
            world.raw,
            ADMIN,
            None,
            AuditFilter(day=day),
            limit=300,
            clock=world.clock,
            files=files,  # type: ignore[arg-type]
        )
        assert [item.subject for item in one.items] == everything[250:500]
        assert one.elsewhere == ()

    play(story)


def test_nothing_is_deleted_that_could_not_be_filed(tmp_path: Path) -> None:
    class Full(AuditFolder):
        async def append(self, lines: Any) -> Any:  # noqa: ARG002
            raise Unavailable("audit files: no space left on device; make room")

    async def story(world: World) -> None:
        leader, write = await led(world), writer(world)
        await write(300, ago=100 * DAY)
        await cleaned(world, leader, files=Full(tmp_path / "audit", threads=False))
        await asyncio.sleep(60)
        assert await in_store(world) == 300

    play(story)


@pytest.mark.parametrize("error", [Unavailable("no space left on device"), Damaged("a line cannot be read")])
def test_audit_files_that_cannot_be_written_hold_nothing_else_up_and_that_is_said(
    tmp_path: Path, error: HostlerError
) -> None:
    class Full(AuditFolder):
        async def append(self, lines: Any) -> Any:  # noqa: ARG002
            raise error

    async def story(world: World) -> None:
        leader, write = await led(world), writer(world)
        await write(300, ago=100 * DAY)
        await filled(world, 8 * DAY, 500)
        told: list[str] = []
        janitor = await cleaned(
            world, leader, files=Full(tmp_path / "audit", threads=False), traces_kept=7 * DAY, tell=told.append
        )
        await asyncio.sleep(300)
        assert janitor.counters.get("forgotten_traces") == 500, "the decision log grows without bound"
        assert await in_store(world) == 300
        assert len(told) == 1
        assert str(error) in told[0]

    play(story)


def test_a_folder_that_lost_lines_which_the_store_recorded_gets_no_more(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        leader, write = await led(world), writer(world)
        files = AuditFolder(tmp_path / "audit", threads=False)
        await write(300, ago=100 * DAY)
        first = await cleaned(world, leader, files=files)
        await asyncio.sleep(5)
        assert first.counters["forgotten_audit"] == 300
        files.files()[-1].unlink()
        await write(200, ago=95 * DAY)
        told: list[str] = []
        again = await cleaned(world, leader, files=AuditFolder(tmp_path / "audit", threads=False), tell=told.append)
        leader._tasks[-2].cancel()
        await asyncio.sleep(60)
        assert "forgotten_audit" not in again.counters
        assert await in_store(world) == 200
        assert "move it aside" in told[0]

    play(story)


@pytest.mark.parametrize("has_files", [True, False])
def test_a_server_says_which_lines_are_on_other_machines(tmp_path: Path, has_files: bool) -> None:
    async def story(world: World) -> None:
        files = AuditFolder(tmp_path / "audit", threads=False) if has_files else None
        for day in ("2026-11-14", "2026-11-15"):
            record = AuditFile(host="host-2", folder="/var/lib/hostler/audit", lines=50, chain="x", at=1.0)
            put = AUDIT_FILE.put(record, day=day, place="5f3a")
            await world.raw.put(put.key, put.value)
        for wanted, lines in (("", 100), ("2026-11-15", 50), ("2026-11-16", 0)):
            found = await page(
                *(world.raw, ADMIN, None, AuditFilter(day=wanted)),  # type: ignore[arg-type]
                limit=10,
                clock=world.clock,
                files=files,
            )
            assert sum(one.lines for one in found.elsewhere) == lines
            assert {one.host for one in found.elsewhere} <= {"host-2"}

    play(story)


def test_a_line_that_is_moved_between_two_pages_is_not_left_out(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        leader, write = await led(world), writer(world)
        files = AuditFolder(tmp_path / "audit", threads=False)
        await write(300, ago=100 * DAY)
        raw: MemoryStore = world.raw
        args = (raw, ADMIN, None, AuditFilter())
        one = await page(*args, limit=50, clock=world.clock, files=files)  # type: ignore[arg-type]
        await cleaned(world, leader, files=files)
        await asyncio.sleep(5)
        assert await in_store(world) == 0
        two = await page(
            *args,
            limit=250,
            after=one.after,
            clock=world.clock,
            files=files,  # type: ignore[arg-type]
        )
        assert [item.subject for item in (*one.items, *two.items)] == [f"/s/{number}" for number in range(300)]

    play(story)
