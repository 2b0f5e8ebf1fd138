"""Images from web servers: resumed, checked, and never more than was asked for."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hostler.drivers.machines.qemu.images import download as downloading
from hostler.drivers.machines.qemu.images.download import PartialDownload, download, lock_part, redact_url
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.images.layout import ImageLayout
from hostler.errors import HostlerError, NotFound, Refused, TooLarge, Unavailable

CONTENT = random.Random(11).randbytes(300_000)  # its last byte is not the "?" that a test puts there
SHA256 = hashlib.sha256(CONTENT).hexdigest()
LIMIT = 10**6


class Server:
    """A web server with one file, and its bad habits."""

    def __init__(self) -> None:
        self.content = CONTENT
        self.tag = '"first"'
        self.heeds_range = True
        self.breaks_after: int | None = None
        self.stalls = False
        self.status: int | None = None
        self.asked: list[tuple[str | None, str | None]] = []
        self.server = TestServer(self._app())

    def url(self, path: str = "/disk.qcow2") -> str:
        return str(self.server.make_url(path))

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/disk.qcow2", self._file)
        app.router.add_get("/moved", self._moved)
        app.router.add_get("/round", self._round)
        return app

    async def _moved(self, _: web.Request) -> web.Response:
        raise web.HTTPFound("/disk.qcow2")

    async def _round(self, _: web.Request) -> web.Response:
        raise web.HTTPFound("/round")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        wanted, version = request.headers.get("Range"), request.headers.get("If-Range")
        self.asked.append((wanted, version))
        assert request.headers["Accept-Encoding"] == "identity"
        if self.status is not None:
            return web.Response(status=self.status)
        start = 0
        headers = {"ETag": self.tag} if self.tag else {}
        status = 200
        if wanted and self.heeds_range and version in (None, self.tag):
            start, status = int(wanted.removeprefix("bytes=").removesuffix("-")), 206
            if start >= len(self.content):
                return web.Response(status=416, headers={"Content-Range": f"bytes */{len(self.content)}"})
            headers["Content-Range"] = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
        body = self.content[start:]
        answer = web.StreamResponse(status=status, headers=headers)
        answer.content_length = len(body)
        await answer.prepare(request)
        await answer.write(body if self.breaks_after is None else body[: self.breaks_after])
        if self.stalls:
            await asyncio.sleep(30)
        if self.breaks_after is not None:
            await asyncio.sleep(0.05)  # what has come when a connection breaks, but was not read yet, is lost
            assert request.transport is not None
            request.transport.close()
        return answer


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.server.start_server()
    yield server
    await server.server.close()


@pytest.fixture
def part(tmp_path: Path) -> PartialDownload:
    place = ImageLayout(tmp_path)
    place.make()
    with lock_part(place, SHA256) as part:
        return part


@pytest.fixture
def load(server: Server, part: PartialDownload) -> Callable[..., Awaitable[None]]:
    async def load(path: str = "/disk.qcow2", limit: int = LIMIT) -> None:
        await download(server.url(path), part, limit=limit, progress=lambda *_: None)
        part.close()

    return load


Load = Callable[..., Awaitable[None]]


@pytest.mark.parametrize("path", ["/disk.qcow2", "/moved"])
async def test_a_file_is_loaded_and_progress_told(server: Server, part: PartialDownload, path: str) -> None:
    told: list[tuple[str, int, int | None]] = []
    await download(server.url(path), part, limit=LIMIT, progress=lambda *t: told.append(t))
    assert part.path.read_bytes() == CONTENT
    assert told[-1] == ("loading", len(CONTENT), len(CONTENT))


async def test_what_broke_off_goes_on_where_it_was(server: Server, part: PartialDownload, load: Load) -> None:
    server.breaks_after = 100_000
    with pytest.raises(Unavailable, match="the same command resumes after 100,000 bytes"):
        await load()
    server.breaks_after = None
    await load()
    assert part.path.read_bytes() == CONTENT
    assert server.asked == [(None, None), ("bytes=100000-", '"first"')]


async def test_a_server_that_goes_silent_is_not_waited_for(
    server: Server, part: PartialDownload, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "STALLED_AFTER", 0.1)
    server.breaks_after, server.stalls = 1000, True
    with pytest.raises(Unavailable, match="no data for"):
        await load()
    assert part.length == 1000


async def test_a_file_that_changed_meanwhile_is_begun_anew(server: Server, part: PartialDownload, load: Load) -> None:
    server.content, server.breaks_after, server.tag = bytes(300_000), 100_000, '"older"'
    with pytest.raises(Unavailable):
        await load()
    server.content, server.breaks_after, server.tag = CONTENT, None, '"first"'
    await load()
    assert part.path.read_bytes() == CONTENT
    assert server.asked[1:] == [("bytes=100000-", '"older"')]


async def test_a_file_that_changed_unsaid_is_begun_anew_once_its_checksum_is_wrong(
    server: Server, part: PartialDownload, load: Load
) -> None:
    server.content, server.breaks_after, server.tag = bytes(300_000), 100_000, ""
    with pytest.raises(Unavailable):
        await load()
    server.content, server.breaks_after = CONTENT, None
    await load()
    assert part.path.read_bytes() == CONTENT
    assert server.asked[1:] == [("bytes=100000-", None), (None, None)]


async def test_a_server_that_knows_no_ranges_sends_it_all(server: Server, part: PartialDownload, load: Load) -> None:
    server.breaks_after = 100_000
    with pytest.raises(Unavailable):
        await load()
    server.breaks_after, server.heeds_range = None, False
    await load()
    assert part.path.read_bytes() == CONTENT


async def test_what_is_here_is_not_loaded_again(server: Server, part: PartialDownload, load: Load) -> None:
    part.path.write_bytes(CONTENT)
    await load()
    assert server.asked == []


async def test_more_than_there_is_is_begun_anew(server: Server, part: PartialDownload, load: Load) -> None:
    part.path.write_bytes(CONTENT + b"more")
    await load()
    assert part.path.read_bytes() == CONTENT


async def test_a_wrong_checksum_is_refused_and_nothing_kept(server: Server, part: PartialDownload, load: Load) -> None:
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(Refused, match=f"expected sha256 {SHA256}, got"):
        await load()
    assert list(part.path.parent.iterdir()) == []
    assert len(server.asked) == 1


@pytest.mark.parametrize("told", [True, False])
async def test_what_is_too_large_is_refused_and_nothing_kept(
    server: Server, part: PartialDownload, load: Load, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not told:
        monkeypatch.setattr(downloading, "_refuse_unless_it_fits", lambda *_: None)
    with pytest.raises(TooLarge, match="allow more with --max-size"):
        await load(limit=200_000)
    assert list(part.path.parent.iterdir()) == []


async def test_what_does_not_fit_on_the_disk_is_not_begun(
    server: Server, part: PartialDownload, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(downloading.shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(Unavailable, match="only 1,000 are free"):
        await load()
    assert part.length == 0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFound),
        (410, NotFound),
        (403, Refused),
        (401, Refused),
        (503, Unavailable),
        (429, Unavailable),
        (204, Refused),
    ],
)
async def test_what_a_server_says_decides_what_to_do(
    server: Server, load: Load, status: int, kind: type[HostlerError]
) -> None:
    server.status = status
    with pytest.raises(kind, match=str(status)):
        await load()


async def test_going_round_in_circles_is_refused(load: Load) -> None:
    with pytest.raises(Refused, match="redirects"):
        await load("/round")


async def test_a_server_that_is_not_there_is_unavailable_and_secrets_of_the_url_are_not_told(
    part: PartialDownload,
) -> None:
    with pytest.raises(Unavailable) as caught:
        await download("http://eve:hidden@127.0.0.1:1/x?token=hidden", part, limit=1, progress=lambda *_: None)
    assert "hidden" not in str(caught.value)
    assert redact_url("https://eve:hidden@h:1/x?token=hidden#hidden") == "https://h:1/x"


def test_two_that_load_the_same_do_not_meet(tmp_path: Path) -> None:
    place = ImageLayout(tmp_path)
    with lock_part(place, SHA256):
        with pytest.raises(Unavailable, match="another process is loading it"), lock_part(place, SHA256):
            pass
        with lock_part(place, "0" * 64):
            pass
    with lock_part(place, SHA256):
        pass


async def test_an_old_part_is_swept_unless_somebody_loads_it(tmp_path: Path) -> None:
    images = ImageFolder(tmp_path)
    with lock_part(images.place, SHA256) as part:
        os.utime(part.path, (0, 0))
        images.sweep()
        assert part.path.exists()
    images.sweep()
    assert not part.path.exists()
