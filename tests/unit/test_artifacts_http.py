"""Repositories over HTTP, those of a web server and Hostler's own; and servers that do all that is wrong."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import http.server
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pytest
from api_server import serving
from harness.pace import patience

from hostler.client import Client
from hostler.drivers.artifacts import http as http_module
from hostler.drivers.artifacts.folder import FolderArtifacts
from hostler.drivers.artifacts.http import HttpArtifacts
from hostler.errors import Conflict, Damaged, Forbidden, HostlerError, Invalid, NotFound, Refused, Unavailable
from hostler.model.access import Role
from hostler.ports.slices import ArtifactInfo
from hostler.settings import load
from hostler.wiring import open_artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from api_server import Api

ONE = "org.example:greeting:1.0.0"
CODE = b"from hostler.slices import method\n\n\n@method\ndef greet() -> str:\n    return 'hello'\n" + b"# more\n" * 2000
PLACE = "/org.example/greeting/1.0.0"
FILE = f"{PLACE}/greeting.py"
DESCRIPTION = f"{PLACE}/artifact.json"


def described(artifact: str = ONE, data: bytes = CODE) -> ArtifactInfo:
    return ArtifactInfo(
        artifact=artifact,
        file="greeting.py",
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        module="greeting",
    )


@contextmanager
def served(handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, 0.01), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def strange(answers: dict[str, Callable[[Any], None]], seen: list[Any] | None = None) -> Any:
    """A server that answers each path as it is told."""

    class Strange(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if seen is not None:
                seen.append((self.path, self.headers.get("Authorization")))
            self.close_connection = True
            answers.get(self.path.partition("?")[0], status(404))(self)

        def log_message(self, *_: Any) -> None: ...

    return Strange


def status(code: int, **headers: str) -> Callable[[Any], None]:
    def answer(at: Any) -> None:
        at.send_response(code)
        for name, value in headers.items():
            at.send_header(name.replace("_", "-"), value)
        at.end_headers()

    return answer


def body(data: bytes, length: int | None = None, **headers: str) -> Callable[[Any], None]:
    def answer(at: Any) -> None:
        status(200, **({} if length == -1 else {"Content_Length": str(length or len(data))}), **headers)(at)
        at.wfile.write(data)

    return answer


def described_as(**changes: Any) -> Callable[[Any], None]:
    return body(msgspec.json.encode(msgspec.structs.replace(described(), **changes)))


GOOD = {f"{PLACE}/artifact.json": described_as(), f"{PLACE}/greeting.py": body(CODE)}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "PAUSES", ())


async def test_a_moments_trouble_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "PAUSES", (0.01, 0.01))
    left = {DESCRIPTION: [status(503), lambda _: None], FILE: [body(CODE[:-1], len(CODE))]}

    def flaky(path: str) -> Callable[[Any], None]:
        def answer(at: Any) -> None:
            (left[path].pop() if left[path] else GOOD[path])(at)

        return answer

    with served(strange({path: flaky(path) for path in GOOD})) as url:
        await HttpArtifacts(url).find(ONE)
        await HttpArtifacts(url).fetch(ONE, tmp_path / "to")
        left[DESCRIPTION] = [status(503)] * 4
        with pytest.raises(Unavailable):
            await HttpArtifacts(url).find(ONE)
        assert len(left[DESCRIPTION]) == 1
    assert (tmp_path / "to/greeting.py").read_bytes() == CODE


async def test_a_folder_behind_any_web_server_is_a_repository(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_bytes(CODE)
    folder = FolderArtifacts(tmp_path / "artifacts")
    for version in ("1.0.0", "1.10.0", "1.9.0"):
        await folder.publish(described(f"org.example:greeting:{version}"), source)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    with served(functools.partial(Quiet, directory=str(folder.root))) as url:
        there = open_artifacts(load({"data": str(tmp_path), "artifacts": url}, {}))
        assert await there.find(ONE) == await folder.find(ONE)
        assert await there.list() == await folder.list()
        versions = [info.artifact.rpartition(":")[2] for info in await there.list("org.example:greeting")]
        assert versions == ["1.0.0", "1.9.0", "1.10.0"]
        assert await there.list("org.example:other") == ()
        assert await there.fetch(ONE, tmp_path / "to") == await folder.find(ONE)
        assert (tmp_path / "to/greeting.py").read_bytes() == CODE
        with pytest.raises(NotFound, match="hostler slice push"):
            await there.find("org.example:greeting:2")
        with pytest.raises(Refused, match="read-only"):
            await there.publish(described(), source)
        with pytest.raises(Invalid):
            await there.find("../../etc:passwd:1")
    with pytest.raises(Unavailable, match="try again"):
        await there.find(ONE)


@pytest.mark.parametrize(
    ("path", "answer", "kind", "said"),
    [
        (FILE, body(CODE[:-1], len(CODE)), Unavailable, "try again"),  # cut off
        (FILE, body(CODE[:-1]), Refused, "bytes, not"),
        (FILE, body(CODE + b"x"), Refused, "bytes, not"),
        (FILE, body(CODE[:-1], -1), Refused, "wrong checksum"),
        (FILE, body(CODE + b"x" * 10_000_000, -1), Refused, "larger than the announced"),
        (FILE, body(CODE[:-1] + b"x"), Refused, "wrong checksum"),
        (FILE, body(CODE, Content_Encoding="gzip"), Refused, "compressed"),
        (FILE, status(404), NotFound, "hostler slice push"),
        (FILE, status(500), Unavailable, "answers 500"),
        (FILE, status(304), Refused, "answers 304"),
        (FILE, lambda at: at.wfile.write(b"nonsense\r\n\r\n"), Unavailable, "does not answer"),
        (FILE, lambda _: None, Unavailable, "does not answer"),
        (DESCRIPTION, body(b"{"), Damaged, "cannot be used"),
        (DESCRIPTION, body(b"[]"), Damaged, "cannot be used"),
        (DESCRIPTION, body(b'{"x": "\xff"}'), Damaged, "cannot be used"),
        (DESCRIPTION, body(b" " * 1_000_000), Refused, "larger than"),
        (DESCRIPTION, body(b" " * 1_000_000, -1), Refused, "larger than"),
        (DESCRIPTION, described_as(artifact="org.example:greeting:2"), Damaged, "describes org.example:greeting:2"),
        (DESCRIPTION, described_as(file="../../evil.py"), Damaged, "plain name"),
        (DESCRIPTION, described_as(file="/etc/evil.py"), Damaged, "plain name"),
        (DESCRIPTION, described_as(size=10**12), Damaged, "size"),
        (DESCRIPTION, described_as(sha256="0" * 64), Refused, "wrong checksum"),
        (DESCRIPTION, described_as(module="os; evil"), Damaged, "module"),
        (DESCRIPTION, status(401), Forbidden, "artifacts_token"),
        (DESCRIPTION, status(302, Location="file:///etc/passwd"), Refused, "redirects to file"),
        (DESCRIPTION, status(302, Location=DESCRIPTION), Refused, "too many redirects"),
        (DESCRIPTION, status(302), Refused, "too many redirects"),
        (DESCRIPTION, status(302, Location="http://[bad"), Refused, "redirects to an invalid URL"),
    ],
)
async def test_what_is_not_what_was_published_is_refused_and_leaves_nothing(
    tmp_path: Path, path: str, answer: Callable[[Any], None], kind: type[HostlerError], said: str
) -> None:
    with served(strange(GOOD | {path: answer})) as url, pytest.raises(kind, match=said):
        await HttpArtifacts(url).fetch(ONE, tmp_path / "to")
    assert not (tmp_path / "to").exists() or not list((tmp_path / "to").iterdir())
    assert not list(tmp_path.rglob("*evil*"))


async def test_redirects_are_followed_without_the_token(tmp_path: Path) -> None:
    seen: list[Any] = []
    with served(strange(GOOD, seen)) as elsewhere:
        first = {f"/repo{path}": status(302, Location=elsewhere + path) for path in GOOD}
        with served(strange(first, asked := [])) as url:
            there = HttpArtifacts(f"{url}/repo", token="secret")
            await there.fetch(ONE, tmp_path / "to")
    assert asked == [(f"/repo{path}", "Bearer secret") for path in GOOD]
    assert seen == [(path, None) for path in GOOD]
    with pytest.raises(Invalid, match="in clear"):
        HttpArtifacts("http://repository.example", token="secret")


async def test_an_index_may_be_wrong_in_parts_but_not_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "MAX_INDEX", 10_000)
    infos = [described(), msgspec.structs.replace(described(), file="../x.py")]
    for answer, error in (
        (body(msgspec.json.encode(infos)), None),
        (body(b"{}"), Damaged),
        (body(b" " * 20_000), Refused),
        (status(503), Unavailable),
    ):
        with served(strange({"/index.json": answer})) as url:
            if error is None:
                assert await HttpArtifacts(url).list() == (described(),)
                continue
            with pytest.raises(error):
                await HttpArtifacts(url).list()


async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "SILENT_WITHIN", 0.2)
    done = threading.Event()
    with served(strange({DESCRIPTION: lambda _: done.wait(60)})) as url:
        try:
            with pytest.raises(Unavailable, match="try again"):
                await HttpArtifacts(url).find(ONE)
        finally:
            done.set()


# Hostler's own server


async def test_hostlers_own_server_takes_shows_and_gives_artifacts(tmp_path: Path) -> None:
    source = tmp_path / "greeting.py"
    source.write_bytes(CODE)
    folder = FolderArtifacts(tmp_path / "artifacts")
    async with serving(artifacts=folder, sockets=True) as api, Client(api.url, api.admin) as client:
        published = await client.artifacts.publish(ONE, source)
        assert published.sha256 == described().sha256
        assert published.published_at > 0
        assert await client.artifacts.publish(ONE, source) == published
        for version in ("1.10.0", "1.9.0"):
            await client.artifacts.publish(f"org.example:greeting:{version}", source)
        assert [view.artifact.rpartition(":")[2] async for view in client.artifacts.list(limit=2)] == [
            *("1.0.0", "1.9.0", "1.10.0"),
        ]
        assert await client.artifacts.get(ONE) == published
        assert (await client.artifacts.fetch(ONE, tmp_path / "client")).read_bytes() == CODE

        token = tmp_path / "token"
        token.write_text(f"{api.admin}\n")
        asked = {"data": str(tmp_path), "artifacts": f"{api.url}/v1/artifacts", "artifacts_token": str(token)}
        node = open_artifacts(load(asked, {}))
        assert await node.list() == await folder.list()
        assert await node.fetch(ONE, tmp_path / "node") == await folder.find(ONE)
        assert (tmp_path / "node/greeting.py").read_bytes() == CODE
        assert await node.publish(described(), source) == await folder.find(ONE)
        with pytest.raises(NotFound):
            await node.fetch("org.example:other:1", tmp_path / "node")

        source.write_bytes(CODE + b"other = 1\n")
        with pytest.raises(Conflict, match="another"):
            await client.artifacts.publish(ONE, source)
        with pytest.raises(Conflict, match="another"):
            await node.publish(described(data=CODE + b"other = 1\n"), source)
        with pytest.raises(Forbidden, match="artifacts_token"):
            await HttpArtifacts(f"{api.url}/v1/artifacts").find(ONE)
        (folder.root / "org.example/greeting/1.0.0/greeting.py").write_bytes(b"spoiled")
        with pytest.raises(HostlerError):
            await client.artifacts.fetch(ONE, tmp_path / "again")


async def test_files_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hostler.entry.server.deployments.COMING", 2)
    monkeypatch.setattr("hostler.entry.server.deployments.GOING", 3)
    source = tmp_path / "greeting.py"
    source.write_bytes(CODE)
    async with (
        serving(artifacts=FolderArtifacts(tmp_path / "artifacts"), sockets=True) as api,
        Client(api.url, api.admin) as client,
    ):
        names = [f"org.example:greeting:{number}" for number in range(10)]
        await asyncio.gather(*(client.artifacts.publish(name, source) for name in names))
        await asyncio.gather(*(client.artifacts.fetch(name, tmp_path / name) for name in names))
        monkeypatch.setattr("hostler.entry.server.deployments.WAIT_WITHIN", 0.05)
        monkeypatch.setattr("hostler.entry.server.deployments.GOING", 0)
        with pytest.raises(Unavailable, match="in progress"):
            await client.artifacts.fetch(names[0], tmp_path)


async def _unread(api: Api, token: str) -> socket.socket:
    """A caller that asks for a file, and does not read it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    url = urlsplit(api.url)
    await asyncio.get_running_loop().sock_connect(connection, (url.hostname, url.port))
    asked = f"GET /v1/artifacts/{ONE}/file HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    await asyncio.get_running_loop().sock_sendall(connection, asked.encode())
    await asyncio.get_running_loop().sock_recv(connection, 1)  # it has begun, and has its place
    return connection


@pytest.mark.slow
async def test_who_does_not_read_or_hardly_writes_keeps_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "hostler.entry.server.deployments."
    monkeypatch.setattr(module + "GOING", 2)
    monkeypatch.setattr(module + "WAIT_WITHIN", 60.0)
    source = tmp_path / "greeting.py"
    source.write_bytes(CODE + b"# more\n" * 1_500_000)
    folder = FolderArtifacts(tmp_path / "artifacts")
    await folder.publish(described(data=source.read_bytes()), source)
    async with serving(artifacts=folder, sockets=True) as api:
        greedy, other = await api.user(Role.VIEWER), await api.user(Role.VIEWER)
        path = f"/v1/artifacts/{ONE}/file"
        with await _unread(api, greedy):
            assert (await api.call("GET", path, token=other)).status == 200  # half of the places are not theirs
            monkeypatch.setattr(module + "WAIT_WITHIN", 0.2)
            assert (await api.call("GET", path, token=greedy)).status == 503
        monkeypatch.setattr(module + "GRACE", patience(1.0))  # enough for who reads
        monkeypatch.setattr(module + "SLOWEST", 64 * 1024 * 1024)
        monkeypatch.setattr(module + "WAIT_WITHIN", 60.0)

        async def dripping() -> Any:
            while True:
                yield b"#"
                await asyncio.sleep(0.05)

        kind = {"Content_Type": "application/octet-stream"}
        with await _unread(api, greedy):
            read, written = await asyncio.gather(
                api.call("GET", path, token=greedy),
                api.call("PUT", "/v1/artifacts/a:b:1/file?name=b.py", data=dripping(), **kind),
            )
        assert read.status == 200  # the other was cut off
        assert written.status == 408


async def test_what_comes_to_the_server_is_looked_at_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.entry.server.deployments.LARGEST", 100_000)
    folder = FolderArtifacts(tmp_path / "artifacts")
    kind = {"Content_Type": "application/octet-stream"}
    path = "/v1/artifacts/{}/file?name={}"
    async with serving(artifacts=folder, sockets=True) as api:
        viewer = await api.user(Role.VIEWER)
        for artifact, name, data, headers, expected in (
            (ONE, "greeting.py", CODE, kind, 201),
            (ONE, "greeting.py", CODE, kind, 200),
            (ONE, "greeting.py", CODE + b"x = 1\n", kind, 409),
            (ONE, "greeting-1.0.0-py3-none-any.whl", CODE, kind, 400),
            (ONE, "..%2Fgreeting.py", CODE, kind, 400),
            (ONE, "greeting.txt", CODE, kind, 400),
            (ONE, "greeting.py", b"", kind, 400),
            (ONE, "greeting.py", CODE, {"Content_Type": "application/json"}, 415),
            ("..%2F..:b:1", "greeting.py", CODE, kind, 400),
            ("a:b", "greeting.py", CODE, kind, 400),
            ("index.json:b:1", "greeting.py", CODE, kind, 400),
            ("a:b:1", "greeting.py", b"x" * 100_001, kind, 413),
        ):
            reply = await api.call("PUT", path.format(artifact, name), data=data, **headers)
            assert (reply.status, artifact, name) == (expected, artifact, name), reply.body
        chunks = (b"x" * 10_000 for _ in range(20))

        async def endless() -> Any:
            for chunk in chunks:
                yield chunk

        assert (await api.call("PUT", path.format("a:b:1", "b.py"), data=endless(), **kind)).status == 413
        assert (await api.call("PUT", path.format("a:b:1", "b.py"), data=b"x", token=viewer, **kind)).status == 403
        assert (await api.call("GET", f"/v1/artifacts/{ONE}/file", token=viewer)).body == CODE
        assert (await api.call("GET", "/v1/artifacts?after=a:b:1")).status == 400
        assert (await api.call("HEAD", f"/v1/artifacts/{ONE}/file")).headers["Content-Length"] == str(len(CODE))
        assert [info.artifact for info in await folder.list()] == [ONE]
