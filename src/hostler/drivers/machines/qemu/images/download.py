"""Downloads a file from a web server, and resumes where an earlier attempt ended.

If the file changed on the server, the download starts again, as far as the server reports that (`If-Range`). In any
case the checksum decides.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import re
import shutil
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from hostler.drivers.machines.qemu.images.layout import release, take
from hostler.drivers.machines.qemu.images.transfer import CHUNK, too_large
from hostler.errors import Invalid, NotFound, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.drivers.machines.qemu.images.layout import ImageLayout
    from hostler.ports.machine_driver import Progress


class PartialDownload:
    """A partial download, named by the checksum of the complete file. All methods block: call them in a thread."""

    def __init__(self, place: ImageLayout, sha256: str) -> None:
        self.path = place.parts / f"{sha256}.part"
        self.sha256 = sha256
        self._version = place.parts / f"{sha256}.version"
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self.length = 0

    def is_whole(self) -> bool:
        """Return whether the file is complete and correct."""
        return self.length > 0 and self._hash.hexdigest() == self.sha256

    def checksum(self) -> str:
        """Return the checksum of the received bytes."""
        return self._hash.hexdigest()

    def read(self) -> None:
        """Read the bytes received so far."""
        self._hash, self.length = hashlib.sha256(), 0
        with self.path.open("rb") as file:
            while data := file.read(CHUNK):
                self._hash.update(data)
                self.length += len(data)

    def version(self) -> str:
        """Return the server's version of the received bytes; empty: none."""
        try:
            return self._version.read_text(encoding="ascii")
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def restart(self, version: str) -> None:
        """Discard the received bytes and expect that version. The version is stored before any byte of it."""
        os.truncate(self.path, 0)
        self._hash, self.length = hashlib.sha256(), 0
        self._version.write_text(version, encoding="ascii", errors="ignore")

    def append(self, data: bytes) -> None:
        """Append received bytes."""
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        self._file.write(data)
        self._hash.update(data)
        self.length += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def forget(self) -> None:
        """Delete the partial download."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)


@contextmanager
def lock_part(place: ImageLayout, sha256: str) -> Iterator[PartialDownload]:
    """Yield the partial download with that checksum, locked. Unavailable: another process downloads the same file."""
    part = PartialDownload(place, sha256)
    with place.locked(alone=False):  # so that it is not removed between opening and locking
        lock = os.open(part.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take(lock, fcntl.LOCK_EX):
            os.close(lock)
            raise Unavailable(f"image {sha256[:12]}…: another process is loading it; wait for that one, then try again")
    try:
        yield part
    finally:
        part.close()
        release(lock)


CONNECT_WITHIN = 30.0
STALLED_AFTER = 60.0
"""Seconds without a byte."""
REDIRECTS = 10
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class _Anew(Exception):
    """The partial download is of no use: start again."""


def check_url(url: str) -> str:
    """Check a URL. Invalid: it cannot be downloaded."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() or not character.isprintable() for character in url):
        raise Invalid(
            f"image source {redact_url(url)!r}: must be a path, or a URL that begins with http:// or https://"
        )
    return url


def redact_url(url: str) -> str:
    """Return the URL without parts that may be secret: user, password, query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(a URL that cannot be read)"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


async def download(url: str, part: PartialDownload, *, limit: int, progress: Progress) -> None:
    """Complete the partial download.

    Refused: the file has another checksum, or is too large; nothing is kept. Unavailable: the server does not answer,
    or stopped in the middle; the received part is kept.
    """
    subject = f"image {redact_url(url)}"
    await asyncio.to_thread(part.read)
    resumed = part.length > 0
    while not part.is_whole():
        try:
            await _load(url, part, limit, subject, progress)
        except _Anew:
            await asyncio.to_thread(part.restart, "")
        else:
            if part.is_whole():
                return
            if not resumed:
                found = part.checksum()
                await asyncio.to_thread(part.forget)
                raise Refused(
                    f"{subject}: wrong checksum: expected sha256 {part.sha256}, got {found};"
                    " check the checksum that you gave, or get it from another server"
                )
            await asyncio.to_thread(part.restart, "")  # the file may have changed between the attempts
        resumed = False


async def _load(url: str, part: PartialDownload, limit: int, subject: str, progress: Progress) -> None:
    """Download the missing part. _Anew: the download cannot be resumed."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "hostler"}
    if part.length:
        version = await asyncio.to_thread(part.version)
        headers |= {"Range": f"bytes={part.length}-"} | ({"If-Range": version} if version else {})
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN, sock_read=STALLED_AFTER)
    progress("connecting", part.length, None)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session,
            session.get(url, headers=headers, max_redirects=REDIRECTS) as answer,
        ):
            await _take(answer, part, limit, subject, progress)
    except aiohttp.TooManyRedirects:
        raise Refused(f"{subject}: more than {REDIRECTS} redirects; check the URL") from None
    except aiohttp.InvalidURL:
        raise Refused(f"{subject}: it redirects to an invalid URL; check it") from None
    except TimeoutError:
        raise _interrupted_error(subject, part, f"no data for {STALLED_AFTER:.0f} s") from None
    except (aiohttp.ClientError, ConnectionError) as error:
        raise _interrupted_error(subject, part, _why(error)) from None


async def _take(
    answer: aiohttp.ClientResponse, part: PartialDownload, limit: int, subject: str, progress: Progress
) -> None:
    if answer.status == 416 and part.length:
        if answer.headers.get("Content-Range", "") == f"bytes */{part.length}":
            return  # the file is complete
        raise _Anew
    if answer.status == 206:
        place = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
        if place is None or int(place[1]) != part.length:
            raise _Anew
        total = None if place[2] == "*" else int(place[2])
    elif answer.status == 200:
        total = answer.content_length
        await asyncio.to_thread(part.restart, _version_in(answer))
    else:
        raise _not_given(subject, answer.status)
    _refuse_unless_it_fits(part, total, limit, subject)
    async for data in answer.content.iter_any():
        if part.length + len(data) > limit:
            await asyncio.to_thread(part.forget)
            raise too_large(subject, limit)
        await asyncio.to_thread(part.append, data)
        progress("loading", part.length, total)
    if total is not None and part.length < total:
        raise _interrupted_error(subject, part, f"it ended after {part.length:,} of {total:,} bytes")


def _refuse_unless_it_fits(part: PartialDownload, total: int | None, limit: int, subject: str) -> None:
    if total is None:
        return
    if total > limit:
        part.forget()
        raise too_large(subject, limit)
    free = shutil.disk_usage(part.path.parent).free
    if total - part.length > free:
        raise Unavailable(
            f"{subject}: {total - part.length:,} bytes are missing, but only {free:,} are free in {part.path.parent};"
            " free some space, then try again"
        )


def _version_in(answer: aiohttp.ClientResponse) -> str:
    """Return the value for `If-Range`: a strong ETag, otherwise the time of the last change."""
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified", "")


def _not_given(subject: str, status: int) -> NotFound | Refused | Unavailable:
    if status in (404, 410):
        return NotFound(f"{subject}: the server has no such file ({status}); check the URL")
    if status in (408, 425, 429) or status >= 500:
        return Unavailable(f"{subject}: the server cannot deliver it now ({status}); try again later")
    return Refused(f"{subject}: the server does not deliver it ({status}); check the URL and whether it needs a login")


def _interrupted_error(subject: str, part: PartialDownload, why: str) -> Unavailable:
    kept = f"the same command resumes after {part.length:,} bytes" if part.length else "try again later"
    return Unavailable(f"{subject}: {why}; {kept}")


def _why(error: Exception) -> str:
    """Describe an error without the URL, which may contain a secret."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the name of its server cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
        return "the certificate of its server is not valid"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"its server cannot be reached: {error.os_error.strerror or 'no connection'}"
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | ConnectionError):
        return "the connection broke"
    return f"the server's answer cannot be read ({type(error).__name__})"
