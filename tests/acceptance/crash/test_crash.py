"""Kill -9 at any instant: no acknowledged write is lost, nothing is torn, leases are honest afterwards."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from dose import dose
from rounds import ROUNDS_PER_STORE, Subject, warm_process

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["sqlite", "file"])
async def test_a_writer_killed_at_any_instant_leaves_all_that_was_acknowledged(engine: str, tmp_path: Path) -> None:
    rounds = dose(test=18, full=200)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    instants: Counter[str] = Counter()
    acknowledged = expired = 0
    started = time.monotonic()
    with warm_process() as warm:
        while instants.total() < rounds:
            subject = Subject(engine, tmp_path / f"store-{instants.total()}")
            for number in range(min(ROUNDS_PER_STORE, rounds - instants.total())):
                instants[subject.crash(warm, rng)] += 1
                await subject.inspect(await_expiry=number % 4 == 3)
            acknowledged += subject.ledger.acknowledged
            expired += subject.expired
    print(
        f"{engine}: {rounds} rounds {dict(instants)}, {acknowledged} acknowledged writes, "
        f"{expired} leases ended after the crash, {time.monotonic() - started:.1f} s"
    )
    assert acknowledged > 20 * rounds, "too little was written for this to mean something"
