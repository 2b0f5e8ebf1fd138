"""One repository for the machines of a control plane: what one replica took, every process can have."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest

import hostler
from hostler.engine.replica_records import Presence
from hostler.engine.tickets import ARTIFACTS, FILE
from hostler.entry.control_plane import ControlPlaneProcess, ProcessState, peer_tickets
from hostler.entry.server.pin import read_pinned
from hostler.entry.shared_artifacts import SharedArtifacts, open_shared
from hostler.errors import Conflict, NotFound, Unavailable
from hostler.keys.families import ARTIFACT, REPLICA, TICKET
from hostler.kit.clock import SystemClock
from hostler.model.replica import ReplicaRecord
from hostler.ports.slices import ArtifactInfo
from hostler.settings import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from hostler.ports.slices import Artifacts
    from hostler.ports.store import Store

ONE = "org.example:greeting:1.0.0"
CODE = b"from hostler.slices import method\n"


def described(data: bytes = CODE, artifact: str = ONE) -> ArtifactInfo:
    digest = hashlib.sha256(data).hexdigest()
    return ArtifactInfo(artifact=artifact, file="greeting.py", sha256=digest, size=len(data), module="greeting")


def written(folder: Path, data: bytes = CODE) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source").write_bytes(data)
    return folder / "source"


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await holds():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def replica(store: Store, data: Path, **more: str) -> AsyncIterator[ControlPlaneProcess]:
    """A replica's services and API, and its record; nothing leads."""
    settings = load({"data": str(data), "listen": "127.0.0.1:0", "store": "memory://", **more}, {})
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(ControlPlaneProcess(store, settings))
        server = await stack.enter_async_context(plane.served())
        record = ReplicaRecord(address=server.url, holder=data.name, ttl=20.0, started_at=0.0)
        presence = Presence(store, record, url=plane.api_url)
        presence.open()
        stack.push_async_callback(presence.aclose)

        async def registered() -> bool:
            return await REPLICA.get(store, holder=data.name) is not None

        await until(registered)
        yield plane


def agent(store: Store, data: Path) -> Artifacts:
    """What an agent on a machine of its own has."""
    settings = load({"data": str(data), "store": "memory://"}, {})
    return open_shared(store, settings, peer_tickets(store, SystemClock(), by="node:c"), clock=SystemClock())


async def test_an_agent_fetches_over_tls_what_a_replica_of_another_machine_took(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    made = ("openssl", "req", "-x509", "-subj", "/CN=a", "-days", "1", "-nodes", *curve, "-keyout", key, "-out", cert)
    subprocess.run(made, check=True, stderr=subprocess.DEVNULL)
    async with (
        hostler.open_store("memory://") as store,
        replica(store, tmp_path / "a", tls_cert=str(cert), tls_key=str(key)) as a,
    ):
        await a.services.artifacts.publish(described(), written(tmp_path))
        entry = await REPLICA.get(store, holder="a")
        assert entry is not None
        assert entry.value.url.startswith("https://127.0.0.1:")
        elsewhere = agent(store, tmp_path / "c")
        info = await elsewhere.fetch(ONE, tmp_path / "got")
        assert (tmp_path / "got" / info.file).read_bytes() == CODE
        assert [one.artifact for one in await elsewhere.list()] == [ONE]
        assert not (await TICKET.list(store)).entries  # each counted once
        assert not (tmp_path / "c" / "artifacts").exists()  # an agent keeps what it runs elsewhere

        # a certificate that the record does not name is not trusted
        wrong = msgspec.structs.replace(entry.value, url=f"{read_pinned(entry.value.url)[0]}#sha256:{'00' * 32}")
        await store.txn([], [REPLICA.put(wrong, holder="a")])
        with pytest.raises(Unavailable, match="no replica provided it"):
            await elsewhere.fetch(ONE, tmp_path / "more")
        assert not (tmp_path / "more" / "greeting.py").exists()


async def test_replicas_copy_what_they_miss_and_any_of_them_will_do(tmp_path: Path) -> None:
    async with hostler.open_store("memory://") as store, replica(store, tmp_path / "b") as b:
        async with replica(store, tmp_path / "a") as a:
            await a.services.artifacts.publish(described(), written(tmp_path))
            assert (await b.services.artifacts.find(ONE)).sha256 == described().sha256

            async def copied() -> bool:
                return bool(await own(b).list())

            await until(copied)
        shutil.rmtree(tmp_path / "a")  # that machine is lost
        await agent(store, tmp_path / "c").fetch(ONE, tmp_path / "got")
        assert (tmp_path / "got" / "greeting.py").read_bytes() == CODE


async def test_what_was_published_before_is_registered_when_the_replica_starts(tmp_path: Path) -> None:
    async with hostler.open_store("memory://") as store:
        await own_of(agent(store, tmp_path / "a")).publish(described(), written(tmp_path))
        async with replica(store, tmp_path / "a"):

            async def registered() -> bool:
                return await ARTIFACT.get(store, artifact=ONE) is not None

            await until(registered)


async def test_no_two_machines_have_different_files_under_one_name(tmp_path: Path) -> None:
    other = b"something else\n"
    async with (
        hostler.open_store("memory://") as store,
        replica(store, tmp_path / "a") as a,
        replica(store, tmp_path / "b") as b,
    ):
        await a.services.artifacts.publish(described(), written(tmp_path))
        with pytest.raises(Conflict, match="another file is published under that name"):
            await b.services.artifacts.publish(described(other), written(tmp_path, other))
        # a file that another program put there counts for nothing: the store says which one is meant
        await own_of(agent(store, tmp_path / "c")).publish(described(other), written(tmp_path, other))
        await agent(store, tmp_path / "c").fetch(ONE, tmp_path / "got")
        assert (tmp_path / "got" / "greeting.py").read_bytes() == CODE


async def test_a_damaged_file_of_this_machine_is_fetched_from_another(tmp_path: Path) -> None:
    async with (
        hostler.open_store("memory://") as store,
        replica(store, tmp_path / "a") as a,
        replica(store, tmp_path / "b") as b,
    ):
        await a.services.artifacts.publish(described(), written(tmp_path))

        async def copied() -> bool:
            return bool(await own(b).list())

        await until(copied)
        (tmp_path / "a/artifacts/org.example/greeting/1.0.0/greeting.py").write_bytes(b"rotten")
        await a.services.artifacts.fetch(ONE, tmp_path / "got")
        assert (tmp_path / "got" / "greeting.py").read_bytes() == CODE


async def test_what_no_machine_has_is_told_with_what_each_replica_said(tmp_path: Path) -> None:
    async with hostler.open_store("memory://") as store:
        asked = agent(store, tmp_path / "c")
        with pytest.raises(NotFound, match="not published"):
            await asked.fetch(ONE, tmp_path / "got")
        async with replica(store, tmp_path / "a") as a:
            await a.services.artifacts.publish(described(), written(tmp_path))
            with pytest.raises(Conflict):
                await a.services.artifacts.publish(described(b"x"), written(tmp_path, b"x"))
            shutil.rmtree(tmp_path / "a" / "artifacts")
            with pytest.raises(NotFound, match=r"127\.0\.0\.1:\d+ does not have it.*publish the same file again"):
                await asked.fetch(ONE, tmp_path / "got")
            await a.services.artifacts.publish(described(), written(tmp_path))
            await asked.fetch(ONE, tmp_path / "got")
        with pytest.raises(Unavailable, match="no replica runs"):
            await asked.fetch(ONE, tmp_path / "again")
        silent = ReplicaRecord(address="10.0.0.9:1", holder="z", ttl=20.0, started_at=0.0)
        await store.txn([], [REPLICA.put(silent, holder="z")])
        with pytest.raises(Unavailable, match="start it with --address"):
            await asked.fetch(ONE, tmp_path / "again")


async def test_a_ticket_opens_one_file_once(tmp_path: Path) -> None:
    async with hostler.open_store("memory://") as store, replica(store, tmp_path / "a") as a:
        await a.services.artifacts.publish(described(), written(tmp_path))
        url = f"{a.api_url()}/v1/artifacts"
        tickets = peer_tickets(store, SystemClock(), by="node:c")

        async def status(ticket: str, path: str) -> int:
            headers = {"Authorization": f"Ticket {ticket}"}
            async with aiohttp.ClientSession() as session, session.get(f"{url}/{path}", headers=headers) as answer:
                return answer.status

        ticket = await tickets.issue(ARTIFACTS, ONE, FILE)
        assert await status(ticket, f"{ONE}x/file") == 401
        assert await status(ticket, ONE) == 401  # other routes take none
        assert await status(ticket, f"{ONE}/file") == 200
        assert await status(ticket, f"{ONE}/file") == 401
        assert await status(await tickets.issue("n1", ONE, "ssh"), f"{ONE}/file") == 401
        assert await status("hstt_guess", f"{ONE}/file") == 401


async def test_a_replica_says_where_it_is_reached_also_after_its_certificate_changed() -> None:
    url = "https://10.0.0.1:1#sha256:aa"
    async with hostler.open_store("memory://") as store:
        record = ReplicaRecord(address="10.0.0.1:1", holder="a", ttl=1.0, started_at=0.0)
        presence = Presence(store, record, url=lambda: url)
        presence.open()

        async def says() -> bool:
            entry = await REPLICA.get(store, holder="a")
            return entry is not None and entry.value.url == url

        await until(says)
        url = "https://10.0.0.1:1#sha256:bb"
        await until(says)
        await presence.aclose()


@pytest.mark.parametrize(
    ("listen", "address", "url"),
    [
        ("127.0.0.1:0", None, r"http://127\.0\.0\.1:\d+"),
        ("127.0.0.1:0", "a.example:7070", r"http://a\.example:7070"),
        ("0.0.0.0:0", "a.example:7070", r"http://a\.example:7070"),
        ("0.0.0.0:0", None, ""),
    ],
)
async def test_a_replica_on_every_address_is_reached_where_it_was_told(
    tmp_path: Path, listen: str, address: str | None, url: str
) -> None:
    settings = load({"data": str(tmp_path), "listen": listen, "store": "memory://", "insecure": True}, {})
    async with hostler.open_store("memory://") as store:
        plane = ControlPlaneProcess(store, settings, process=ProcessState(address=address))
        assert plane.api_url() == ""
        async with plane, plane.served():
            assert re.fullmatch(url, plane.api_url())


def own(plane: ControlPlaneProcess) -> Artifacts:
    return own_of(plane.services.artifacts)


def own_of(artifacts: Artifacts) -> Artifacts:
    assert isinstance(artifacts, SharedArtifacts)
    return artifacts.own
