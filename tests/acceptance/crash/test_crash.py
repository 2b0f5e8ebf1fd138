"""Kill -9 at any instant: no acknowledged write is lost, nothing is torn, leases are honest afterwards."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from dose import dose, rotation
from harness import pace
from rounds import INSTANTS, ROUNDS_PER_STORE, Subject, warm_process
from writing_process import now

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("engine", ["sqlite", "file"])
async def test_a_writer_killed_at_any_instant_leaves_all_that_was_acknowledged(engine: str, tmp_path: Path) -> None:
    rounds = dose(test=24, full=240)
    rng = random.Random(rotation())
    instants: Counter[str] = Counter()
    acknowledged = expired = 0
    started = time.monotonic()
    with warm_process() as warm:
        while instants.total() < rounds:
            subject = Subject(engine, tmp_path / f"store-{instants.total()}")
            for number in range(min(ROUNDS_PER_STORE, rounds - instants.total())):
                instant = INSTANTS[instants.total() % len(INSTANTS)]
                subject.crash(warm, rng, instant)
                instants[instant] += 1
                await subject.inspect(await_expiry=number % 4 == 3)
            acknowledged += subject.ledger.acknowledged
            expired += subject.expired
    print(
        f"{engine}: {rounds} rounds {dict(instants)}, {acknowledged} acknowledged writes, "
        f"{expired} leases ended after the crash, {time.monotonic() - started:.1f} s"
    )
    least = 20 * rounds / pace.slowdown(started)
    assert acknowledged > least, f"{acknowledged} writes, not {least:.0f}: too few for this to mean something"


@pytest.mark.parametrize("engine", ["sqlite", "file"])
async def test_leases_that_ended_while_no_process_lived_are_gone_at_the_first_look(engine: str, tmp_path: Path) -> None:
    rng = random.Random(2)
    with warm_process() as warm:
        for number in range(dose(test=1, full=8)):
            for attempt in range(10):  # on a busy machine the kill may come before the first such lease was granted
                subject = Subject(engine, tmp_path / f"store-{number}-{attempt}")
                subject.crash(warm, rng, "expiring")
                if subject.ledger.short_leases():
                    break
            assert subject.ledger.short_leases()
            await asyncio.sleep(subject.ledger.end_of_short_leases() + 1.05 - now())
            await subject.inspect(await_expiry=False)


@pytest.mark.parametrize("engine", ["sqlite", "file"])
async def test_the_rounds_notice_a_store_that_went_back_in_time(engine: str, tmp_path: Path) -> None:
    """The proof can fail: put the state of an earlier round in place of the newest."""
    rng = random.Random(1)
    with warm_process() as warm:
        subject = Subject(engine, tmp_path / "store")
        subject.crash(warm, rng, "expiring")
        await subject.inspect(await_expiry=False)
        shutil.copytree(subject.directory, tmp_path / "earlier")
        subject.crash(warm, rng, "expiring")
        shutil.rmtree(subject.directory)
        shutil.copytree(tmp_path / "earlier", subject.directory)
    with pytest.raises(AssertionError, match="acknowledged"):
        await subject.inspect(await_expiry=False)
