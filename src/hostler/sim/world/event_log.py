"""Log of a world, in order. The same seed gives the same bytes.

Entries come from the world itself, and from the events of its store: in order of their revisions, with the causes that
the decisions name. Listeners also get the events: each once, in order, at the virtual instant at which it happened.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from hostler.errors import Closed, Lagged
from hostler.keys.families import (
    ALIVE,
    BLUEPRINT,
    COMMAND,
    DEPLOYMENT,
    ENDPOINT,
    HANDLE,
    LEADER,
    MEMBER,
    SLICE,
    TARGET,
    TRACE,
)
from hostler.keys.lab import LAB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.ports.store import Event, KeyValue
    from hostler.sim.world.world import World

    Telling: TypeAlias = Callable[[str, Event], None]


class LogEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One log entry."""

    number: int
    """Counts from 1."""
    at: float
    """Virtual seconds, to the microsecond."""
    kind: str
    """`hardware`, `fault`, `lifted`, `started`, `killed`, `paused`, `woken`, `leader`, `node`, `silent`, `returned`,
    `placed`, `taken`, `machine`, `workload`, `lab`, `decision`, `step`."""
    component: str
    """The affected component: `r1/pdu1`, `replica-1`, `node r1-b3`, `vm acme/shop/web-1`, …"""
    text: str
    cause: str = ""
    """The id of a fault, the component whose change led to the entry, or the id of a trace; empty: unknown."""
    id: str = ""
    """The id of a fault or trace, which other entries name as their cause."""


class Log:
    """A log in memory; `tell` is called with each new entry."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        tell: Callable[[LogEntry], None] = lambda _: None,
        kept: bool = True,
    ) -> None:
        """With `kept` False, entries are passed to `tell` and counted, but not stored."""
        self._now, self._tell, self._kept = now, tell, kept
        self._count = 0
        self.entries: list[LogEntry] = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LogEntry]:
        return iter(self.entries)

    def add(
        self,
        kind: str,
        component: str,
        text: str,
        cause: str = "",
        id: str = "",  # noqa: A002 - the name of the field
    ) -> LogEntry:
        """Append an entry with the current time."""
        self._count += 1
        entry = LogEntry(self._count, round(self._now(), 6), kind, component, text, cause, id)
        if self._kept:
            self.entries.append(entry)
        self._tell(entry)
        return entry

    def lines(self) -> bytes:
        """Return all entries as JSON lines."""
        return b"".join(msgspec.json.encode(entry) + b"\n" for entry in self.entries)


def read_log(lines: bytes) -> list[LogEntry]:
    """Parse the output of `Log.lines`."""
    return [msgspec.json.decode(line, type=LogEntry) for line in lines.splitlines() if line.strip()]


R = TypeVar("R", bound=msgspec.Struct)
_TRACES = TRACE.prefix()


class _Member(msgspec.Struct):
    lifecycle: str = ""
    off: msgspec.Raw = msgspec.Raw(b"null")


class _Handle(msgspec.Struct):
    node: str = ""
    state: str = ""
    detail: str = ""


class _Command(msgspec.Struct):
    org: str = ""
    project: str = ""
    name: str = ""
    deleting: bool = False
    departing: msgspec.Raw = msgspec.Raw(b"null")


class _Leader(msgspec.Struct):
    address: str = ""
    fence: int = 0


class _News(msgspec.Struct):
    number: int = 0
    event: str = ""
    reason: str = ""


class _Lab(msgspec.Struct):
    news: tuple[_News, ...] = ()
    messages: tuple[_News, ...] = ()


class _Target(msgspec.Struct):
    node: str | None = None


class _Trace(msgspec.Struct):
    id: str = ""
    cause: str = ""
    actor: str = ""
    what: str = ""
    subject: str = ""
    why: str = ""


class _Instance(msgspec.Struct):
    state: str = ""
    ready: bool = True
    why: str = ""


class _Slice(msgspec.Struct):
    state: str = ""
    instances: dict[int, _Instance] | None = None

    def each(self) -> dict[int, _Instance]:
        if self.instances is not None:
            return self.instances
        return {1: _Instance(self.state)} if self.state else {}


class _Endpoint(msgspec.Struct, rename={"node_id": "node-id"}):
    node_id: str = ""


class _Deployment(msgspec.Struct):
    artifact: str = ""
    phase: str = ""
    stage: int = 0
    weights: dict[str, int] = {}
    why: str = ""


class EventLog:
    """A watch on the whole store."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._listeners: dict[Callable[[Event], None], None] = {}
        self._known: dict[str, None] = {}  # nodes that registered before
        self._families: tuple[tuple[str, Telling], ...] = (
            (HANDLE.prefix(), self._handle),
            (COMMAND.prefix(), self._command),
            (ALIVE.prefix(), self._alive),
            (MEMBER.prefix(), self._member),
            (LAB.prefix(), self._lab),
            (LEADER.prefix(), self._leader),
            (TARGET.prefix(), self._target),
            (SLICE.prefix(), self._slice),
            (ENDPOINT.prefix(), self._endpoint),
            (DEPLOYMENT.prefix(), self._deployment),
            (BLUEPRINT.prefix(), self._blueprint),
        )
        self.revision = 0
        """The revision of the last event."""
        self._together: list[Event] = []  # events of one transaction
        self._cause = ""  # the decision that was made in the transaction

    def listen(self, heard: Callable[[Event], None]) -> Callable[[], None]:
        """Call `heard` with every event of the store from now on; return a function that ends this."""
        self._listeners[heard] = None
        return lambda: self._listeners.pop(heard, None)

    async def run(self) -> None:
        """Watch the store until cancelled."""
        start = 1
        while True:
            try:
                async with self._world.store.watch("", start_revision=start) as events:
                    async for event in events:
                        self._take_event(event)
            except Lagged as error:
                start = error.revision
            except Closed:
                return
            await asyncio.sleep(0)

    def _take_event(self, event: Event) -> None:
        revision = event.kv.mod_revision
        if revision != self.revision:
            self._tell()
        self.revision = revision
        for heard in tuple(self._listeners):
            heard(event)
        if self._world.plan.log:
            if not self._together:
                self._world.loop.call_soon(self._tell)  # all events of one transaction are read without a pause
            self._together.append(event)

    def _tell(self) -> None:
        """Log what one transaction did, its decision first."""
        events, self._together = self._together, []
        self._cause = ""
        for event in events:
            if event.type == "put" and event.kv.key.startswith(_TRACES):
                self._trace(event)
        for event in events:
            key = event.kv.key
            for prefix, tell in self._families:
                if key.startswith(prefix):
                    tell(key, event)
                    break

    def _add(self, kind: str, component: str, text: str, cause: str = "") -> None:
        self._world.log.add(kind, component, text, cause or self._cause)

    def _hardware(self, node: str) -> str:
        """Return the fault or component that caused the failure of a node, if its blade caused it."""
        host = self._world.blades.get(node)
        return "" if host is None or not host.trouble else host.trouble

    # Families

    def _alive(self, key: str, event: Event) -> None:
        node = ALIVE.parse(key)["node"]
        if event.type == "delete":
            self._add("silent", f"node {node}", "missed its heartbeats", self._hardware(node))
        elif event.previous is None:
            self._add("returned" if node in self._known else "joined", f"node {node}", "sends heartbeats")
            self._known[node] = None

    def _member(self, key: str, event: Event) -> None:
        node = MEMBER.parse(key)["node"]
        if event.type == "delete":
            self._add("node", f"node {node}", "removed")
            return
        before = _read(_Member, event.previous)
        after = _read(_Member, event.kv)
        if before.lifecycle != after.lifecycle:
            self._add("node", f"node {node}", after.lifecycle)
        if bytes(before.off) == b"null" != bytes(after.off):
            self._add("node", f"node {node}", "known to be off")

    def _command(self, key: str, event: Event) -> None:
        parts = COMMAND.match(key)
        if parts is None:
            return
        node, vm = parts["node"], f"vm {parts['vm']}"
        if event.type == "delete":
            self._add("taken", vm, f"removed from node {node}")
            return
        before, after = _read(_Command, event.previous), _read(_Command, event.kv)
        if event.previous is None:
            self._add("placed", vm, f"node {node} is assigned {after.org}/{after.project}/{after.name}")
        elif after.deleting and not before.deleting:
            self._add("placed", vm, f"node {node} must destroy it")
        elif bytes(after.departing) != b"null" == bytes(before.departing):
            self._add("placed", vm, f"node {node} must migrate it")

    def _handle(self, key: str, event: Event) -> None:
        vm = f"vm {key.rpartition('/')[2]}"
        if event.type == "delete":
            self._add("machine", vm, "gone")
            return
        before, after = _read(_Handle, event.previous), _read(_Handle, event.kv)
        if (before.node, before.state) != (after.node, after.state):
            where = f" on {after.node}" if after.node else ""
            self._add("machine", vm, f"{after.state}{where}" + (f": {after.detail}" if after.detail else ""))

    def _target(self, key: str, event: Event) -> None:
        parts = TARGET.match(key)
        if parts is None:
            return
        instance = f"workload {parts['workload']}/{parts['instance']}"
        if event.type == "delete":
            self._add("workload", instance, "gone")
            return
        before, after = _read(_Target, event.previous), _read(_Target, event.kv)
        if event.previous is None or before.node != after.node:
            self._add("workload", instance, "waits for a node" if after.node is None else f"on {after.node}")

    def _slice(self, key: str, event: Event) -> None:
        parts = SLICE.match(key)
        if parts is None:
            return
        before = _read(_Slice, event.previous).each()
        after = {} if event.type == "delete" else _read(_Slice, event.kv).each()
        node = parts["node"]
        for number in dict.fromkeys((*before, *after)):
            old, new = before.get(number), after.get(number)
            component = f"slice {parts['artifact']}#{number}"
            if new is None:
                self._add("slice", component, f"gone from {node}")
            elif old is None or (old.state, old.ready) != (new.state, new.ready):
                why = f": {new.why}" if new.why and (new.state == "FAILED" or not new.ready) else ""
                self._add("slice", component, f"{new.state}{'' if new.ready else ', not ready'} on {node}{why}")

    def _endpoint(self, key: str, event: Event) -> None:
        parts = ENDPOINT.match(key)
        if parts is None:
            return
        component = f"endpoint {parts['artifact']}#{parts['instance']} {parts['method']}"
        before, after = _read(_Endpoint, event.previous).node_id, _read(_Endpoint, event.kv).node_id
        if event.type == "delete":
            self._add("endpoint", component, f"withdrawn from {before}")
        elif before != after:
            self._add("endpoint", component, f"shown on {after}")

    def _deployment(self, key: str, event: Event) -> None:
        parts = DEPLOYMENT.match(key)
        if parts is None:
            return
        component = f"slice {parts['base']}"
        if event.type == "delete":
            self._add("deploys", component, "removed")
            return
        before, after = _read(_Deployment, event.previous), _read(_Deployment, event.kv)
        if (before.artifact, before.phase, before.stage, before.weights) != (
            *(after.artifact, after.phase, after.stage, after.weights),
        ):
            weights = ", ".join(f"{artifact} {weight} %" for artifact, weight in after.weights.items())
            told = f"{after.artifact} {after.phase}" + (f" ({weights})" if weights else "")
            self._add("deploys", component, told + (f": {after.why}" if after.why else ""))

    def _blueprint(self, key: str, event: Event) -> None:
        parts = BLUEPRINT.match(key)
        if parts is not None:
            done = "deleted" if event.type == "delete" else "applied" if event.previous is None else "changed"
            self._add("blueprint", f"blueprint {parts['blueprint']}", done)

    def _lab(self, key: str, event: Event) -> None:
        user = f"lab of {LAB.parse(key)['user']}"
        if event.type == "delete":
            self._add("lab", user, "removed")
            return
        before, after = _read(_Lab, event.previous), _read(_Lab, event.kv)
        last = max((news.number for news in (*before.news, *before.messages)), default=0)
        for news in (*after.news, *after.messages):  # one write contains one kind only
            if news.number > last:
                self._add("lab", user, news.event + (f": {news.reason}" if news.reason else ""))

    def _leader(self, key: str, event: Event) -> None:
        number = LEADER.parse(key)["n"]
        if event.type == "delete":
            self._add("leader", f"key {number}", "released")
            return
        before, after = _read(_Leader, event.previous), _read(_Leader, event.kv)
        if (before.address, before.fence) != (after.address, after.fence):
            self._add("leader", f"key {number}", f"held by {after.address} with fence {after.fence}")

    def _trace(self, event: Event) -> None:
        trace = _read(_Trace, event.kv)
        text = f"{trace.actor}: {trace.what}: {trace.why}"
        self._world.log.add("decision", trace.subject, text, trace.cause, trace.id)
        self._cause = trace.id


def _read(kind: type[R], found: KeyValue | None) -> R:
    """Decode a record; return an empty one if it is missing or unreadable."""
    if found is None:
        return kind()
    try:
        return msgspec.json.decode(found.value, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return kind()
