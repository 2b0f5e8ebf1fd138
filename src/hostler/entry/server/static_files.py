"""The files of the web page: read into memory on the first request, and served unchanged.

Only files found in the folder at that time have a URL, so no URL leads out of the folder. The page itself is one file
with a new nonce in each answer. All other files have a content hash in their names, or are small, and may be cached.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import hostler
from hostler.entry.server.response import likes_of
from hostler.entry.server.route import Answer, Route
from hostler.errors import NotFound
from hostler.model.resources.operation import Access

if TYPE_CHECKING:
    from hostler.entry.server.route import Asked, Handler

MEDIA = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".json": b"application/json",
    ".md": b"text/markdown; charset=utf-8",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
    ".txt": b"text/plain; charset=utf-8",
    ".woff2": b"font/woff2",
}
"""Served media types by file extension; other files are not served."""
PACKED = {b"br": ".br", b"gzip": ".gz"}
"""In order of preference."""
INDEX = "index.html"
ASSETS = "assets"
NONCE = b"__NONCE__"
YEAR = b"public, max-age=31536000, immutable"
ASK_AGAIN = b"no-cache"
GUARDS = (
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (
        b"permissions-policy",
        b"camera=(), display-capture=(), geolocation=(), hid=(), microphone=(), midi=(), payment=(), serial=(), usb=()",
    ),
)
"""Headers of every page."""
_OF_FILES = (
    *GUARDS[:2],
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"vary", b"accept-encoding"),
)
_CLOSED = b"img-src 'self' data:; font-src 'self'; connect-src 'self'"
_FRAME = b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem }
code { font: 14px ui-monospace, monospace }
"""
NOT_BUILT = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Hostler</title><link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body><main>
<h1>Hostler</h1>
<p>The server runs. Its web page was not built, so there is nothing to show here.</p>
<p>Build it where Hostler was checked out, with Node.js: <code>make web</code>. Then reload this page.</p>
<p>The API works nevertheless: see <a href="/docs">/docs</a>, and <code>hostler --help</code>.</p>
</main></body></html>
""".encode()


def policy_hash(text: bytes) -> bytes:
    """Return the hash of a script or style for a Content-Security-Policy."""
    return b"'sha256-" + base64.b64encode(hashlib.sha256(text).digest()) + b"'"


def policy(*, script: bytes, style: bytes) -> tuple[bytes, bytes]:
    """Return the Content-Security-Policy of a page: only from this server, and no more than the page needs."""
    text = b"default-src 'none'; script-src %b; style-src %b; %b; %b" % (script, style, _CLOSED, _FRAME)
    return b"content-security-policy", text


class File(msgspec.Struct, frozen=True):
    """A file with its precompressed variants."""

    media: bytes
    data: bytes
    tag: bytes
    packed: dict[bytes, bytes]
    """By encoding."""


class StaticFiles:
    """The files of one folder. The folder is read again for each request until it contains a page."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path(hostler.__file__).parent / "site"
        self._files: dict[str, File] = {}
        self._reading = asyncio.Lock()

    async def page(self, asked: Asked) -> Answer:  # noqa: ARG002 - every handler takes it
        """Return the page with a new nonce.

        It has no ETag: a 304 would make the browser use its cached page, whose nonce was used before.
        """
        file = await self._find(INDEX)
        if file is None:
            style = policy_hash(_STYLE.encode())
            return _page(NOT_BUILT, policy(script=b"'none'", style=style))
        nonce = base64.urlsafe_b64encode(secrets.token_bytes(18))
        style = b"'self' 'nonce-%b'" % nonce
        return _page(file.data.replace(NONCE, nonce), policy(script=b"'self'", style=style))

    async def asset(self, asked: Asked) -> Answer:
        """Return a file whose name changes with its content."""
        return await self._file_answer(asked, f"{ASSETS}/{asked.parts['file']}", YEAR)

    async def beside(self, asked: Asked) -> Answer:
        """Return a file next to the page."""
        return await self._file_answer(asked, asked.route.path[1:], ASK_AGAIN)

    def routes(self) -> tuple[Route, ...]:
        """Return all routes. They are not part of the API."""
        return (
            _route("/", "site.page", "The page", self.page),
            _route(f"/{ASSETS}/{{file}}", "site.asset", "Its scripts and styles", self.asset),
            _route("/favicon.svg", "site.icon", "Its icon", self.beside),
            _route("/licences.txt", "site.licences", "Licences of third-party code", self.beside),
        )

    # Internal

    async def _file_answer(self, asked: Asked, name: str, kept: bytes) -> Answer:
        file = await self._find(name)
        if file is None:
            raise NotFound(f"file {name[:80]!r}: not found; reload the page, it may be outdated")
        headers = asked.raw.headers
        encoding, data, tag = _choose_encoding(file, headers.get(b"accept-encoding", b""))
        more = [*_OF_FILES, (b"cache-control", kept), (b"etag", tag)]
        if _knows(headers.get(b"if-none-match", b""), tag):
            return Answer(headers=tuple(more), status=304)
        if encoding:
            more.append((b"content-encoding", encoding))
        return Answer(text=data, media=file.media, headers=tuple(more))

    async def _find(self, name: str) -> File | None:
        if INDEX not in self._files:
            async with self._reading:
                if INDEX not in self._files:
                    self._files = await asyncio.to_thread(_read, self._folder)
        return self._files.get(name)


def _route(path: str, name: str, summary: str, handler: Handler) -> Route:
    return Route(
        method="GET",
        path=path,
        name=name,
        summary=summary,
        handler=handler,
        access=Access.ANYONE,
        also=(304,),
        media="text/html",
        listed=False,
    )


def _page(text: bytes, allowed: tuple[bytes, bytes]) -> Answer:
    return Answer(text=text, media=MEDIA[".html"], headers=(allowed, *GUARDS, (b"cache-control", ASK_AGAIN)))


def _read(folder: Path) -> dict[str, File]:
    """Read everything in the folder and in its `assets`; empty if the folder is missing or is being built."""
    found: dict[str, File] = {}
    try:
        for place, start in ((folder, ""), (folder / ASSETS, f"{ASSETS}/")):
            for path in sorted(place.iterdir()):
                if path.suffix in MEDIA and path.is_file():
                    found[start + path.name] = _file(path)
    except FileNotFoundError:
        return {}
    return found


def _file(path: Path) -> File:
    data = path.read_bytes()
    packed = {}
    for encoding, end in PACKED.items():
        variant = path.with_name(path.name + end)
        if variant.is_file():
            packed[encoding] = variant.read_bytes()
    return File(MEDIA[path.suffix], data, hashlib.sha256(data).hexdigest()[:32].encode(), packed)


def _choose_encoding(file: File, accepted: bytes) -> tuple[bytes, bytes, bytes]:
    """Return encoding, data and tag: the client's preferred encoding, or ours among equally preferred ones."""
    likes = likes_of(accepted)
    anything = likes.get(b"*", 0.0)
    best, most = b"", 0.0
    for encoding in file.packed:
        liked = likes.get(encoding, anything)
        if liked > most:
            best, most = encoding, liked
    if not best:
        return b"", file.data, b'"%b"' % file.tag
    return best, file.packed[best], b'"%b-%b"' % (file.tag, best)


def _knows(tags: bytes, tag: bytes) -> bool:
    return any(known.strip().removeprefix(b"W/") in (tag, b"*") for known in tags.split(b","))
