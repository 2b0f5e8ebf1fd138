"""Accept TCP connections within limits, so that half-open connections do not exhaust a process.

A connection is *unproven* until its protocol says that the peer has shown a valid credential (`prove`). Unproven
connections have a limit of their own. A new one is always accepted: if there are too many, the oldest one that waits
for its peer is dropped, of the same source address first, then of the address that has most. So peers that send nothing
cannot keep others out. Proven connections share the remaining slots; the last of these (`reserve`) are for peers that
`prove` names as reserved.

A connection asks for a turn before it serves its next request (`take_turn`). While there are many connections, only a
few get one per iteration of the event loop, so that a new connection does not wait until all others were served.

When the process or the system runs out of file descriptors, accepting pauses, and unproven connections are dropped to
free some. asyncio's own accept loop would log and set a timer for each connection of its backlog instead, and starve
the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ipaddress
import resource
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Iterable


@functools.lru_cache(maxsize=4096)
def origin(source: str) -> str:
    """Return the origin of a request for counting: a /64 for IPv6, because one subscriber has a whole /64."""
    try:
        address = ipaddress.ip_address(source.strip("[]"))
    except ValueError:
        return source[:255]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


BACKLOG = 1024
"""Connections that the system queues until they are accepted."""
AT_ONCE = 32
"""Connections that are accepted before the event loop runs other work."""
CALM = 256
"""Up to this many connections, every request starts at once."""
SWEEP_EVERY = 1.0
PAUSE = 0.25
"""Seconds without accepting after file descriptors ran out."""
FREED_AT_ONCE = 64
"""Unproven connections that are dropped when file descriptors run out."""
TELL_EVERY = 60.0
HANDSHAKE_WITHIN = 10.0
"""Seconds for a TLS handshake."""
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PLENTY = 1 << 20


def open_file_limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _PLENTY if soft in (resource.RLIM_INFINITY, -1) else min(soft, _PLENTY)


def listen(host: str, port: int = 0, *, backlog: int = BACKLOG) -> socket.socket:
    """Return a listening socket; port 0 is any free port. OSError: the address is not available."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """Return `host:port` of a listening socket, with the host name that its owner uses."""
    port = listener.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the connections of one listening port."""

    total: int = 8192
    per_source: int = 2048
    """Proven connections from one source address."""
    unproven: int = 2048
    """Part of the total."""
    unproven_per_source: int = 512
    reserve: int = 512
    """Part of the total, for proven peers with reserved slots."""

    def within(self, files: int) -> ConnectionLimits:
        """Return the same limits in the same proportions, with a total of at most `files`."""
        if files >= self.total:
            return self
        return limits_of(max(16, files), min(self.per_source, max(16, files)))


def limits_of(total: int, per_source: int) -> ConnectionLimits:
    """Return limits for that many connections: a quarter for unproven peers, a sixteenth in reserve."""
    unproven = max(4, total // 4)
    return ConnectionLimits(
        total=total,
        per_source=per_source,
        unproven=unproven,
        unproven_per_source=max(4, min(unproven // 4, per_source)),
        reserve=max(1, total // 16),
    )


class InboundConnection(socket.socket):
    """An accepted socket and the state of its peer. It is counted until it is closed."""

    __slots__ = ("_accepting", "_drop", "is_exempt", "is_late", "is_proven", "is_reserved", "is_waiting", "source")

    source: str
    is_exempt: bool
    """Whether it is not counted for its source address."""
    is_proven: bool
    is_reserved: bool
    """Whether its peer has a reserved slot."""
    is_waiting: Callable[[], bool]
    """Whether the connection waits for data from its peer, and may be dropped for another one."""
    is_late: Callable[[float], bool]
    """Called once a second with the time of the event loop: whether the peer took too long."""

    def begin(self, accepting: AcceptLoop, source: str, drop: Callable[[], object], *, exempt: bool) -> None:
        """Count it from now on. `drop` ends it."""
        self._accepting: AcceptLoop | None = accepting
        self._drop = drop
        self.source, self.is_exempt, self.is_proven, self.is_reserved = source, exempt, False, False
        self.is_waiting, self.is_late = _always, _never

    def close(self) -> None:
        """Close the socket and free its slot."""
        super().close()
        accepting, self._accepting = self._accepting, None
        if accepting is not None:
            accepting.forget(self)

    def prove(self, *, reserved: bool = False) -> bool:
        """Give it a slot among proven connections. False: none is free; the protocol says so, and closes it."""
        return self.is_proven or self._accepting is None or self._accepting.promote(self, reserved=reserved)

    def take_turn(self, go_on: Callable[[], object]) -> bool:
        """Call `go_on` in its turn, and return True; False: no need to wait, and `go_on` is not called."""
        return self._accepting is not None and not self.is_reserved and self._accepting.give_turn(go_on)

    def drop(self) -> None:
        """End the connection now."""
        self._drop()

    def dropped_by(self, drop: Callable[[], object]) -> None:
        """Set the function that ends the connection."""
        self._drop = drop


class Counts(msgspec.Struct):
    """Counters of one port."""

    accepted: int = 0
    crowded: int = 0
    """Dropped, or refused a slot, because there were too many."""
    late: int = 0
    """Dropped because the peer took too long."""
    starved: int = 0
    """Pauses because file descriptors ran out."""


class AcceptLoop:
    """Accepts connections at one listening socket, which its owner closes. `protocol` makes a connection's protocol.

    `exempt`: whether a source address is exempt from limits per source, as a proxy is. `tell` is called with one
    sentence at most once a minute, when connections were dropped.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[InboundConnection], asyncio.BaseProtocol],
        limits: ConnectionLimits | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        exempt: Callable[[str], bool] = lambda _: False,
        tell: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._listener, self._protocol, self._tls = listener, protocol, tls
        self.limits = limits or ConnectionLimits()
        self._exempt, self._tell = exempt, tell
        self._loop = asyncio.get_running_loop()
        self._unproven: dict[InboundConnection, None] = {}
        self._proven: dict[InboundConnection, None] = {}
        self._unproven_of: dict[str, dict[InboundConnection, None]] = {}
        self._proven_of: dict[str, dict[InboundConnection, None]] = {}
        self._opening: dict[InboundConnection, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._turns: deque[Callable[[], object]] = deque()
        self.counts = Counts()
        self._told = Counts()
        self._tell_at = 0.0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._unproven) + len(self._proven)

    @property
    def unproven(self) -> Collection[InboundConnection]:
        """Connections whose peers have not shown a credential, oldest first."""
        return self._unproven.keys()

    def start(self) -> None:
        """Start accepting."""
        self._resume()
        self._timers["sweep"] = self._loop.call_later(SWEEP_EVERY, self._sweep)

    def close(self) -> None:
        """Stop accepting. Open connections stay open."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        for timer in self._timers.values():
            timer.cancel()
        for connection in list(self._opening):
            self._end(connection)

    async def wait_closed(self) -> None:
        """Wait until no connection is being opened."""
        if self._opening:
            await asyncio.wait(self._opening.values())

    # For connections

    def forget(self, connection: InboundConnection) -> None:
        """Stop counting a connection whose socket is closed."""
        kind, of = (self._proven, self._proven_of) if connection.is_proven else (self._unproven, self._unproven_of)
        _remove(connection, kind, of)

    def promote(self, connection: InboundConnection, *, reserved: bool) -> bool:
        """Move it to the proven connections. False: no slot is free."""
        limits, source = self.limits, connection.source
        mine = self._proven_of.get(source, {})
        is_counted = not (reserved or connection.is_exempt)
        if is_counted and len(mine) >= limits.per_source and not self._drop_one(mine):
            return self._crowded()
        most = limits.total - limits.unproven - (0 if reserved else limits.reserve)
        if len(self._proven) >= most and not self._drop_one(self._proven):
            return self._crowded()
        _remove(connection, self._unproven, self._unproven_of)
        connection.is_proven, connection.is_reserved = True, reserved
        if connection.is_waiting is _always:  # its protocol does not say when it waits
            connection.is_waiting = _never
        self._proven[connection] = None
        self._proven_of.setdefault(source, {})[connection] = None
        return True

    def give_turn(self, go_on: Callable[[], object]) -> bool:
        """See `InboundConnection.take_turn`."""
        if len(self) <= CALM and not self._turns:
            return False
        if not self._turns:
            self._loop.call_soon(self._go_on)
        self._turns.append(go_on)
        return True

    # Internal

    def _go_on(self) -> None:
        for _ in range(min(AT_ONCE, len(self._turns))):
            self._turns.popleft()()
        if self._turns:
            self._loop.call_soon(self._go_on)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_FILES:
                    self._pause()
                    return
                continue  # the peer is already gone
            with accepted:
                connection = InboundConnection(accepted.family, accepted.type, accepted.proto, accepted.detach())
            connection.setblocking(False)
            self._begin(connection, address[0] if address else "")

    def _begin(self, connection: InboundConnection, address: str) -> None:
        self.counts.accepted += 1
        task = self._loop.create_task(self._open(connection), name="connection: opening")
        self._opening[connection] = task
        task.add_done_callback(lambda _: self._opening.pop(connection, None))

        def drop() -> None:
            task.cancel()
            connection.close()  # the task has not started, so no transport owns the socket

        source = origin(address)
        connection.begin(self, source, drop, exempt=self._exempt(address))
        mine = self._unproven_of.setdefault(source, {})
        many = len(mine) >= self.limits.unproven_per_source and not connection.is_exempt
        full = many and not self._drop_one(mine)
        full = full or (len(self._unproven) >= self.limits.unproven and not self._drop_unproven())
        mine[connection] = self._unproven[connection] = None
        self._unproven_of[source] = mine
        if full:
            self._crowded()
            connection.drop()

    async def _open(self, connection: InboundConnection) -> None:
        try:
            protocol = self._protocol(connection)
        except BaseException:
            connection.close()
            raise
        task = asyncio.current_task()
        if task is not None:
            connection.dropped_by(task.cancel)
        within = None if self._tls is None else HANDSHAKE_WITHIN
        with suppress(OSError, TimeoutError):  # no TLS, or the peer is gone
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=within
            )
            connection.dropped_by(transport.abort)

    def _drop_unproven(self) -> bool:
        """Drop one of the address that has most, else the oldest. False: none waits for its peer."""
        most: dict[InboundConnection, None] = {}
        for mine in self._unproven_of.values():
            if len(mine) > len(most) and not next(iter(mine)).is_exempt:
                most = mine
        return self._drop_one(most) or self._drop_one(self._unproven)

    def _drop_one(self, among: Iterable[InboundConnection]) -> bool:
        """Drop the oldest connection that waits for its peer. False: there is none."""
        found = next((each for each in among if each.is_waiting()), None)
        if found is None:
            return False
        self._crowded()
        self._end(found)
        return True

    def _end(self, connection: InboundConnection) -> None:
        """Drop it. Its slot is free at once; the socket is closed in the next iteration of the event loop."""
        self.forget(connection)
        connection.is_waiting = _never
        connection.drop()

    def _crowded(self) -> bool:
        self.counts.crowded += 1
        return False

    def _pause(self) -> None:
        self.counts.starved += 1
        self._loop.remove_reader(self._listener)
        for _ in range(FREED_AT_ONCE):
            if not self._drop_one(self._unproven):
                break
        self._timers["resume"] = self._loop.call_later(PAUSE, self._resume)

    def _sweep(self) -> None:
        self._timers["sweep"] = self._loop.call_later(SWEEP_EVERY, self._sweep)
        now = self._loop.time()
        for connection in [each for each in (*self._unproven, *self._proven) if each.is_late(now)]:
            self.counts.late += 1
            self._end(connection)
        if now >= self._tell_at:
            self._tell_of_drops(now)

    def _tell_of_drops(self, now: float) -> None:
        counts, told = self.counts, self._told
        crowded, late = counts.crowded - told.crowded, counts.late - told.late
        starved = counts.starved - told.starved
        if not (crowded or late or starved):
            return
        self._tell_at, self._told = now + TELL_EVERY, msgspec.structs.replace(counts)
        without = f"; accepting paused {starved} times, out of file descriptors: raise LimitNOFILE" if starved else ""
        self._tell(
            f"connections: dropped {crowded} because there were too many and {late} that sent nothing in time;"
            f" {len(self)} are open, at most {self.limits.total}{without}"
        )


def _remove(
    connection: InboundConnection, kind: dict[InboundConnection, None], of: dict[str, dict[InboundConnection, None]]
) -> None:
    kind.pop(connection, None)
    mine = of.get(connection.source)
    if mine is not None:
        mine.pop(connection, None)
        if not mine:
            del of[connection.source]


def _always() -> bool:
    return True


def _never(*_: Any) -> bool:
    return False
