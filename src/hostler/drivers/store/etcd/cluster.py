"""Chooses a member, repeats calls where that is safe, and reports lost answers.

One member is used until it fails; then another one, so that a dead, suspended or partitioned member costs at most the
call that detected it. A write is sent once: it goes to another member only if it certainly did nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc.aio import Metadata

from hostler.drivers.store.etcd import codec
from hostler.drivers.store.etcd import rpc_pb2 as pb
from hostler.drivers.store.etcd.codec import AUTHENTICATE, STATUS, Kind, Method
from hostler.drivers.store.etcd.errors import ADVICE, Fate, Fullness, fate, refusal, words_of
from hostler.errors import Closed, Forbidden, HostlerError, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.drivers.store.etcd.auth import Access

Q = TypeVar("Q")
R = TypeVar("R")

_READY = grpc.ChannelConnectivity.READY
_FAILED = grpc.ChannelConnectivity.TRANSIENT_FAILURE
# A member that has lost its cluster answers at once, without doing anything, instead of holding the request.
_LEADER = Metadata(("hasleader", "true"))
_MISTRUST = 5.0
"""Seconds for which a failed member is used only if there is no other."""
_WHY_WITHIN = 0.3
"""Seconds to find out why no member can be reached, after the deadline."""
_HEAD_START = 0.1
"""Seconds that one member has to connect before the next one is tried as well."""
_RENEWALS = 3
"""Tokens to fetch for one call before giving up."""


class CompactedRevision(Exception):
    """The requested revision is compacted. Leaves this package as Compacted, once its number is known."""


class LeaseExists(Exception):
    """The lease was granted before: an earlier attempt of the same grant succeeded."""


class Endpoint:
    """One member of the cluster."""

    def __init__(self, target: str, access: Access) -> None:
        self.target = target
        self.channel = access.channel(target)
        self.stubs: list[Any] = codec.stubs(self.channel)
        self.mistrusted_until = 0.0

    def state(self) -> grpc.ChannelConnectivity:
        """Return the state of the connection; starts to connect if there is none."""
        return self.channel.get_state(try_to_connect=True)


class Cluster:
    """The members of one etcd cluster, as one object that can be called."""

    def __init__(self, targets: Sequence[str], access: Access, timeout: float, quota: int | None = None) -> None:
        self.name = f"etcd {','.join(targets)}"
        self.timeout = timeout
        self.targets, self.access = tuple(targets), access
        self._endpoints: list[Endpoint] = []
        self._current: Endpoint | None = None
        self._metadata: Metadata | None = None
        self._token_lock = asyncio.Lock()
        self.fullness = Fullness(quota)
        self.on_mistrust: list[Callable[[Endpoint], None]] = []
        # A member that does not answer reads must leave time to try another.
        self._slice = timeout / 2 if len(targets) > 1 else timeout

    def open(self) -> None:
        """Create the channels; nothing is sent yet."""
        self.access.check()
        self._endpoints = [Endpoint(target, self.access) for target in self.targets]
        self._metadata = _LEADER if self.access.user is None else None
        self._token_lock = asyncio.Lock()

    def shut(self) -> list[Endpoint]:
        """Refuse further calls; the caller closes the returned endpoints."""
        endpoints, self._endpoints, self._current = self._endpoints, [], None
        return endpoints

    @property
    def is_open(self) -> bool:
        return bool(self._endpoints)

    def check_open(self) -> None:
        """Raise Closed unless it is open."""
        if not self._endpoints:
            raise Closed("store: not open; use it inside `async with hostler.open_store(url) as store`")

    # Calling

    async def call(self, method: Method[Q, R], request: Q) -> R:
        """Return the answer, or raise as the port says; CompactedRevision, LeaseExists."""
        endpoint, metadata, error = self._current, self._metadata, None
        now = asyncio.get_running_loop().time()
        deadline, full = now + self.timeout, self.fullness.stands(now)
        if endpoint is not None and metadata is not None and endpoint.channel.get_state() is _READY:
            timeout = self._slice if method.kind is Kind.READ else self.timeout
            try:
                answer: R = await endpoint.stubs[method.index](request, timeout=timeout, metadata=metadata)
            except grpc.aio.AioRpcError as caught:
                error = caught.with_traceback(None)  # the traceback holds the call, and the call its connection
            except asyncio.CancelledError:
                if self._is_cancelled():
                    raise
            else:
                if full and method.grows:
                    self.fullness.clear()
                return answer
            if error is None:  # raised out here: an error raised in the handler would hold the call and its connection
                raise _closed_error(method)
        repeated: R = await _Attempt(self, method, request, deadline, full=full).run(endpoint, metadata, error)
        return repeated

    async def connect(self, deadline: float) -> Endpoint:
        """Return a connected member, trusted ones first. Unavailable: none until the deadline."""
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), 0.001
        while True:
            self.check_open()
            now = loop.time()
            found = self._choose(now, now - began)
            if found is not None:
                self._current = found
                return found
            if now >= deadline:
                why, advice = await self._why()
                raise Unavailable(f"{self.name}: no member can be reached{why}; {advice or 'try again later'}")
            await asyncio.sleep(min(pause, deadline - now))
            pause = min(0.05, pause * 2)

    def mistrust(self, endpoint: Endpoint) -> None:
        """Prefer other members for the next `_MISTRUST` seconds."""
        endpoint.mistrusted_until = asyncio.get_running_loop().time() + _MISTRUST
        if endpoint is self._current:
            self._current = None
        if len(self._endpoints) > 1:
            for tell in self.on_mistrust:
                tell(endpoint)

    async def metadata(self, deadline: float) -> Metadata:
        """Return the metadata of every call; fetches a token if one is needed. Forbidden: login refused."""
        if self._metadata is None:
            await self.renew_token(None, deadline)
        assert self._metadata is not None  # noqa: S101
        return self._metadata

    async def renew_token(self, stale: Metadata | None, deadline: float) -> None:
        """Replace the token in `stale`, unless another call has done so."""
        try:
            async with asyncio.timeout_at(deadline), self._token_lock:
                if self._metadata is stale:
                    self._metadata = await self._authenticate(deadline)
        except TimeoutError:
            raise Unavailable(f"{self.name}: no answer to the log-in of {self.access.user!r} in time") from None

    async def _authenticate(self, deadline: float) -> Metadata:
        if self.access.user is None:
            raise Forbidden(f"{self.name}: the server requires a user; give user and password in the store's URL")
        request = pb.AuthenticateRequest(name=self.access.user, password=self.access.password())
        try:
            answer = await _Attempt(self, AUTHENTICATE, request, deadline).run(None, _LEADER, None)
        except _NoUsers:
            return _LEADER
        return Metadata(("hasleader", "true"), ("token", answer.token))

    async def own_metadata(self, within: float) -> Metadata | None:
        """Return the metadata of a request to one member, which need not reach the others; None: there is none."""
        if self.access.user is None:
            return None
        metadata = await self.metadata(asyncio.get_running_loop().time() + within)
        return Metadata(*(item for item in metadata if item[0] == "token"))

    def endpoint(self, target: str) -> Endpoint | None:
        """Return the member at that address, if the URL names it."""
        return next((endpoint for endpoint in self._endpoints if endpoint.target == target), None)

    def _choose(self, now: float, waited: float) -> Endpoint | None:
        """Return a connected member, or None while one may still connect.

        Members are connected one after the other, each with a small head start.
        """
        trusted = [endpoint for endpoint in self._endpoints if endpoint.mistrusted_until <= now]
        for endpoint in trusted:
            if endpoint.channel.get_state() is _READY:
                return endpoint
        connecting = 0
        for endpoint in trusted:
            connecting += endpoint.state() is not _FAILED
            if connecting * _HEAD_START > waited:
                return None
        if connecting:
            return None
        others = [endpoint for endpoint in self._endpoints if endpoint not in trusted and endpoint.state() is _READY]
        return min(others, key=lambda endpoint: endpoint.mistrusted_until, default=None)

    async def _why(self) -> tuple[str, str]:
        """Return why the first member's connection fails, if known, and what to do; empty: wait."""
        endpoint = self._endpoints[0]
        if endpoint.channel.get_state() is not _FAILED:
            return "", ""
        problem = await asyncio.to_thread(self.access.connection_problem, endpoint.target, _WHY_WITHIN)
        if problem is not None:
            return f" ({problem.what})", problem.advice
        try:
            await endpoint.stubs[STATUS.index](pb.StatusRequest(), timeout=0.05)
        except grpc.aio.AioRpcError as error:
            return f" ({words_of(error)})", ""
        return "", ""

    def _is_cancelled(self) -> bool:
        """Return whether the caller is cancelled. Closing a channel cancels its calls too, which is different."""
        task = asyncio.current_task()
        return bool(self._endpoints) or (task is not None and task.cancelling() > 0)


def _closed_error(method: Method[Any, Any], *, sent: bool = True) -> HostlerError:
    if sent and method.kind is Kind.WRITE:
        return Uncertain(f"etcd {method.verb}: the store was closed before the answer came; read before you act")
    return Closed("store: closed while this call ran")


class _NoUsers(Exception):
    """The server has authentication disabled."""


class _Attempt:
    """One call that did not succeed at once."""

    def __init__(
        self, cluster: Cluster, method: Method[Any, Any], request: Any, deadline: float, *, full: bool = False
    ) -> None:
        """`full`: the database was known to be full when the request was last sent."""
        self._cluster, self._method, self._request, self._deadline = cluster, method, request, deadline
        self._sent, self._full = False, full
        self._renewals = 0
        self._backoff = Backoff(0.01, 0.5)

    async def run(
        self,
        endpoint: Endpoint | None,
        metadata: Metadata | None,
        error: grpc.aio.AioRpcError | None,
    ) -> Any:
        """Continue after `error` until there is an answer, a refusal, or no time left."""
        cluster, loop = self._cluster, asyncio.get_running_loop()
        while True:
            if error is not None and endpoint is not None:
                await self._consider(error, endpoint, metadata)
                if loop.time() >= self._deadline:
                    raise self._out_of_time(words_of(error))
            try:
                endpoint = await cluster.connect(self._deadline)
                if self._method is not AUTHENTICATE:
                    metadata = await cluster.metadata(self._deadline)
            except Unavailable as unavailable:
                if self._sent:
                    raise self._out_of_time(str(unavailable)) from None
                raise
            left = max(0.001, self._deadline - loop.time())
            timeout = left if self._method.kind is Kind.WRITE else min(left, max(cluster._slice, 0.1))
            self._full = cluster.fullness.stands(loop.time())
            try:
                answer = await endpoint.stubs[self._method.index](self._request, timeout=timeout, metadata=metadata)
            except grpc.aio.AioRpcError as caught:
                error = caught.with_traceback(None)
            except asyncio.CancelledError:
                if cluster._is_cancelled():
                    raise
                error = None
            else:
                if self._full and self._method.grows:
                    cluster.fullness.clear()
                return answer
            if error is None:
                raise _closed_error(self._method)

    async def _consider(self, error: grpc.aio.AioRpcError, endpoint: Endpoint, metadata: Metadata | None) -> None:
        """Return if the call may be repeated; otherwise raise its outcome."""
        cluster = self._cluster
        what = fate(error)
        if not cluster.is_open:
            raise _closed_error(self._method, sent=what is not Fate.NOT_SENT)
        if what is Fate.TOKEN and self._renewals < _RENEWALS:
            self._renewals += 1
            await cluster.renew_token(metadata, self._deadline)
        elif what is Fate.NOT_SENT:
            cluster.mistrust(endpoint)
            await self._pause()
        elif what is Fate.UNKNOWN:
            cluster.mistrust(endpoint)
            self._sent = self._method.kind is not Kind.READ
            if self._method.kind is Kind.WRITE:
                raise self._out_of_time(words_of(error))
            await self._pause()
        elif what is Fate.FULL:
            await cluster.fullness.look(endpoint, asyncio.get_running_loop().time())
            raise self._no_space(f"etcd {self._method.verb}")
        else:
            raise self._end(what, error)

    def _end(self, what: Fate, error: grpc.aio.AioRpcError) -> Exception:
        subject = f"etcd {self._method.verb}"
        if what is Fate.COMPACTED:
            return CompactedRevision()
        if what is Fate.EXISTS:
            return LeaseExists()
        if what is Fate.NO_AUTH:
            return _NoUsers()
        if what is Fate.REFUSED:
            return refusal(subject, error)
        return Unavailable(f"{subject}: {words_of(error)}; try again later")

    def _no_space(self, subject: str) -> HostlerError:
        """Return the error for NOSPACE.

        The write that crosses the quota is executed; once the alarm is active, none is.
        """
        said = f"{subject}: {self._cluster.fullness.said}"
        if self._full or self._method.kind is not Kind.WRITE:
            return Unavailable(f"{said}, nothing was written; {ADVICE}")
        return Uncertain(f"{said}; {ADVICE}", answered=True)

    def _out_of_time(self, words: str) -> HostlerError:
        subject = f"etcd {self._method.verb}"
        if self._sent:
            return Uncertain(f"{subject}: the answer was lost ({words}); read before you act")
        return Unavailable(f"{subject}: no answer in time ({words}); try again later")

    async def _pause(self) -> None:
        left = self._deadline - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, min(self._backoff.next(), left)))
