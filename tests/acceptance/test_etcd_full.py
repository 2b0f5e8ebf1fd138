"""An etcd that is full, or that lost members: every interface says so and what to do, and one command repairs it."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from harness import pace
from up_process import HostlerProcess, hostler, token_told, well

from hostler.errors import HostlerError
from hostler.ports.store import Put
from hostler.testing.servers import EtcdCluster, EtcdSecurity, EtcdServer
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.ports.store import Store

QUOTA_MIB = 4
WITHIN = 20.0
VMS = "/v1/orgs/default/projects/default/vms"
TOKEN_KEPT = "the administrator's token is kept in "


@pytest.fixture(scope="module")
def small() -> Iterator[EtcdServer]:
    with EtcdServer(arguments=["--quota-backend-bytes", str(QUOTA_MIB * 2**20)]) as etcd:
        yield etcd


class Replicas:
    """Two replicas on an etcd with a small quota."""

    def __init__(self, etcd: EtcdServer, folder: Path) -> None:
        self.store = etcd.url_of(etcd.endpoints, quota_mib=str(QUOTA_MIB))
        times = ("--leadership-ttl", 3, "--node-ttl", 6, "--fencing-time", 12)
        self.all = [
            HostlerProcess(
                *("replica", "--store", self.store, "--listen", "127.0.0.1:0", "--data", folder / name, *times),
                folder=folder,
            )
            for name in ("one", "other")
        ]

    async def leader_first(self) -> list[HostlerProcess]:
        """Both, once one of them leads and one, perhaps the other, has told of the token."""
        for process in self.all:
            await process.url("serving")
        end = time.monotonic() + pace.patience(WITHIN)
        while not (leading := [one for one in self.all if "leading with fence" in one.text]):
            assert time.monotonic() < end, [one.tail() for one in self.all]
            await asyncio.sleep(0.05)
        while not any(TOKEN_KEPT in one.text for one in self.all):
            assert time.monotonic() < end, [one.tail() for one in self.all]
            await asyncio.sleep(0.05)
        return leading + [one for one in self.all if one not in leading]

    def token(self) -> str:
        """The administrator's, which the replica that made it keeps in a file."""
        return token_told(next(one.text for one in self.all if TOKEN_KEPT in one.text))


@pytest.fixture
def replicas(small: EtcdServer, tmp_path: Path) -> Iterator[Replicas]:
    started = Replicas(small, tmp_path)
    try:
        yield started
    finally:
        for process in started.all:
            process.kill()


async def _fill(store: Store) -> None:
    """With history: one record, overwritten until etcd takes no more."""
    value = 0
    for size in (40_000, 100, 100):
        try:
            while True:
                value += 1
                await store.put("filler", b"%06d" % value * (size // 6))
        except HostlerError:
            continue


async def _answers(http: aiohttp.ClientSession, url: str, path: str, status: int) -> Any:
    """The body, once the answer has that status."""
    end = time.monotonic() + pace.patience(WITHIN)
    while True:
        async with http.get(url + path) as answer:
            text = await answer.text()
            if answer.status == status:
                return text
        assert time.monotonic() < end, text
        await asyncio.sleep(0.1)


async def test_a_full_etcd_is_named_everywhere_and_leads_again_after_a_repair_without_a_restart(
    replicas: Replicas,
) -> None:
    leader, follower = await replicas.leader_first()
    first, second = await leader.url("serving"), await follower.url("serving")
    headers = {"Authorization": f"Bearer {replicas.token()}"}
    async with open_store(replicas.store) as store, aiohttp.ClientSession(headers=headers) as http:
        for url in (first, second):
            await _answers(http, url, "/readyz", 200)
        await _fill(store)
        for url in (first, second):
            said = await _answers(http, url, "/readyz", 503)
            assert "etcd's database is full (" in said
            assert f" of {QUOTA_MIB}.0 MiB)" in said
            assert "hostler store repair" in said
            figures = await _answers(http, url, "/metrics", 200)
            assert "hostler_store_healthy 0.0" in figures
        body = {"name": "web", "spec": {"cpus": 1, "memory_mib": 64}}
        async with http.post(first + VMS, json=body) as answer:
            refused = await answer.json()
            assert answer.status == 503, refused
        assert "nothing was written" in refused["detail"], refused
        assert refused["next"] == "run hostler store repair", refused
        await _status_tells(http, second)
        doctor = await hostler("doctor", HOSTLER_STORE=replicas.store, HOSTLER_DATA=str(leader.log.parent / "one"))
        assert "refuses writes: etcd LeaseGrant: etcd's database is full (" in doctor.out, doctor
        assert await store.delete("filler"), "what only deletes is taken"
        leader.kill()
        said = await _answers(http, second, "/readyz", 503)
        repaired = await well("store", "repair", "--store", replicas.store)
        assert "accepts writes" in repaired.out
        await follower.says("leading with fence")
        await _answers(http, second, "/readyz", 200)
        async with http.post(second + VMS, json=body) as answer:
            assert answer.status == 201, await answer.text()
        assert "hostler_store_healthy 1.0" in await _answers(http, second, "/metrics", 200)


async def _status_tells(http: aiohttp.ClientSession, url: str) -> None:
    """The overview and the figures, once they have asked again."""
    end = time.monotonic() + pace.patience(WITHIN)
    while True:
        async with http.get(f"{url}/v1/overview") as answer:
            overview = await answer.json()
        if "store-full" in [concern["what"] for concern in overview["attention"]]:
            break
        assert time.monotonic() < end, overview
        await asyncio.sleep(0.2)
    assert not overview["store"]["writable"]
    assert not overview["ready"]
    assert overview["store"]["quota_bytes"] == QUOTA_MIB * 2**20
    assert 'hostler_store_alarm{alarm="NOSPACE"} 1.0' in await _answers(http, url, "/metrics", 200)


async def test_one_repair_frees_the_room_of_many_small_values(small: EtcdServer) -> None:
    """etcd deletes compacted values after it has answered; what is defragmented too early keeps its room."""
    url = small.url_of(small.endpoints, quota_mib=str(QUOTA_MIB))
    async with open_store(url) as store:
        is_full, number = False, itertools.count()
        while not is_full:
            with suppress(HostlerError):
                for value in itertools.islice(number, 20):
                    await store.txn([], [Put(f"many/{key}", b"%d" % value) for key in range(100)])
            with suppress(HostlerError):
                is_full = "NOSPACE" in (await store.status()).alarms
        repaired = await well("store", "repair", "--store", url)
        status = await store.status()
        assert "is discarded" in repaired.out
        assert status.size_bytes < QUOTA_MIB * 2**20 / 4, repaired.out
        assert await store.delete_prefix("many/") == 100


async def test_repair_says_what_holds_the_room_when_records_do(small: EtcdServer) -> None:
    url = small.url_of(small.endpoints, quota_mib=str(QUOTA_MIB))
    async with open_store(url) as store:
        numbers = itertools.count()
        # A repair packs what it finds, and what is left is too small for the next large record: end with small ones.
        for size in (40_000, 40_000, 40_000, 4_000, 4_000, 400, 400, 400, 40, 40):
            with suppress(HostlerError):
                while True:
                    await store.put(f"held/{next(numbers):04}", b"x" * size)
            refused = await hostler("store", "repair", "--store", url)
            if refused.code == 5:
                break
        assert refused.code == 5, refused
        assert "of it are records: raise etcd's --quota-backend-bytes, or delete records" in refused.err
        kept = len((await store.range("held/", keys_only=True)).items)
        assert kept > 50, "no record is deleted"
        assert await store.delete_prefix("held/") == kept
        await well("store", "repair", "--store", url)
        await store.put("again", b"")


async def test_doctor_names_the_members_that_do_not_answer(tmp_path: Path) -> None:
    with EtcdCluster(3) as cluster:
        data = str(tmp_path / "data")
        environ = {"HOSTLER_STORE": cluster.url, "HOSTLER_DATA": data}
        cluster.kill(1)
        one = await hostler("doctor", **environ)
        assert f"1 of 3 members does not answer: {cluster.endpoints[1]} (connection refused)" in one.out, one
        only_first = await hostler("doctor", **{**environ, "HOSTLER_STORE": cluster.url_of(cluster.endpoints[:1])})
        assert f"1 of 3 members does not answer: {cluster.endpoints[1]}" in only_first.out, only_first
        cluster.kill(2)
        two = await hostler("doctor", **environ)
        dead = ", ".join(f"{endpoint} (connection refused)" for endpoint in cluster.endpoints[1:])
        assert f"2 of 3 members do not answer: {dead}" in two.out, two
        assert "start them: 2 of 3 must answer" in two.out


async def test_doctor_names_the_cause_when_a_client_certificate_does_not_fit(tmp_path: Path) -> None:
    with EtcdServer(security=EtcdSecurity(mutual=True)) as etcd:
        folder, data = etcd.directory, str(tmp_path / "data")
        without = f"etcds://{etcd.endpoints[0]}?ca={folder / 'ca.pem'}"
        told = await hostler("doctor", HOSTLER_STORE=without, HOSTLER_DATA=data)
        assert "TLS fails: " in told.out, told
        assert "→ check the client's certificate: ?cert=FILE&key=FILE in the store's URL" in told.out
        assert "start them" not in told.out
        mixed = etcd.url_of(etcd.endpoints, key=str(folder / "server.key"))
        told = await hostler("doctor", HOSTLER_STORE=mixed, HOSTLER_DATA=data)
        assert "belongs to another certificate" in told.out, told
        stranger = etcd.url_of(etcd.endpoints, ca=str(folder / "stranger.pem"))
        told = await hostler("doctor", HOSTLER_STORE=stranger, HOSTLER_DATA=data)
        assert "its certificate is not accepted here" in told.out, told
