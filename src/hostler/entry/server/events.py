"""Server-Sent Events: one stream per client, resumable.

    id: 1041.0
    data: {"type":"put","kind":"vm",…}

A block with an id and no data only moves the position from which a disconnected client resumes. `event: reset` means
that history was compacted, or that the store was restored to an older state: the client lists again, and gets
everything after the revision that the event names.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.entry.server.authentication import caller_of
from hostler.entry.server.concurrency_limits import place_for
from hostler.entry.server.feed import KINDS, Numbering, event_id, item_of, position_of, revision_now, start_of
from hostler.entry.server.logs import logger
from hostler.errors import Closed, Compacted, HostlerError, Invalid, Missed

if TYPE_CHECKING:
    from hostler.engine.request import Caller
    from hostler.entry.server.feed import Item, Position
    from hostler.entry.server.route import Answer, Asked

BATCH = 200
"""Most events per write."""
LOOK_EVERY = 1.0
"""Longest time in seconds between two checks of the token."""
STARTED_WITHIN = 5.0
"""Longest time in seconds that a client waits for the first read of the store, after the server has started."""
SEND_WITHIN = 60.0
"""Seconds for a client to read what was sent."""


async def stream_events(asked: Asked) -> Answer | None:
    """Stream events until the client disconnects, the token becomes invalid, or the server closes."""
    with place_for(asked, "events"):
        await asked.feed.wait_until_started(STARTED_WITHIN)
        await _follow(asked, Stream(asked))
    return None


async def _follow(asked: Asked, stream: Stream) -> None:
    feed = asked.feed
    feed.listen(stream.wake)
    listening = asyncio.create_task(stream.listen(), name="events: listening")
    try:
        await stream.run()
    except Exception as error:
        if not stream.begun:
            raise
        logger(part="http").error("event stream failed", id=asked.raw.id, exc_info=error)
    finally:
        feed.leave(stream.wake)
        stream.leave_history()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


class Stream:
    """The events of one client."""

    def __init__(self, asked: Asked) -> None:
        self._asked, self._feed, self._raw = asked, asked.feed, asked.raw
        self._services = asked.services
        self._caller: Caller = asked.caller
        self._org, self._project = asked.query["org"], asked.query["project"]
        if self._project is not None and self._org is None:
            raise Invalid("query project: requires org; add org")
        self._kinds = _kinds(asked.query["kinds"])
        last = asked.raw.headers.get(b"last-event-id")
        given = last.decode("latin-1") if last is not None else asked.query["after"]
        self._position = position_of(given) if given else self._feed.head
        self._turned_back = self._feed.turned_back
        self._told = self._position
        self._next_beat = 0.0
        self._beat_every: float = asked.query["beat"] or asked.plan.heartbeat
        self.wake = asyncio.Event()
        self.begun = False
        """Whether the answer has begun, so that it can no longer be an error."""
        self._gone = False
        self._history: tuple[asyncio.Task[None], asyncio.Queue[tuple[Position, Item | None] | HostlerError]] | None = (
            None
        )

    async def listen(self) -> None:
        """Wait until the client disconnects."""
        while (await self._raw.receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self.wake.set()

    async def run(self) -> None:
        """Send events until the stream ends."""
        await self._begin()
        with suppress(TimeoutError):
            while not self._gone:
                self.wake.clear()
                reason = self._end_message()
                if reason is not None:
                    await self._send(b": " + reason + b"\n\n")
                    break
                if self._turned_back != self._feed.turned_back:
                    await self._reset()
                if not await self._step():
                    await self._beat()
                    await self._wait()
        with suppress(TimeoutError):
            await self._send(b"", more=False)

    def leave_history(self) -> None:
        """Stop reading the store's history."""
        if self._history is not None:
            self._history[0].cancel()
            self._history = None

    # Internal

    async def _begin(self) -> None:
        ahead = self._position[0] > self._feed.head[0]
        # A position in the future comes from a store that was restored to an older state, or this replica lags behind.
        reset = ahead and self._position[0] > await revision_now(self._feed.store)
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
            (b"x-content-type-options", b"nosniff"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"x-request-id", self._raw.id.encode()),
        ]
        self.begun = True
        await self._raw.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(b"retry: 1000\nid: %b\n\n" % event_id(self._position).encode())
        if reset:
            await self._reset()

    def _end_message(self) -> bytes | None:
        if self._feed.closing:
            return b"ended: the server is closing"
        try:
            self._caller = caller_of(self._services, self._raw.token, self._asked.source)
        except HostlerError:
            return b"ended: the token no longer counts"
        return None

    async def _step(self) -> bool:
        """Send the next events. Return False if there are none yet."""
        before = self._position
        if self._feed.covers(before):
            self.leave_history()
            found, self._position = self._feed.since(before, BATCH)
        else:
            found = await self._from_history()
        wanted = [item.text for item in found if self._wants(item)]
        if wanted:
            self._told = self._position
            await self._send(b"".join(wanted))
        return self._position != before

    async def _from_history(self) -> list[Item]:
        """Return the next events from the store's history; empty if they have not arrived yet."""
        if self._history is None:
            queue: asyncio.Queue[tuple[Position, Item | None] | HostlerError] = asyncio.Queue(BATCH)
            task = asyncio.create_task(self._read_history(self._position, queue), name="events: history")
            self._history = task, queue
        found: list[Item] = []
        queue = self._history[1]
        while not queue.empty() and not self._feed.covers(self._position):
            got = queue.get_nowait()
            if isinstance(got, HostlerError):
                await self._history_ended(got)
                break
            self._position = got[0]
            if got[1] is not None:
                found.append(got[1])
        return found

    async def _read_history(
        self, after: Position, queue: asyncio.Queue[tuple[Position, Item | None] | HostlerError]
    ) -> None:
        numbering = Numbering()
        try:
            async with self._feed.store.watch("", start_revision=start_of(after)) as watch:
                async for event in watch:
                    position = numbering.next(event)
                    if position > after:
                        await queue.put((position, item_of(event, position)))
                        self.wake.set()
        except HostlerError as error:
            await queue.put(error)
            self.wake.set()

    async def _history_ended(self, error: HostlerError) -> None:
        self.leave_history()
        if isinstance(error, Compacted):
            await self._reset()
        elif isinstance(error, Closed):
            self._gone = True
        elif not isinstance(error, Missed):
            await asyncio.sleep(LOOK_EVERY)

    async def _reset(self) -> None:
        """Tell the client that events are lost: it lists again, and gets everything after this position."""
        self.leave_history()
        self._turned_back = self._feed.turned_back
        self._position = self._told = self._feed.head
        place = event_id(self._position)
        await self._send(b'event: reset\nid: %b\ndata: {"revision":%d}\n\n' % (place.encode(), self._position[0]))

    def _wants(self, item: Item) -> bool:
        if self._kinds is not None and item.kind not in self._kinds:
            return False
        if item.org is None or item.project is None:
            return True
        if self._org is not None and (item.org != self._org or self._project not in (None, item.project)):
            return False
        return self._caller.sees(item.org, item.project)

    async def _beat(self) -> None:
        """Send a keepalive with the position to resume from, even if no event matched the client's filters."""
        now = asyncio.get_running_loop().time()
        if now < self._next_beat:
            return
        if self._next_beat:
            move = b"" if self._told == self._position else b"id: %b\n" % event_id(self._position).encode()
            self._told = self._position
            await self._send(b": alive\n" + move + b"\n")
        self._next_beat = now + self._beat_every

    async def _wait(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(LOOK_EVERY, self._beat_every)):
                await self.wake.wait()

    async def _send(self, data: bytes, *, more: bool = True) -> None:
        """Send data. TimeoutError: the client does not read."""
        async with asyncio.timeout(SEND_WITHIN):
            await self._raw.send({"type": "http.response.body", "body": data, "more_body": more})


def _kinds(text: str | None) -> frozenset[str] | None:
    if text is None:
        return None
    kinds = frozenset(text.split(","))
    if not kinds <= frozenset(KINDS):
        raise Invalid(f"query kinds = {text[:80]!r}: unknown; use {', '.join(sorted(KINDS))}, with commas between")
    return kinds
