"""A replica that is asked to stop: load balancers see it before its port closes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import aiohttp
import pytest
from up_process import HostlerProcess

import hostler
from hostler.errors import Invalid
from hostler.keys.families import LEADER, REPLICA
from hostler.model.replica import ReplicaRecord
from hostler.settings import load

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_replica_says_503_and_serves_on_before_it_closes_its_port(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path / 'hostler.db'}"
    arguments = ("replica", "--data", tmp_path, "--listen", "127.0.0.1:0", "--store", url)
    async with hostler.open_store(url) as store, aiohttp.ClientSession() as session:
        # The only one: nothing would be gained by waiting.
        alone = HostlerProcess(*arguments, folder=tmp_path, environ={"HOSTLER_SHUTDOWN_DELAY": "600"})
        await alone.says("leading with fence")
        alone.signal(signal.SIGTERM)
        assert await alone.ends() == 0
        assert "more while /readyz" not in alone.text

        replica = HostlerProcess(*arguments, folder=tmp_path, environ={"HOSTLER_SHUTDOWN_DELAY": "600"})
        server = await replica.url("serving")
        await replica.says("leading with fence")

        async def status(path: str) -> int:
            async with session.get(f"{server}{path}") as answer:
                return answer.status

        assert await status("/readyz") == 200
        record = ReplicaRecord(address="10.0.0.2:1", holder="another", ttl=20.0, started_at=0.0)
        await store.txn([], [REPLICA.put(record, holder="another")])
        replica.signal(signal.SIGTERM)
        await replica.says("serving for 600 s more while /readyz returns 503")
        assert (await status("/readyz"), await status("/healthz")) == (503, 200)
        assert await LEADER.get(store, n=1) is None  # another one can lead meanwhile
        replica.signal(signal.SIGTERM)
        assert await replica.ends() == 128 + signal.SIGTERM


@pytest.mark.parametrize("value", ["-1", "x", "nan"])
def test_a_delay_that_is_none_is_refused(value: str) -> None:
    assert load({"shutdown_delay": "0"}, {}).shutdown_delay == 0
    with pytest.raises(Invalid, match="from 0 to 3600"):
        load({"shutdown_delay": value}, {})
