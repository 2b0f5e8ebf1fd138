"""The address of the server, and whether a token may be sent there."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from yarl import URL

from hostler.errors import Invalid
from hostler.keys.lab import check_user
from hostler.keys.template import MAX_USER, check_part
from hostler.kit.host import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping


CONNECT_WITHIN = 3.0
"""Seconds after which the next of several servers is tried."""


class Address:
    """The URL of the server, or of several, separated by commas and tried in order.

    Invalid: one is not the URL of a server, or a token would be sent unencrypted to another machine.
    """

    def __init__(self, url: str, *, token: bool, unix: str | None, insecure: bool) -> None:
        self.urls = tuple(one.strip().rstrip("/") for one in url.split(","))
        hosts = [_checked_host(one) for one in self.urls]
        self.url = self.urls[0]
        """The URL in use."""
        self.secure = any(one.startswith("https:") for one in self.urls)
        self._clear = [
            one
            for one, host in zip(self.urls, hosts)
            if not (one.startswith("https:") or unix is not None or insecure or is_loopback(host))
        ]
        self._reached = len(self.urls) == 1 or unix is not None
        if token:
            self.check_token()

    @property
    def named(self) -> str:
        """Return all URLs, for messages."""
        return ", ".join(self.urls)

    def lose(self) -> None:
        """Look for another server before the next request, because the one in use could not be reached."""
        self._reached = len(self.urls) == 1

    async def reach(self, asked: URL) -> URL:
        """Return the same request for a server that accepts connections: the one in use, or the first that does.

        If none does, the request goes to the first, and fails there.
        """
        if self._reached:
            return asked
        path = str(asked).removeprefix(self.url)
        self.url = self.urls[0]
        for one in self.urls:
            if await _takes_connections(one):
                self.url, self._reached = one, True
                break
        return URL(f"{self.url}{path}", encoded=True)

    def check_token(self) -> None:
        """Invalid: a token would be sent unencrypted."""
        if self._clear:
            raise Invalid(
                f"server {self._clear[0]}: the token would be sent in clear, readable on the way; use https://,"
                " or say insecure=True"
            )

    def to(self, *path: str, query: Mapping[str, str | int | bool | None] | None = None) -> URL:
        """Return the URL of `/v1/…`; each part is escaped, so that it stays one segment."""
        segments = "/".join(_segment(path[0], part) for part in path)
        asked = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        tail = f"?{urlencode(asked)}" if asked else ""
        return URL(f"{self.url}/v1/{segments}{tail}", encoded=True)


def _segment(family: str, part: str) -> str:
    """Return one segment of a path. A web user id may contain characters that names may not, even dots alone."""
    if family != "labs":
        return quote(check_part(part, "name", most=MAX_USER), safe="")
    text = quote(check_user(part), safe="")
    return text.replace(".", "%2E") if part in (".", "..") else text


def _checked_host(url: str) -> str:
    """Return the host of a URL. Invalid: it is not the URL of a server."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise Invalid(f"server {url!r}: {error}; give it as https://host:port") from None
    if parts.scheme not in ("http", "https") or not host:
        raise Invalid(f"server {url!r}: must be http://host:port or https://host:port")
    if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
        raise Invalid("server: the url may have only host, port and path; give the token separately")
    return host


async def _takes_connections(url: str) -> bool:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECT_WITHIN):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tls(ca: str | None) -> ssl.SSLContext:
    """Return a context that trusts the authorities in the file `ca`; without one, those of the system."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"ca {ca!r}: cannot be used ({reason}); name a PEM file of certificates") from None
