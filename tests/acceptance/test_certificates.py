"""Certificates that are renewed while a process runs: SIGHUP reads them again, and ends nothing."""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path

import pytest
import trustme
from api_server import Started, serving
from harness import pace
from up_process import HostlerProcess, token_told

from hostler.client import Client
from hostler.entry.relay import Relay
from hostler.entry.server.pin import pin_of
from hostler.entry.server.serve import ListenAddress, Server
from hostler.errors import Invalid

AUTHORITY = trustme.CA()


def issue(folder: Path, name: str = "127.0.0.1") -> tuple[Path, Path]:
    made = AUTHORITY.issue_cert(name)
    cert, key = folder / "cert.pem", folder / "key.pem"
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    return cert, key


async def shown(port: int) -> str:
    """Return the certificate that the server shows to new connections."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))


async def test_a_server_takes_a_new_certificate_and_keeps_the_old_one_if_that_is_none(tmp_path: Path) -> None:
    cert, key = issue(tmp_path)
    async with serving() as api, Server(Started(api.app), ListenAddress(cert=cert, key=key)) as server:
        relay = Relay(server)
        first, before = await shown(server.port), relay.address
        issue(tmp_path)
        assert relay.reload_certificate()
        second = await shown(server.port)
        assert second != first
        assert relay.address != before
        assert relay.address == f"{server.url}{pin_of(cert)}"
        key.write_text("nothing")
        with pytest.raises(Invalid, match="cannot be used"):
            relay.reload_certificate()
        assert await shown(server.port) == second


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("127.0.0.1", r"unable to get local issuer.*; name the file of its CA with --ca, or HOSTLER_CA"),
        ("b.example", "mismatch"),
    ],
    ids=["unknown", "name"],
)
async def test_a_client_says_what_is_wrong_with_a_certificate(tmp_path: Path, name: str, words: str) -> None:
    cert, key = issue(tmp_path, name)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with serving() as api, Server(Started(api.app), ListenAddress(cert=cert, key=key)) as server:
        ca = str(tmp_path / "ca.pem") if name == "b.example" else None
        async with Client(server.url, "hst_x", ca=ca) as client:
            with pytest.raises(Invalid, match=f"its certificate is not trusted .*{words}"):
                await client.users.me()


async def test_sighup_lets_a_replica_and_an_agent_read_their_certificates_again(tmp_path: Path) -> None:
    cert, key = issue(tmp_path)
    store = f"sqlite://{tmp_path / 'hostler.db'}"
    tls = ("--tls-cert", cert, "--tls-key", key, "--store", store)
    replica = HostlerProcess("replica", *tls, "--listen", "127.0.0.1:0", "--data", tmp_path / "r", folder=tmp_path)
    agent = HostlerProcess("agent", *tls, "--node", "n1", "--data", tmp_path / "a", folder=tmp_path)
    try:
        await replica.says("the administrator's token is kept in ", pace.patience(20))
        await agent.says("agent of n1", pace.patience(20))
        token = token_told(replica.text)
        assert token not in replica.text, "a journal that others read would have it"
        port = int((await replica.url("serving")).rstrip("/").rpartition(":")[2])
        before = await shown(port)
        issue(tmp_path)
        for process in (replica, agent):
            process.signal(signal.SIGHUP)
            await process.says("SIGHUP: certificates reloaded", pace.patience(10))
        assert await shown(port) != before
        for process in (replica, agent):
            process.signal(signal.SIGTERM)
            assert await process.ends(pace.patience(20)) == 0
    finally:
        replica.kill()
        agent.kill()
