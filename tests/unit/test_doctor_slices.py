"""The doctor tells where slices have no users of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.entry.doctor.host import repository, slices
from hostler.keys.families import REPLICA
from hostler.model.replica import ReplicaRecord
from hostler.ports.machine_driver import Level
from hostler.settings import load


@pytest.fixture
def nobody_is_let_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other users can run no Python that there is."""
    if os.geteuid() != 0:
        pytest.fail("this test changes users: run it as root", pytrace=False)
    (tmp_path / "hidden").mkdir(mode=0o700)
    (tmp_path / "hidden/python").symlink_to("/usr/bin/false")
    for name in ("sys.executable", "hostler.drivers.slices.process.privileges._SYSTEM"):
        monkeypatch.setattr(name, str(tmp_path / "hidden/python"))


@pytest.mark.usefixtures("nobody_is_let_in")
async def test_slices_without_users_of_their_own_are_told(tmp_path: Path) -> None:
    (found,) = await slices(load({"data": str(tmp_path)}, {}))
    assert (found.of, found.level) == ("slices", Level.WARN)
    assert "slices run as the agent does" in found.what
    assert "install" in found.next
    (found,) = await slices(load({"data": str(tmp_path), "slice_users": "required"}, {}))
    assert found.level is Level.FAIL


async def test_slices_with_users_of_their_own_are_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fine(_: object) -> str:
        return ""

    monkeypatch.setattr("hostler.drivers.slices.process.privileges.Allowing.why_not", fine)
    assert await slices(load({"data": str(tmp_path)}, {})) == []


@pytest.mark.parametrize(("users", "found"), [("auto", ["slices are refused"]), ("owner", [])])
async def test_an_agent_that_is_not_root_and_cannot_confine_slices_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: str, found: list[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr("hostler.drivers.privileges.users_here", lambda _: None)
    monkeypatch.setattr("hostler.drivers.slices.process.privileges._NAMESPACES", ("--no-such-option",))
    told = await slices(load({"data": str(tmp_path), "slice_users": users}, {}))
    assert [one.what.partition(":")[0] for one in told] == found
    assert all('slice_users = "owner"' in one.next for one in told)


async def test_a_replica_that_agents_of_other_machines_cannot_reach_is_told(tmp_path: Path) -> None:
    cluster = {"data": str(tmp_path), "store": "etcd://127.0.0.1:1"}
    known = ReplicaRecord(address="10.0.0.1:9520", holder="a", ttl=20.0, started_at=0.0, url="http://10.0.0.1:9520")
    hidden = ReplicaRecord(address="0.0.0.0:9520", holder="b", ttl=20.0, started_at=0.0)
    async with MemoryStore() as store:
        for record in (known, hidden):
            await store.txn([], [REPLICA.put(record, holder=record.holder)])
        (found,) = await repository(store, load(cluster, {}))
        assert (found.of, found.level) == ("artifacts", Level.WARN)
        assert "replica 0.0.0.0:9520" in found.what
        assert "--address" in found.next
        assert await repository(store, load({**cluster, "artifacts": "https://a:7070/v1/artifacts"}, {})) == []
        assert await repository(store, load({"data": str(tmp_path)}, {})) == []
