"""Changes in the store, numbered, for any number of readers.

One watch of the whole store serves all streams. The latest changes are kept in memory. A reader that is further behind
reads the store's own history, at its own pace, until it has caught up. So a slow reader uses no memory and misses
nothing.

A position is (revision, index): the changes of one transaction share the revision, and the index counts all of them in
the order of the store. So a position means the same to every replica and under every filter.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hostler.engine.deployments import redaction
from hostler.errors import Closed, Compacted, HostlerError, Invalid, Missed, Unavailable, Uncertain
from hostler.keys.families import (
    ALERT,
    ALIVE,
    BLADE,
    BLUEPRINT,
    CLUSTER,
    DEPLOYMENT,
    ENDPOINT,
    HANDLE,
    LEADER,
    MEMBER,
    MORE_PDUS,
    MORE_TORS,
    PDU,
    RACK,
    REGION,
    SLICE,
    TOR,
    VM,
    WORKLOAD,
    ZONE,
)
from hostler.keys.lab import LAB
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import run_together
from hostler.model.access import HIDDEN
from hostler.model.control_api import EventView
from hostler.model.lab import ORG, lab_project
from hostler.model.name import fold
from hostler.model.workload import Workload
from hostler.ports.store import watching

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.keys.cache import Cache
    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.ports.store import Event, KeyValue, Store

Position: TypeAlias = tuple[int, int]
WHOLE = 2**62
"""Index of a position after everything in its revision."""
_PAGE = 1000
LOOK_EVERY = 5.0
"""Seconds between two checks for a restored store: a watch from a future revision receives nothing."""

MIRRORED_WITHIN = 1.0
"""Seconds for which a change is held back until its cache has it."""

FAMILIES: tuple[tuple[str, str, Key[Any]], ...] = tuple(
    (kind, key.prefix(), key)
    for kind, key in (
        *(("vm", VM), ("handle", HANDLE), ("lab", LAB), ("node", MEMBER), ("alive", ALIVE), ("leader", LEADER)),
        *(("blueprint", BLUEPRINT), ("deployment", DEPLOYMENT), ("slice", SLICE), ("endpoint", ENDPOINT)),
        ("alert", ALERT),
        *(("workload", WORKLOAD), ("region", REGION), ("zone", ZONE), ("rack", RACK), ("blade", BLADE)),
        *(("pdu", PDU), ("pdu", MORE_PDUS), ("tor", TOR), ("tor", MORE_TORS)),
    )
)
_DISCREET = ("blueprint", "deployment")
_SHAPED = ("vm", "workload")
_FEEDS = ("pdu", "tor")
_MANY = ("vm", "handle", "lab", "slice", "endpoint")
"""Kinds with up to hundreds of thousands of records. They are not renewed, and their keys name the owner."""
KINDS = tuple(dict.fromkeys(kind for kind, _, _ in FAMILIES))


class Item(msgspec.Struct, frozen=True):
    """A change that may concern a client, encoded for sending."""

    position: Position
    kind: str
    org: str | None
    project: str | None
    """None: it belongs to no project."""
    text: bytes


def event_id(position: Position) -> str:
    """Return the id of an event."""
    revision, index = position
    return str(revision) if index == WHOLE else f"{revision}.{index}"


def position_of(text: str) -> Position:
    """Return the position of an id. Invalid: it is not an id."""
    revision, dot, index = text.partition(".")
    digits = revision if not dot else revision + index
    if not (digits.isascii() and digits.isdigit() and revision and (index or not dot) and len(digits) <= 27):
        raise Invalid(f"position {text[:80]!r}: must be revision or revision.index; send the id of the last event")
    if int(revision) >= 2**62 or (dot and int(index) >= WHOLE):
        raise Invalid(f"position {text[:80]!r}: revision out of range; send the id of the last event")
    return int(revision), int(index) if dot else WHOLE


class Numbering:
    """Assigns each event of a watch its position. It starts with the first event of a revision."""

    def __init__(self) -> None:
        self._last: Position = (0, 0)

    def next(self, event: Event) -> Position:
        """Return the position of the next event."""
        revision = event.kv.mod_revision
        index = self._last[1] + 1 if revision == self._last[0] else 0
        self._last = (revision, index)
        return self._last


def start_of(position: Position) -> int:
    """Return the revision to watch from, so that nothing after `position` is missed and the numbering is right."""
    revision, index = position
    return max(1, revision + 1 if index == WHOLE else revision)


def item_of(event: Event, position: Position) -> Item | None:
    """Return what clients are sent about an event; None: nothing."""
    kind, _, parts = _family(event.kv.key)
    if parts is None or (event.previous is not None and event.previous.value == event.kv.value):
        return None  # a key outside the families, or a renewal that changed nothing
    org, project = _home(event, kind, parts)
    view = EventView(
        type=event.type,
        of=kind,
        subject=_feed_name(event, parts["rack"]) if kind in _FEEDS else "/".join(parts.values()),
        revision=position[0],
        record=_record(event, kind),
    )
    text = b"id: %d.%d\ndata: %b\n\n" % (*position, msgspec.json.encode(view))
    return Item(position, kind, org, project, text)


def _family(key: str) -> tuple[str, Key[Any] | None, dict[str, str] | None]:
    for kind, prefix, family in FAMILIES:
        if key.startswith(prefix) and (parts := family.match(key)) is not None:
            return kind, family, parts
    return "", None, None


def _home(event: Event, kind: str, parts: dict[str, str]) -> tuple[str | None, str | None]:
    """Return org and project whose members may see the event; None: everyone may."""
    if kind == "lab":
        return ORG, lab_project(parts["user"])
    if kind != "workload":
        return parts.get("org"), parts.get("project")
    written = event.kv if event.type == "put" else event.previous
    try:
        return Workload.decode(b"" if written is None else written.value).home
    except HostlerError:
        return "", ""  # the owner is unknown: only callers who belong everywhere see it


def _feed_name(event: Event, rack: str) -> str:
    """Return for example `r1/pdu1`: the record has the name, the key has not."""
    written = event.kv if event.type == "put" else event.previous
    record = None if written is None else _decode_value(written.value)
    return f"{rack}/{fold(str((record or {}).get('name', '')))}".rstrip("/")


def _record(event: Event, kind: str) -> dict[str, Any] | None:
    record = None if event.type == "delete" else _decode_value(event.kv.value)
    if record is None:
        return None
    try:
        if kind in _DISCREET:  # one text for all readers: it may hold only what everyone may see
            record = redaction.plain(record)
        if kind in _SHAPED:
            return _without_user_data(record)
        if kind == "lab":
            return _with_messages(record)
        return _in_short(record) if kind == "slice" else record
    except RecursionError:
        return None


def _decode_value(value: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # written by another program; the change itself is still sent


def _without_user_data(record: dict[str, Any]) -> dict[str, Any]:
    """Hide the user_data of a machine or workload: only those who may change it may read it, by a request."""
    spec = record.get("spec")
    if not isinstance(spec, dict) or not spec.get("user_data"):
        return record
    return record | {"spec": spec | {"user_data": HIDDEN}}


def _with_messages(record: dict[str, Any]) -> dict[str, Any]:
    """Merge the messages to a lab's user into its events, as the API does."""
    rest = {name: value for name, value in record.items() if name != "messages"}
    try:
        both = [*record.get("news", ()), *record.get("messages", ())]
        return rest | {"news": sorted(both, key=lambda one: (one["number"], one["at"]))}
    except (TypeError, KeyError):
        return record  # written by another program; sent unchanged


def _in_short(record: dict[str, Any]) -> dict[str, Any]:
    """Replace the instances of a slice with counts by state: one key may hold hundreds of instances."""
    short: dict[str, Any] = {name: record[name] for name in ("state", "timestamp") if name in record}
    instances = record.get("instances")
    if not isinstance(instances, dict):
        return short
    states: dict[str, int] = {}
    for one in instances.values():
        state = str(one.get("state")) if isinstance(one, dict) else ""
        states[state] = states.get(state, 0) + 1
    return short | {"instances": states}


async def revision_now(store: Store) -> int:
    """Return the store's newest revision; a linearizable read."""
    return (await store.range(CLUSTER.fill(), limit=1, keys_only=True)).revision


class Former:
    """The latest values under some prefixes, updated by events: the previous values of changed keys.

    They are kept here because requesting them with every event costs etcd many times as much as the write itself.
    """

    def __init__(self, prefixes: Sequence[str]) -> None:
        self._prefixes = tuple(dict.fromkeys(prefixes))
        self._values: dict[str, KeyValue] = {}

    async def read(self, store: Store, revision: int) -> None:
        """Read all values as of `revision`. Compacted: that revision is no longer available."""
        found: dict[str, KeyValue] = {}
        for prefix in self._prefixes:
            after: str | None = None
            while True:
                page = await store.range(prefix, after=after, limit=_PAGE, revision=revision)
                found.update((kv.key, kv) for kv in page.items)
                if not page.more:
                    break
                after = page.items[-1].key
        self._values = found

    def completed(self, event: Event) -> Event:
        """Return the event with its previous value, if that is kept here. Call once for each event, in order."""
        key = event.kv.key
        if not key.startswith(self._prefixes):
            return event
        before = self._values.pop(key, None)
        if event.type == "put":
            self._values[key] = event.kv
        return msgspec.structs.replace(event, previous=before)


class Feed:
    """The latest changes. `run` keeps them current until it is cancelled.

    `mirrors` are the caches that requests are answered from. A change is published only after its cache has it, so that
    a client that reads because of an event gets a state at least as new.
    """

    def __init__(self, store: Store, *, clock: Clock, history: int, mirrors: Iterable[Cache[Any]] = ()) -> None:
        self.store = store
        self._mirrors = {mirror.family: mirror for mirror in mirrors}
        self._behind: dict[Key[Any], int] = {}
        """Caches that did not reach this revision in time; changes do not wait for them until they have."""
        self._clock, self._history = clock, history
        self._positions: list[Position] = []
        self._items: list[Item] = []
        self.floor: Position | None = None
        """Every change after this, up to `head`, is in memory. None: not started yet."""
        self._started = asyncio.Event()
        self.head: Position = (0, WHOLE)
        self.turned_back = 0
        """How often the store was restored to an older state: earlier positions are invalid then."""
        self.closing = False
        self.streams = 0
        self.held: Counter[str] = Counter()
        """The number of streams by the account that they count for."""
        self._listeners: set[asyncio.Event] = set()
        self._former = Former([prefix for kind, prefix, _ in FAMILIES if kind not in _MANY])

    def listen(self, wake: asyncio.Event) -> None:
        """Set `wake` on every new change."""
        self._listeners.add(wake)

    def leave(self, wake: asyncio.Event) -> None:
        """Stop setting `wake`."""
        self._listeners.discard(wake)

    async def wait_until_started(self, within: float) -> None:
        """Wait until the store was read. Unavailable: it was not read in time, or the server closes."""
        try:
            async with asyncio.timeout(within):
                await self._started.wait()
        except TimeoutError:
            raise Unavailable("events: the store has not been read yet; try again in a moment") from None
        if self.closing:
            raise Unavailable("events: the server is closing; try again later")

    def close(self) -> None:
        """End every stream."""
        self.closing = True
        self._started.set()
        self._tell()

    def covers(self, position: Position) -> bool:
        """Return whether every change after `position` is in memory."""
        return self.floor is not None and self.floor <= position

    def since(self, position: Position, limit: int) -> tuple[list[Item], Position]:
        """Return changes after `position`, and the position after them. Requires `covers(position)`."""
        first = bisect.bisect_right(self._positions, position)
        found = self._items[first : first + limit]
        if first + limit < len(self._items):
            return found, found[-1].position
        return found, max(self.head, position)

    async def run(self) -> None:
        """Follow the store. Continue after an outage, and start again after the store was restored."""
        backoff = Backoff(0.05, 1.0)
        while True:
            try:
                await self._begin()
                backoff.reset()
                await run_together("feed", {"follow": self._follow(), "look": self._look()})
            except Compacted:
                self._positions, self._items, self.floor = [], [], None
                self._started.clear()
            except Missed:
                continue
            except Closed:
                self.close()
                return
            except HostlerError:
                await self._clock.sleep(backoff.next())

    # Internal

    async def _begin(self) -> None:
        """Start, or start again if the store was restored since the last read."""
        known = self.head[0]
        revision = await revision_now(self.store)
        back = revision < known
        if back or self.floor is None:
            await self._former.read(self.store, revision)
            self.turned_back += back
            self._positions, self._items = [], []
            self.floor = self.head = (revision, WHOLE)
            self._started.set()
            self._tell()

    async def _look(self) -> None:
        """Wait until the store is found at an older state."""
        while True:
            await self._clock.sleep(LOOK_EVERY)
            known = self.head[0]
            with suppress(Unavailable, Uncertain):  # the watch reconnects by itself
                if await revision_now(self.store) < known:
                    return

    async def _follow(self) -> None:
        numbering = Numbering()
        async with watching(self.store, "", start_revision=start_of(self.head), previous=False) as watch:
            async for event in watch:
                position = numbering.next(event)
                if position > self.head:
                    await self._wait_for_cache(event)
                    self._take(self._former.completed(event), position)

    async def _wait_for_cache(self, event: Event) -> None:
        """Wait for a limited time until the cache of this change has it."""
        _, family, _ = _family(event.kv.key)
        mirror = None if family is None else self._mirrors.get(family)
        revision = event.kv.mod_revision
        if family is None or mirror is None or mirror.revision >= revision:
            return
        if mirror.revision < self._behind.get(family, 0):
            return
        try:
            async with asyncio.timeout(MIRRORED_WITHIN):
                await mirror.reached(revision)
        except TimeoutError:
            self._behind[family] = revision

    def _take(self, event: Event, position: Position) -> None:
        self.head = position
        item = item_of(event, position)
        if item is None:
            return
        self._positions.append(position)
        self._items.append(item)
        if len(self._items) > 2 * self._history:
            self.floor = self._positions[self._history - 1]
            del self._positions[: self._history], self._items[: self._history]
        self._tell()

    def _tell(self) -> None:
        for wake in self._listeners:
            wake.set()
