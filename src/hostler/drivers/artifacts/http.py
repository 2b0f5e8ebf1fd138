"""A repository over HTTP: a folder that any web server serves, or Hostler's own server.

Answers are not trusted: they are bounded in size, the description of an artifact is read strictly, and its file counts
only after its checksum is verified. The token is sent to the configured server only, never to the target of a redirect.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from yarl import URL

from hostler.drivers.artifacts.folder import CHUNK, arriving, translate_file_errors
from hostler.drivers.artifacts.metadata import (
    DESCRIPTION,
    INDEX,
    MAX_INFO,
    check_info,
    decode_info,
    in_order,
    parse_artifact,
)
from hostler.errors import Conflict, Damaged, Forbidden, HostlerError, Invalid, NotFound, Refused, Unavailable
from hostler.kit.host import is_loopback
from hostler.model.slice_api import ArtifactPage, ArtifactView
from hostler.ports.slices import ArtifactInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from pathlib import Path

T = TypeVar("T")

OURS = "/v1/artifacts"
"""How the URL of a Hostler server ends."""
MAX_INDEX = 32 * 1024 * 1024
MAX_REDIRECTS = 5
MAX_PAGES = 10_000
CONNECT_WITHIN = 10.0
SILENT_WITHIN = 30.0
ALL_WITHIN = 600.0
PAUSES = (0.3, 1.0, 3.0)
"""Seconds between attempts of a read."""
_REDIRECTS = (301, 302, 303, 307, 308)


class HttpArtifacts:
    """Read-only, unless it is Hostler's own server. It need not be closed."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        ca: Path | None = None,
        ticket: str = "",
        pin: aiohttp.Fingerprint | None = None,
    ) -> None:
        """`ticket`: replaces the token, valid for one file. `pin`: the only trusted certificate."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.query:
            raise Invalid("artifacts: must be a folder, http://HOST/PATH or https://HOST/PATH")
        if token is not None and parts.scheme == "http" and not is_loopback(parts.hostname):
            raise Invalid(f"artifacts {url}: the token would be sent in clear text; use https://")
        self.url = url.rstrip("/")
        self._ours = parts.path.rstrip("/").endswith(OURS)
        self._credential = f"Ticket {ticket}" if ticket else f"Bearer {token}" if token is not None else ""
        self._tls: ssl.SSLContext | aiohttp.Fingerprint | None = None
        if parts.scheme == "https":
            self._tls = pin or _tls(ca)

    async def find(self, artifact: str) -> ArtifactInfo:
        """Return the metadata of an artifact."""
        return await self._again(lambda: self._find(artifact))

    async def _find(self, artifact: str) -> ArtifactInfo:
        data = await self._read(self._where(artifact), MAX_INFO, artifact)
        if not self._ours:
            return decode_info(data, artifact, self._where(artifact))
        try:
            view = ArtifactView.decode(data)
        except Invalid as error:
            raise Damaged(f"artifact {artifact}: {self.url} sent metadata that cannot be read ({error})") from None
        return decode_info(msgspec.json.encode(_info(view)), artifact, self._where(artifact))

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        """Return all readable artifacts."""
        found = await self._again(self._pages if self._ours else self._index)
        return in_order((info for info in found if _is_good(info)), base)

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        """Download its file into `to`."""
        return await self._again(lambda: self._fetch(artifact, to))

    async def _fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        return await self.take(await self._find(artifact), to)

    async def take(self, info: ArtifactInfo, to: Path) -> ArtifactInfo:
        """Download the file of a known artifact into `to`, with one request. Refused: it is another file."""
        artifact = check_info(info).artifact
        url = f"{self._where(artifact)}/file" if self._ours else f"{self._place(artifact)}/{quote(info.file)}"
        with translate_file_errors(to):
            await asyncio.to_thread(to.mkdir, parents=True, exist_ok=True)
        async with self._get(url, artifact) as answer:
            if answer.content_length is not None and answer.content_length != info.size:
                raise Refused(
                    f"artifact {artifact}: {url} is {answer.content_length} bytes, not {info.size}; publish it again"
                )
            with arriving(to, info) as arrival:
                async for chunk in answer.content.iter_chunked(CHUNK):
                    await asyncio.to_thread(arrival.take, chunk)
        return info

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        """Publish an artifact. Refused: not a Hostler server, so it is read-only."""
        if not self._ours:
            raise Refused(f"artifacts {self.url}: read-only; publish into the folder that it serves")
        check_info(info)
        url = f"{self._where(info.artifact)}/file?name={quote(info.file)}"
        with translate_file_errors(source):
            file = source.open("rb")
        with file:
            async with self._request("PUT", url, info.artifact, data=file) as answer:
                if answer.status not in (200, 201):
                    raise await self._refusal(answer, info.artifact)
                data = await self._read_bounded(answer, MAX_INFO)
        try:
            published = _info(ArtifactView.decode(data))
        except Invalid as error:
            raise Damaged(f"artifact {info.artifact}: {self.url} sent an unreadable answer ({error})") from None
        if published.sha256 != info.sha256:
            raise Conflict(f"artifact {info.artifact}: {self.url} has another file; publish it as another version")
        return published

    # URLs

    def _place(self, artifact: str) -> str:
        found = parse_artifact(artifact)
        return "/".join((self.url, *(quote(part, safe="") for part in (found.group, found.name, found.version))))

    def _where(self, artifact: str) -> str:
        parse_artifact(artifact)
        return f"{self.url}/{quote(artifact, safe='')}" if self._ours else f"{self._place(artifact)}/{DESCRIPTION}"

    # Listing

    async def _index(self) -> Sequence[ArtifactInfo]:
        try:
            data = await self._read(f"{self.url}/{INDEX}", MAX_INDEX, "")
            return msgspec.json.decode(data, type=tuple[ArtifactInfo, ...])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Damaged(f"artifacts {self.url}/{INDEX}: cannot be read ({error}); publish an artifact") from None

    async def _pages(self) -> Sequence[ArtifactInfo]:
        found: list[ArtifactInfo] = []
        after = ""
        for _ in range(MAX_PAGES):
            data = await self._read(f"{self.url}?limit=1000{after}", MAX_INDEX, "")
            try:
                page = ArtifactPage.decode(data)
            except Invalid as error:
                raise Damaged(f"artifacts {self.url}: sent an unreadable answer ({error})") from None
            found += map(_info, page.items)
            if page.after is None or not page.items:
                return found
            after = f"&after={quote(page.after, safe='')}"
        raise Damaged(f"artifacts {self.url}: its list does not end; check the url")

    # Requests

    async def _again(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Retry a read a few times, so that short disturbances do not matter."""
        for pause in PAUSES:
            try:
                return await ask()
            except Unavailable:
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not security
        return await ask()

    async def _read(self, url: str, most: int, artifact: str) -> bytes:
        async with self._get(url, artifact) as answer:
            return await self._read_bounded(answer, most)

    async def _read_bounded(self, answer: aiohttp.ClientResponse, most: int) -> bytes:
        data = bytearray()
        async for chunk in answer.content.iter_chunked(CHUNK):
            data += chunk
            if len(data) > most:
                raise Refused(f"artifacts {self.url}: an answer is larger than {most} bytes; check the url")
        return bytes(data)

    @asynccontextmanager
    async def _get(self, url: str, artifact: str) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._request("GET", url, artifact) as answer:
            if answer.status != 200:
                raise await self._refusal(answer, artifact)
            yield answer

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, artifact: str, *, data: object = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        what = f"artifact {artifact}" if artifact else "artifacts"
        limits = aiohttp.ClientTimeout(total=ALL_WITHIN, sock_connect=CONNECT_WITHIN, sock_read=SILENT_WITHIN)
        connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True)
        try:
            async with aiohttp.ClientSession(
                connector=connector, timeout=limits, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as session:
                session._retry_connection = False
                async with self._follow_redirects(session, method, URL(url, encoded=True), data) as answer:
                    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                        raise Refused(f"{what}: {self.url} sent a compressed answer; check the url")
                    yield answer
        except HostlerError:
            raise
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError) as error:
            raise Refused(f"{what}: {self.url} is not trusted ({error}); set artifacts_ca") from None
        except (aiohttp.InvalidURL, ValueError) as error:
            raise Refused(f"{what}: {self.url} redirects to an invalid URL ({error}); check the url") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"{what}: {self.url} does not answer correctly ({why}); try again") from None

    @asynccontextmanager
    async def _follow_redirects(
        self, session: aiohttp.ClientSession, method: str, url: URL, data: object
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer, after redirects. A write is never redirected."""
        named = URL(self.url, encoded=True).origin()
        for _ in range(MAX_REDIRECTS + 1):
            headers = {"Accept-Encoding": "identity"}
            if data is not None:
                headers["Content-Type"] = "application/octet-stream"
            if self._credential and url.origin() == named:
                headers["Authorization"] = self._credential
            async with session.request(method, url, headers=headers, data=data, allow_redirects=False) as answer:
                if answer.status not in _REDIRECTS or method != "GET":
                    yield answer
                    return
                following = url.join(URL(answer.headers.get("Location", "")))
            if following.scheme not in ("http", "https") or (url.scheme == "https" and following.scheme != "https"):
                raise Refused(
                    f"artifacts {self.url}: redirects to {following.scheme}, which is not safe; check the url"
                )
            url = following
        raise Refused(f"artifacts {self.url}: too many redirects; check the url")

    async def _refusal(self, answer: aiohttp.ClientResponse, artifact: str) -> HostlerError:
        what = f"artifact {artifact}" if artifact else f"artifacts {self.url}"
        status = answer.status
        if status == 404 and artifact:
            return NotFound(f"{what}: not in the repository {self.url}; publish it with hostler slice push")
        if status in (401, 403):
            return Forbidden(f"{what}: {self.url} requires a valid token; set artifacts_token")
        if status == 409:
            return Conflict(f"{what}: {self.url} has another file under that name; publish it as another version")
        if status >= 500 or status in (408, 429):
            return Unavailable(f"{what}: {self.url} answers {status}; try again")
        if self._ours and status in (400, 413, 415, 422):
            return Invalid(f"{what}: {await self._detail(answer)}")
        return Refused(f"{what}: {self.url} answers {status}; check the url")

    async def _detail(self, answer: aiohttp.ClientResponse) -> str:
        """Return the reason that Hostler's own server gives."""
        try:
            told = msgspec.json.decode(await self._read_bounded(answer, MAX_INFO), type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError):
            told = {}
        return str(told.get("detail", f"{self.url} answers {answer.status}"))[:2000]


def _info(view: ArtifactView) -> ArtifactInfo:
    return ArtifactInfo(**{name: getattr(view, name) for name in ArtifactInfo.__struct_fields__})


def _is_good(info: ArtifactInfo) -> bool:
    try:
        check_info(info)
    except Invalid:
        return False
    return True


def _tls(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"artifacts_ca {ca}: cannot be used ({reason}); name a PEM file of certificates") from None
