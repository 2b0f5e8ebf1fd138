"""Who asks: the token in `Authorization: Bearer`, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Unauthenticated

if TYPE_CHECKING:
    from hostler.engine.request import Caller
    from hostler.entry.server.services import Services

MAX_TOKEN = 512


def token_of(headers: dict[bytes, bytes]) -> str:
    """The token that was sent. Unauthenticated: none was."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > MAX_TOKEN or not token.isascii():
        raise Unauthenticated("token: none was sent; send Authorization: Bearer with a token")
    return token.decode()


def caller_of(services: Services, token: str, source: str) -> Caller:
    """The caller that the token stands for. Unauthenticated: it stands for nobody."""
    return services.users.authenticate(token, source)
