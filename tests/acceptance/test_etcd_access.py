"""Who is let in by etcd, and what is said to those who are not."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from harness import pace

from hostler.errors import Forbidden, Invalid, Unavailable
from hostler.testing.servers import EtcdSecurity, EtcdServer
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PASSWORD = "hunter2 & co/äö?"


@pytest.fixture(scope="module")
def mutual() -> Iterator[EtcdServer]:
    with EtcdServer(security=EtcdSecurity(mutual=True)) as server:
        yield server


@pytest.fixture(scope="module")
def tls() -> Iterator[EtcdServer]:
    with EtcdServer(security=EtcdSecurity(tls=True)) as server:
        yield server


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdServer]:
    with EtcdServer(security=EtcdSecurity(auth=PASSWORD)) as server:
        root = ("--user", f"root:{PASSWORD}")
        server.ctl(*root, "user", "add", "reader:reading", "--interactive=false")
        server.ctl(*root, "role", "add", "reader")
        server.ctl(*root, "role", "grant-permission", "reader", "--prefix=true", "readwrite", "/mine/")
        server.ctl(*root, "role", "grant-permission", "reader", "readwrite", "/one")
        server.ctl(*root, "user", "grant-role", "reader", "reader")
        yield server


async def test_a_client_that_trusts_the_authority_gets_in_over_tls(tls: EtcdServer) -> None:
    async with open_store(tls.url) as store:
        await store.put("over", b"tls")
        async with store.watch("over") as watch:
            await store.put("over", b"again")
            assert (await anext(watch)).kv.value == b"again"


@pytest.mark.parametrize("problem", ["stranger's authority", "no tls", "no certificate"])
async def test_a_handshake_that_fails_is_unavailable_within_the_deadline(
    problem: str, tls: EtcdServer, mutual: EtcdServer
) -> None:
    url = {
        "stranger's authority": f"etcds://{tls.endpoints[0]}?ca={tls.directory}/stranger.pem&timeout=1",
        "no tls": f"etcd://{tls.endpoints[0]}?timeout=1",
        "no certificate": f"etcds://{mutual.endpoints[0]}?ca={mutual.directory}/ca.pem&timeout=1",
    }[problem]
    with pace.within(1.5, "the refusal"):
        async with open_store(url) as store:
            with pytest.raises(Unavailable):
                await store.put("a", b"b")


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("no authority", r"its certificate is not accepted here: .*; name the file of its CA: \?ca=FILE"),
        ("stranger's authority", r"its certificate is not accepted here: .*; name the file of its CA: \?ca=FILE"),
        ("no tls", r"it requires TLS\); write etcds://"),
        ("no certificate", r"TLS fails: .*; check the client's certificate: \?cert=FILE&key=FILE"),
        ("another port", r"no member can be reached \(connection refused\); try again later"),
    ],
)
async def test_why_no_member_can_be_reached_is_told_in_our_words(
    problem: str, told: str, tls: EtcdServer, mutual: EtcdServer, capfd: pytest.CaptureFixture[str]
) -> None:
    url = {
        "no authority": f"etcds://{tls.endpoints[0]}?timeout=1",
        "stranger's authority": f"etcds://{tls.endpoints[0]}?ca={tls.directory}/stranger.pem&timeout=1",
        "no tls": f"etcd://{tls.endpoints[0]}?timeout=1",
        "no certificate": f"etcds://{mutual.endpoints[0]}?ca={mutual.directory}/ca.pem&timeout=1",
        "another port": "etcd://127.0.0.1:1?timeout=1",
    }[problem]
    async with open_store(url) as store:
        with pytest.raises(Unavailable, match=told):
            await store.get("a")
    assert not capfd.readouterr().err  # gRPC's own lines


async def test_a_client_with_a_certificate_gets_in_where_one_is_demanded(mutual: EtcdServer) -> None:
    async with open_store(mutual.url) as store:
        assert await store.put("with", b"certificate") > 1


async def test_a_user_with_the_right_password_gets_in(guarded: EtcdServer) -> None:
    async with open_store(guarded.url) as store:
        await asyncio.gather(*(store.put(f"k{i}", b"v") for i in range(20)))
        assert (await store.status()).engine == "etcd"


async def test_a_password_can_come_from_a_file(guarded: EtcdServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("reading\n")
    async with open_store(f"etcd://{guarded.endpoints[0]}?user=reader&password_file={secret}") as store:
        await store.put("/mine/a", b"1")


@pytest.mark.parametrize("verb", ["get", "put", "watch", "grant"])
async def test_a_wrong_password_is_forbidden_and_never_repeated_back(
    verb: str, guarded: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_store(f"etcd://{guarded.endpoints[0]}?user=root&password=s3cr3t-wrong") as store:
        calls = {
            "get": lambda: store.get("a"),
            "put": lambda: store.put("a", b""),
            "watch": lambda: store.watch("a").__aenter__(),
            "grant": lambda: store.grant(5),
        }
        with pytest.raises(Forbidden) as caught:
            await calls[verb]()
        assert "s3cr3t" not in str(caught.value) + repr(store) + caplog.text


async def test_nobody_gets_in_where_a_user_is_demanded(guarded: EtcdServer) -> None:
    async with open_store(f"etcd://{guarded.endpoints[0]}") as store:
        with pytest.raises(Forbidden, match="user and password"):
            await store.put("a", b"b")


async def test_a_user_is_kept_to_its_keys_and_its_other_watches_go_on(guarded: EtcdServer) -> None:
    url = f"etcd://{guarded.endpoints[0]}?user=reader&password=reading"
    async with open_store(url) as store, store.watch("/mine/") as watch:
        with pytest.raises(Forbidden):
            await store.put("/theirs/a", b"")
        with pytest.raises(Forbidden):
            await store.range("/theirs/")
        with pytest.raises(Forbidden):
            await store.watch("").__aenter__()
        # The key of this name may be read, but not all that starts with it: only the watch itself is denied.
        with pytest.raises(Forbidden):
            await store.watch("/one").__aenter__()
        await store.put("/mine/b", b"still")
        assert (await anext(watch)).kv.value == b"still"
        async with store.watch("/mine/") as later:
            await store.put("/mine/b", b"later")
            assert (await anext(later)).kv.value == b"later"


async def test_a_token_that_the_server_forgot_is_renewed_and_the_write_is_made_once() -> None:
    with EtcdServer(security=EtcdSecurity(auth=PASSWORD)) as server:
        async with open_store(server.url) as store, store.watch("a") as watch:
            await store.put("a", b"1")
            assert (await anext(watch)).kv.version == 1
            server.restart()
            await asyncio.gather(*(store.put("a", b"2") for _ in range(5)))
            found = await store.get("a")
            assert found is not None
            assert found.version == 6
            assert [(await anext(watch)).kv.version for _ in range(5)] == [2, 3, 4, 5, 6]
            lease = await store.grant(5)
            server.restart()
            await lease.keep_alive()
            async with store.watch("b") as other:
                await store.put("b", b"3")
                assert (await anext(other)).kv.value == b"3"


async def test_a_user_is_of_no_harm_where_none_is_demanded() -> None:
    with EtcdServer() as server:
        async with open_store(server.url + "?user=root&password=any") as store:
            assert await store.put("a", b"b") == 2


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("h:1?user=a", "password"),
        ("h:1?password=a", "user"),
        ("h:1?user=a&password=b&password_file=c", "either"),
        ("h:1?ca=/x", "etcds"),
        ("h:1?cert=/x", "etcds"),
        ("h:1/path", "path"),
        ("u:p@h:1", "user="),
        ("h:0", "host:port"),
        ("h:x", "host:port"),
        ("", "host:port"),
        ("h:1,,g:2", "host:port"),
        ("h:1?timeout=0", "timeout"),
        ("h:1?nonsense=1", "nonsense"),
    ],
)
def test_a_url_that_cannot_be_is_refused(rest: str, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        open_store(f"etcd://{rest}")


@pytest.mark.parametrize("option", ["ca=/nowhere/ca.pem", "cert=/nowhere/c.pem&key=/nowhere/k.pem"])
async def test_a_certificate_that_cannot_be_read_is_refused_on_opening(option: str) -> None:
    with pytest.raises(Invalid, match="/nowhere/"):
        async with open_store(f"etcds://127.0.0.1:1?{option}"):
            pass


async def test_a_password_file_that_cannot_be_read_is_refused_on_opening() -> None:
    with pytest.raises(Invalid, match="/nowhere/secret"):
        async with open_store("etcd://127.0.0.1:1?user=a&password_file=/nowhere/secret"):
            pass


async def test_a_password_file_that_is_not_utf8_is_refused_on_opening(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"hunter2\xff\n")
    with pytest.raises(Invalid, match=f"{tmp_path}/secret.*not UTF-8") as caught:
        async with open_store(f"etcd://127.0.0.1:1?user=a&password_file={tmp_path}/secret"):
            pass
    assert "hunter2" not in str(caught.value)


async def test_a_password_file_that_goes_bad_is_named_and_read_anew(guarded: EtcdServer, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    url = f"etcd://{guarded.endpoints[0]}?user=reader&password_file={secret}&timeout=2"
    secret.write_text("reading\n")
    async with open_store(url) as store:
        secret.write_bytes(b"reading\xff")
        with pytest.raises(Invalid, match="not UTF-8"):
            await store.get("/one")
        secret.write_text("reading\n")
        async with store.watch("/mine/") as watch:
            await store.put("/mine/a", b"1")
            assert (await anext(watch)).kv.value == b"1"
