"""Where the server is, and whether a token may be sent there."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from yarl import URL

from hostler.errors import Invalid
from hostler.keys.part import check_part
from hostler.kit.host import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping


class Address:
    """The server's URL, checked. Invalid: it is none, or a token would travel in clear to another machine."""

    def __init__(self, url: str, *, token: bool, unix: str | None, insecure: bool) -> None:
        try:
            parts = urlsplit(url)
            host = parts.hostname
            _ = parts.port
        except ValueError as error:
            raise Invalid(f"server {url!r}: {error}; give it as https://host:port") from None
        if parts.scheme not in ("http", "https") or not host:
            raise Invalid(f"server {url!r}: must be http://host:port or https://host:port")
        if parts.query or parts.fragment or parts.username is not None or parts.password is not None:
            raise Invalid("server: a url of host, port and path only; the token is given apart")
        self.url = url.rstrip("/")
        self.secure = parts.scheme == "https"
        self._clear = not (self.secure or unix is not None or insecure or is_loopback(host))
        if token:
            self.check_token()

    def check_token(self) -> None:
        """Invalid: a token would be sent in clear."""
        if self._clear:
            raise Invalid(
                f"server {self.url}: the token would be sent in clear, readable on the way; use https://,"
                " or say insecure=True"
            )

    def to(self, *path: str, query: Mapping[str, str | int | bool | None] | None = None) -> URL:
        """The URL of `/v1/…`; parts are escaped, so each stays one segment."""
        segments = "/".join(quote(check_part(part, "name"), safe="") for part in path)
        asked = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        tail = f"?{urlencode(asked)}" if asked else ""
        return URL(f"{self.url}/v1/{segments}{tail}", encoded=True)


def _text(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def tls(ca: str | None) -> ssl.SSLContext:
    """Trusts the authorities in the file `ca`; without one, those of the system."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"ca {ca!r}: cannot be used ({reason}); name a PEM file of certificates") from None
