"""What every URL of a Redis server has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from hostler.errors import Invalid
from hostler.ports.url import DEFAULT_TIMEOUT, ESCAPE, address, password_of, user_of

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from hostler.drivers.redis_client import RedisLink
    from hostler.ports.url import Options

MAX_DIGITS = 9
"""Maximum length of a database number."""


def redis_link(url: SplitResult, options: Options, what: str, *, opener: str, fenced: bool = False) -> RedisLink:
    """Return connections to the server at `redis://user:password@host:port/db?timeout=…` or `rediss://…?ca=…`."""
    from hostler.drivers.redis_client import RedisAddress, RedisLink, RedisTls

    host, port = address(url, 6379, what)
    db = unquote(url.path).strip("/") or "0"
    if not db.isdecimal() or len(db) > MAX_DIGITS:
        raise Invalid(f"{what} {url.scheme}://…: needs a database number after host:port, as in …/0; {ESCAPE}")
    tls = url.scheme == "rediss"
    server = RedisAddress(
        host,
        port,
        db=int(db),
        user=user_of(url, options),
        password=password_of(url, options),
        tls=RedisTls(options.text("ca"), options.text("cert"), options.text("key")) if tls else None,
    )
    timeout = options.number("timeout", DEFAULT_TIMEOUT, least=0.01)
    return RedisLink(server, timeout=timeout, opener=opener, fenced=fenced)
