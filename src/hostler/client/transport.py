"""One request and its answer, repeated where that is safe.

A read may always be repeated. A write is repeated only with an Idempotency-Key, by which the server does it once. A
request that was sent and not answered is Uncertain; one that could not be sent is Unavailable. A request that a rate
limit refused was not done: it is sent again when the server says, if that is soon.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import uuid
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast

import aiohttp

from hostler.client.address import Address, tls
from hostler.client.failure import error_of
from hostler.client.resource import Pages
from hostler.errors import Closed, HostlerError, Invalid, OverBudget, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff
from hostler.model.record import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from typing import Any, Unpack

    from yarl import URL

    from hostler.client.resource import CallOptions, StalePaging
    from hostler.model.resources.operation import Operation

_log = logging.getLogger("hostler.client")
R = TypeVar("R", bound=Record)
T = TypeVar("T")

Query: TypeAlias = "Mapping[str, str | int | bool | None]"
SILENCE = 60.0
"""Seconds without a byte after which a stream counts as lost; the server sends heartbeats more often."""

FILE_WITHIN = 600.0
"""Time limit for sending a file, in seconds."""

SLOWED_FOR = 30.0
"""The longest total wait of one request for a rate limit, in seconds."""
TOLD_FROM = 1.0
"""A wait for a rate limit from this many seconds on is reported to `on_slowed`."""
SHORTEST = 0.05
"""The shortest wait for a rate limit, in seconds."""

PARTING = 3.0
"""Seconds that the other side of a WebSocket has to close it."""


class NotSent(Unavailable):
    """The server could not be reached."""


class Lost(Uncertain):
    """The request was sent, fully or in part, and no answer came."""


class HttpTransport:
    """Sends requests. `retries` is how often a request is repeated at most."""

    def __init__(
        self,
        address: Address,
        token: str | None,
        *,
        timeout: float,
        retries: int,
        unix: str | None,
        ca: str | None = None,
        on_slowed: Callable[[str], None] | None = None,
    ) -> None:
        self._on_slowed = on_slowed or _log.warning
        self.address, self.timeout, self.retries = address, timeout, retries
        self._token, self._unix = _checked_token(token), unix
        self._tls = tls(ca) if address.secure else None
        self._session: aiohttp.ClientSession | None = None
        self.stale_for = 0.0
        """The age of the last answer in seconds, if a stale answer was accepted."""

    async def open(self) -> None:
        """Prepare to send; nothing is sent yet."""
        if self._session is not None:
            raise RuntimeError("Client: opened twice")
        connector: aiohttp.BaseConnector
        if self._unix is not None:
            connector = aiohttp.UnixConnector(self._unix)
        else:
            connector = aiohttp.TCPConnector(ssl=self._tls if self._tls is not None else True)
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=True, trust_env=False
        )
        # aiohttp repeats a GET, PUT or DELETE silently by itself; here `_repeated` decides when that is right.
        self._session._retry_connection = False

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def use_token(self, token: str | None) -> None:
        """Send this token from now on."""
        if token is not None:
            self.address.check_token()
        self._token = _checked_token(token)

    async def call(
        self,
        operation: Operation[R],
        *names: str,
        query: Query | None = None,
        body: Record | None = None,
        repeat: bool = True,
        **options: Unpack[CallOptions],
    ) -> R:
        """Send the request of an operation and return its answer. `names`: those that its path has in braces.

        `repeat=False`: send it once, although the server takes an Idempotency-Key.
        """
        assert operation.answer is not None  # noqa: S101 - of a declaration
        answer = await self.send(operation, *names, query=query, body=body, repeat=repeat, **options)
        return _decode(operation.answer, answer, writes=operation.writes)

    async def send(
        self,
        operation: Operation[Any],
        *names: str,
        query: Query | None = None,
        body: Record | None = None,
        repeat: bool = True,
        **options: Unpack[CallOptions],
    ) -> bytes:
        """Send the request of an operation like `call`, and return the bytes of its answer."""
        if unknown := options.keys() - operation.options:
            raise TypeError(f"{operation.name}: takes no {', '.join(sorted(unknown))}")
        asked = {"stale": options.get("stale") or None, **(query or {})}
        url, repeat = self.address.to(*operation.segments(*names), query=asked), repeat and operation.idempotent
        headers = {}
        if operation.writes and repeat:
            headers["Idempotency-Key"] = options.get("key") or uuid.uuid4().hex
        if (revision := options.get("if_match")) is not None:
            headers["If-Match"] = f'"{revision}"'
        again = repeat or not operation.writes
        return await self._send_repeatedly(operation.method, url, headers, body, repeat=again)

    def list(
        self, operation: Operation[R], *names: str, query: Query | None = None, **options: Unpack[StalePaging]
    ) -> Pages[R, T]:
        """Request a list: `await` a page of `limit`, or `async for` over all. `query` is sent with each page."""
        limit, first = options.pop("limit", None), options.pop("after", None)
        rest = cast("CallOptions", options)

        async def page(after: str | None) -> R:
            asked = {"limit": limit, "after": after, **(query or {})}
            return await self.call(operation, *names, query=asked, **rest)

        return Pages(page, first)

    async def upload(self, operation: Operation[R], *names: str, file: Path, query: Query | None = None) -> R:
        """Send a file. Sending the same file twice has the same effect as once."""
        assert operation.answer is not None  # noqa: S101 - of a declaration
        url = self.address.to(*operation.segments(*names), query=query)
        return _decode(operation.answer, await self._send_repeatedly(operation.method, url, {}, file, repeat=True))

    @asynccontextmanager
    async def stream(self, url: URL, headers: dict[str, str]) -> AsyncIterator[aiohttp.StreamReader]:
        """Open an endless answer and return its byte stream."""
        url = await self.address.reach(url)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout, sock_read=SILENCE)
        with _Translated(self.address.named, writes=False, lose=self.address.lose):
            async with self._open().get(
                url, headers=self._headers(headers), timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise error_of(answer.status, answer.headers, await answer.read(), writes=False)
                yield answer.content

    @asynccontextmanager
    async def post(self, url: URL, data: bytes, within: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request once, with a time limit of `within` seconds, and return its answer, not read yet."""
        url = await self.address.reach(url)
        timeout = aiohttp.ClientTimeout(total=within + self.timeout, sock_connect=min(10.0, self.timeout))
        headers = self._headers({"Content-Type": "application/json"})
        with _Translated(self.address.named, writes=True, lose=self.address.lose):
            async with self._open().post(
                url, headers=headers, data=data, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status != 200:
                    raise error_of(answer.status, answer.headers, await answer.read(), writes=True)
                yield answer

    @asynccontextmanager
    async def socket(self, url: URL) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket. Errors before it is open are translated as for any request; later ones are aiohttp's."""
        url = await self.address.reach(url)
        async with AsyncExitStack() as stack:
            socket = open_socket(
                self._open().connector, url, self._headers({}), named=self.address.named, within=self.timeout
            )
            try:
                opened = await stack.enter_async_context(socket)
            except (NotSent, Lost):
                self.address.lose()
                raise
            yield opened

    # Private

    async def _send_repeatedly(
        self, method: str, url: URL, headers: dict[str, str], body: Record | Path | None, *, repeat: bool
    ) -> bytes:
        data = body if body is None or isinstance(body, Path) else body.encode()  # noqa: ASYNC240 - a record
        backoff = Backoff(0.1, 2.0, rng=random.Random())  # noqa: S311 - spreads retries; guards nothing
        uncertain: Uncertain | None = None
        for left in range(self.retries if repeat else 0, -1, -1):
            try:
                url = await self.address.reach(url)
                return await self._send_paced(method, url, headers, data, repeat=repeat)
            except Uncertain as error:
                uncertain = error
                if not left:
                    break
            except Unavailable as error:
                if uncertain is None and not isinstance(error, NotSent):
                    raise
                if not left:
                    if uncertain is not None:  # nothing was written this time, but an earlier attempt may have written
                        break
                    raise Unavailable(str(error)) from None
            await asyncio.sleep(backoff.next())
        assert uncertain is not None  # noqa: S101 - every other way out of the loop returns or raises
        if method == "GET":
            raise Unavailable(str(uncertain))
        again = f" (key={headers['Idempotency-Key']!r})" if "Idempotency-Key" in headers else ""
        raise Uncertain(f"{uncertain}{again}")

    async def _send_paced(
        self, method: str, url: URL, headers: dict[str, str], data: bytes | Path | None, *, repeat: bool
    ) -> bytes:
        """Send it; after a rate limit, send it again when the server says. OverBudget: that would take too long."""
        left = SLOWED_FOR if repeat and self.retries else 0.0
        while True:
            try:
                return await self._once(method, url, headers, data)
            except OverBudget as error:
                pause = max(SHORTEST, error.after)
                if pause > left:
                    raise
                left -= pause
                if pause > TOLD_FROM:
                    said = str(error).partition("; ")[0]
                    self._on_slowed(f"server {self.address.url}: {said}; trying again in {pause:.0f} s")
            await asyncio.sleep(pause)

    async def _once(self, method: str, url: URL, headers: dict[str, str], data: bytes | Path | None) -> bytes:
        total = FILE_WITHIN if isinstance(data, Path) else self.timeout
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=min(10.0, self.timeout))
        sent = self._headers(headers)
        if data is not None:
            sent["Content-Type"] = "application/octet-stream" if isinstance(data, Path) else "application/json"
        with ExitStack() as stack:
            body = stack.enter_context(data.open("rb")) if isinstance(data, Path) else data
            lose = self.address.lose
            stack.enter_context(_Translated(self.address.named, writes=method != "GET", lose=lose))
            async with self._open().request(
                method, url, headers=sent, data=body, timeout=timeout, allow_redirects=False
            ) as answer:
                found = await answer.read()
        if not 200 <= answer.status < 300:
            raise error_of(answer.status, answer.headers, found, writes=method != "GET")
        self.stale_for = _seconds(answer.headers.get("Hostler-Stale"))
        return found

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise Closed("Client: not open; use it inside `async with Client(…) as client`")
        return self._session

    def _headers(self, more: dict[str, str]) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream", **more}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


@asynccontextmanager
async def open_socket(
    connector: aiohttp.BaseConnector | None,
    url: URL,
    headers: dict[str, str],
    *,
    named: str,
    within: float,
    ssl: aiohttp.Fingerprint | bool = True,
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """Open a WebSocket to the server that is called `named`; without a connector, on a new connection.

    The server sends heartbeats more often than we ask for one: we ask only when it is silent.
    """
    async with AsyncExitStack() as stack:
        with _Translated(named, writes=False):
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=connector,
                    connector_owner=connector is None,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    raise_for_status=_raise_refusal,  # ws_connect itself reports only the status
                )
            )
            async with asyncio.timeout(within):
                opened = await session.ws_connect(
                    url,
                    headers=headers,
                    timeout=aiohttp.ClientWSTimeout(ws_close=PARTING),
                    heartbeat=SILENCE / 2,
                    ssl=ssl,
                )
        stack.push_async_callback(opened.close)
        yield opened


async def _raise_refusal(answer: aiohttp.ClientResponse) -> None:
    if answer.status != 101:
        raise error_of(answer.status, answer.headers, await answer.read(), writes=False)


class _Translated:
    """Translates foreign exceptions into errors of `hostler.errors`."""

    def __init__(self, url: str, *, writes: bool, lose: Callable[[], object] = bool) -> None:
        """`lose` is called when the server could not be reached, or gave no answer."""
        self._url, self._writes, self._lose = url, writes, lose

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, HostlerError) or not isinstance(error, _FOREIGN):
            return
        if isinstance(error, aiohttp.ClientConnectorSSLError) and "WRONG_VERSION_NUMBER" in str(error):
            raise Invalid(f"server {self._url}: the server does not speak https; try http, or another port") from None
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
            raise Invalid(f"server {self._url}: {_certificate_problem(error)}") from None
        if isinstance(error, aiohttp.InvalidURL):
            raise Invalid(f"server {self._url}: {_why(error)}") from None
        self._lose()
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            raise NotSent(
                f"server {self._url}: cannot be reached ({_why(error)}); check that it runs, and that the url is right"
            ) from None
        advice = "read first, or repeat it with the same key" if self._writes else "try again"
        raise Lost(f"server {self._url}: no answer ({_why(error)}); {advice}") from None


_FOREIGN = (aiohttp.ClientError, TimeoutError, OSError)


def _checked_token(token: str | None) -> str | None:
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise Invalid("token: must be one line without spaces, exactly as it was issued")
    return token


_EXPIRED, _NOT_YET = 10, 9
"""Error codes of OpenSSL: X509_V_ERR."""


def _certificate_problem(error: BaseException) -> str:
    """Describe what is wrong with the server's certificate, and what to do about it."""
    cause: object = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    if not isinstance(cause, SSLCertVerificationError):
        why = getattr(cause, "reason", None) or str(cause) or type(cause).__name__
        return f"no TLS connection ({str(why).replace('_', ' ').lower()}); check its tls_cert, and that it speaks TLS"
    why = cause.verify_message.lower().rstrip(".")
    if cause.verify_code in (_EXPIRED, _NOT_YET):
        return f"its certificate is not trusted ({why}); renew it there, and check that both clocks are right"
    if "mismatch" in why:
        return f"its certificate is not trusted ({why}); use a name that it is issued for, or issue it for this one"
    return f"its certificate is not trusted ({why}); name the file of its CA with --ca, or HOSTLER_CA"


def _why(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and error.os_error.strerror:  # without the text of aiohttp
        number = error.os_error.errno or 0
        return (os.strerror(number) if number > 0 else error.os_error.strerror).lower()
    return str(error) or {"TimeoutError": "timeout"}.get(type(error).__name__, type(error).__name__)


def _seconds(text: str | None) -> float:
    try:
        return 0.0 if text is None else float(text)
    except ValueError:
        return 0.0


def _decode(kind: type[R], body: bytes, *, writes: bool = True) -> R:
    try:
        return kind.decode(body)
    except Invalid as error:
        sort = Uncertain if writes else Invalid
        raise sort(f"server: the answer is not one of Hostler ({error}); check the url") from None
