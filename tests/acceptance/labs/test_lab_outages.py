"""Students at work while Redis is killed, suspended and flushed, and while leaders are put to sleep and woken."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from dose import dose
from harness.pace import patience
from lab_company import LEADERSHIP_TTL, Company
from lab_student import Losses, Student

STUDENTS = 20
ROUNDS = dose(test=1, full=8)
PATIENCE = 30.0
"""Seconds, at most, for what a quiet machine does in some: a leadership must end, or a lease."""
SUSPENDED = 3.0
ASLEEP = (1.0, 12.0)
"""Seconds for which another one leads already; the second are more than a worker lives that gives no sign of it."""


@asynccontextmanager
async def students(company: Company, losses: Losses) -> AsyncIterator[list[Student]]:
    crowd = [
        Student(company.redis.url, f"user-{number:02}", losses, patience=patience(PATIENCE))
        for number in range(STUDENTS)
    ]
    try:
        yield crowd
    finally:
        for student in crowd:
            await student.aclose()


async def at_work(student: Student, number: int, *, goes_on: Callable[[], bool]) -> None:
    """Labs come and go for as long as that; in the end every other student has one."""
    rng = random.Random(number)
    while True:
        await student.start()
        await asyncio.sleep(rng.random() / 4)
        if not goes_on() and number % 2:
            return
        await student.stop()
        if not goes_on() and not number % 2:
            return


async def work(company: Company, crowd: list[Student], goes_on: Callable[[], bool]) -> None:
    async with asyncio.TaskGroup() as group:
        for number, student in enumerate(crowd):
            group.create_task(at_work(student, number, goes_on=goes_on))
    await company.until(company.witness.missing, patience(PATIENCE))
    company.witness.check()


def check_each_once(company: Company, crowd: list[Student]) -> int:
    """Every request that Redis took was worked, once."""
    for student in crowd:
        for queue, count in student.asked.items():
            answers = company.witness.answers.get((student.user, queue), [])
            worked = [each.news for each in answers]
            company.witness.safe(len(answers) == count, f"{student.user}: {count} in {queue}, worked: {worked}")
    return sum(sum(student.asked.values()) for student in crowd)


async def test_a_redis_that_is_killed_suspended_or_flushed_loses_nobody_a_lab(tmp_path: Path) -> None:
    losses = Losses()
    async with Company(tmp_path, nodes=1) as company, students(company, losses) as crowd:
        await company.start("up").url()
        await company.start("worker").says("\nready\n")
        redis = company.redis
        over = False
        working = asyncio.create_task(work(company, crowd, lambda: not over))
        try:
            for _ in range(ROUNDS):
                await some_work(company, working)
                redis.kill()
                redis.restart()
                await some_work(company, working)
                redis.suspend()
                await asyncio.sleep(SUSPENDED)
                redis.resume()
                await some_work(company, working)
        finally:
            over = True
        await working
        company.check_alive()
        asked = check_each_once(company, crowd)
        ended = {student.user for student in crowd[1::2]}
        shown = {key.decode().rpartition(":")[2] async for key in company.client.scan_iter("vmmanager:servers:*")}
        assert shown == ended

        for student in crowd[1::2]:
            await student.stop()
        over = False
        working = asyncio.create_task(work(company, crowd, lambda: not over))
        try:
            for _ in range(ROUNDS):
                await some_work(company, working)
                await company.client.flushall()
                losses.at = time.monotonic()
                await some_work(company, working)
        finally:
            over = True
        await working
        company.check_alive()
        await company.client.flushall()
        await company.until(company.witness.missing, patience(PATIENCE))
        shown = {key.decode().rpartition(":")[2] async for key in company.client.scan_iter("vmmanager:servers:*")}
        assert shown == ended
        print(f"\n{asked} requests before Redis lost any, {sum(sum(s.asked.values()) for s in crowd) - asked} after")


async def some_work(company: Company, working: asyncio.Task[None]) -> None:
    """Until so much has been done that a fault comes in the middle of it."""
    before, end = company.witness.writes, time.monotonic() + patience(PATIENCE)
    while company.witness.writes < before + 5 * STUDENTS:
        assert time.monotonic() < end, f"nothing is done: {company.last_words()}"
        if working.done():
            working.result()
        await asyncio.sleep(0.02)


async def test_a_leader_that_is_put_to_sleep_and_woken_disturbs_nobody(tmp_path: Path) -> None:
    losses = Losses()
    async with Company(tmp_path, nodes=1) as company, students(company, losses) as crowd:
        names = ("up-1", "up-2")
        for name in names:
            await company.start(name).url()
        over = False
        working = asyncio.create_task(work(company, crowd, lambda: not over))
        try:
            for number in range(ROUNDS):
                await some_work(company, working)
                await company.until(partial(_led_by_another, company, ""), patience(PATIENCE))
                leader = await company.leader()
                assert leader in names, company.last_words()
                company.processes[leader].suspend()
                await company.until(partial(_led_by_another, company, leader), patience(3 * LEADERSHIP_TTL))
                await asyncio.sleep(ASLEEP[number % len(ASLEEP)])
                company.processes[leader].resume()
                await some_work(company, working)
                if not company.processes[leader].running:
                    await company.start(leader).url()
        finally:
            over = True
        await working
        check_each_once(company, crowd)
        for name in names:
            assert "Traceback" not in company.processes[name].text


async def _led_by_another(company: Company, than: str) -> str | None:
    leader = await company.leader()
    return f"{leader} leads" if leader in (None, than) else None
