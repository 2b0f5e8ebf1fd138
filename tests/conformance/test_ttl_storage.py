"""Every claim of the ttl storage suite, over every driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from dose import dose
from running import shared_etcd, ttl_server

import hostler
from hostler.ports.ttl import Watchable
from hostler.testing import TtlClaim, check_ttl_storage, ttl_storage_claims

from .patience import together_or_alone

if TYPE_CHECKING:
    from pathlib import Path

DRIVERS = ("memory", "sqlite", "file", "etcd", "redis", "dynamodb", "cassandra")
WATCHABLE = ("memory", "sqlite", "file", "etcd", "redis")
FAST = ("memory", "redis")
"""Two clients race 1,000 times for each verb on these in every run; on the others 100 times (`make soak`: 1,000)."""


def rounds(driver: str) -> int:
    return dose(test=1000 if driver in FAST else 100, full=1000)


def url_of(driver: str, folder: Path) -> str:
    if driver == "memory":
        return "memory://"
    if driver in ("sqlite", "file"):
        return f"{driver}://{folder}/state"
    return shared_etcd("etcd").url if driver == "etcd" else ttl_server(driver).url


CASES = [
    pytest.param(driver, claim, id=f"{driver}-{claim}")
    for driver in DRIVERS
    for claim in ttl_storage_claims()
    if not claim.waits and (driver in WATCHABLE or not claim.watches)
]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_who_can_watch_says_so(driver: str, tmp_path: Path) -> None:
    assert isinstance(hostler.open_ttl_storage(url_of(driver, tmp_path)), Watchable) == (driver in WATCHABLE)


@pytest.mark.parametrize(("driver", "claim"), CASES)
async def test_claim(driver: str, claim: TtlClaim, tmp_path: Path) -> None:
    url = url_of(driver, tmp_path)
    await claim.check(lambda: hostler.open_ttl_storage(url), persistent=driver != "memory", rounds=rounds(driver))


@pytest.mark.parametrize("driver", DRIVERS)
async def test_claims_that_wait_for_the_end_of_a_life(driver: str, tmp_path: Path) -> None:
    url = url_of(driver, tmp_path)
    waiting = [claim.name for claim in ttl_storage_claims() if claim.waits]
    assert len(waiting) >= 8

    async def check(names: Sequence[str]) -> None:
        await check_ttl_storage(lambda: hostler.open_ttl_storage(url), persistent=driver != "memory", only=names)

    await together_or_alone(check, waiting)
