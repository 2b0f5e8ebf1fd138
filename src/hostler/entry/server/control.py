"""The routes about the control plane itself: who leads, which replicas live, what was written by whom, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.access.audit import sees
from hostler.entry.server.events import streamed
from hostler.entry.server.route import AFTER, LIMIT, Access, Answer, Asked, Parameter, Route
from hostler.errors import Invalid
from hostler.keys.access import AUDIT
from hostler.keys.replica import LEADER, REPLICA
from hostler.model.api import AuditPage, AuditView, EventView, LeaderView, ReplicaPage, ReplicaView

if TYPE_CHECKING:
    from hostler.keys.entry import Entry
    from hostler.model.access import Audit
    from hostler.model.replica import LeaderRecord

EVENTS = "/v1/events"
LOOKED_AT = 5000
"""Writes of the audit that one request goes through at most, about."""
DAY = Parameter("day", "Only of this day.", pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", example="2026-11-15")
POSITION = Parameter(
    "after",
    "Events after this one: an event's id, or the `revision` of a list. `Last-Event-ID` comes before it.",
    pattern=r"^[0-9]{1,18}(\.[0-9]{1,9})?$",
    example="1041.0",
)


async def _leader(asked: Asked) -> LeaderRecord | None:
    found = await LEADER.get(asked.services.store, n=1)
    return found.value if found is not None and found.value.fence else None


async def leader(asked: Asked) -> Answer:
    """Who leads."""
    record = await _leader(asked)
    return Answer(
        LeaderView(
            address=None if record is None else record.address,
            holder=None if record is None else record.holder,
            fence=0 if record is None else record.fence,
            ready=asked.services.view.healthy() and asked.services.was_read(),
        )
    )


async def replicas(asked: Asked) -> Answer:
    """Those that live."""
    leads = await _leader(asked)
    listing = await REPLICA.list(asked.services.store, strict=False)
    items = [
        ReplicaView(
            address=entry.value.address,
            holder=entry.value.holder,
            leads=leads is not None and leads.holder == entry.value.holder,
            started_at=entry.value.started_at,
        )
        for entry in listing.entries
    ]
    return Answer(ReplicaPage(items=tuple(sorted(items, key=lambda item: (item.started_at, item.holder)))))


async def audit(asked: Asked) -> Answer:
    """What was written, oldest first: to those who do not belong everywhere, only what concerns them."""
    day = asked.query["day"]
    prefix = AUDIT.prefix() if day is None else AUDIT.prefix(day=day)
    after = None
    if asked.after is not None:
        first, slash, write = asked.after.partition("/")
        if not slash:
            raise Invalid("query after: it is no `after` of an audit page; take it from the last page")
        after = AUDIT.fill(day=first, write=write)
    items: list[AuditView] = []
    looked, more = 0, True
    while more and len(items) < asked.limit and looked < LOOKED_AT:
        page = await asked.services.store.range(prefix, after=after, limit=asked.limit)
        for kv in page.items:
            entry, after = AUDIT.entry(kv), kv.key
            if sees(asked.caller, entry, asked.services.view):
                items.append(_written(entry))
            if len(items) == asked.limit:
                break
        looked += len(page.items)
        more = page.more or (bool(page.items) and after != page.items[-1].key)
    last = AUDIT.parse(after) if more and after is not None else None
    return Answer(AuditPage(items=tuple(items), after=f"{last['day']}/{last['write']}" if last else None))


def _written(entry: Entry[Audit]) -> AuditView:
    record = entry.value
    return AuditView(
        who=record.who,
        verb=record.verb,
        subject=record.subject,
        before=record.before,
        after=entry.create_revision,
        at=record.at,
        source=record.source,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/leader",
        name="control.leader",
        summary="Who leads",
        handler=leader,
        access=Access.LOGGED_IN,
        answer=LeaderView,
    ),
    Route(
        method="GET",
        path="/v1/replicas",
        name="control.replicas",
        summary="The replicas that live",
        handler=replicas,
        access=Access.LOGGED_IN,
        answer=ReplicaPage,
    ),
    Route(
        method="GET",
        path="/v1/audit",
        name="control.audit",
        summary="Every write, oldest first: who, what, from which revision to which",
        about="Only what is about your projects and accounts within reach, unless you belong everywhere. A page may"
        " be short, or empty, and not be the last.",
        handler=audit,
        access="manage_accounts",
        answer=AuditPage,
        query=(LIMIT, AFTER, DAY),
        errors=(400,),
    ),
    Route(
        method="GET",
        path=EVENTS,
        name="control.events",
        summary="What changes, as Server-Sent Events; resumable by Last-Event-ID",
        handler=streamed,
        access=Access.LOGGED_IN,
        answer=EventView,
        media="text/event-stream",
        query=(
            POSITION,
            Parameter("org", "Only machines of this org; labs are of `labs`."),
            Parameter("project", "Only machines of this project, or labs of this user; needs `org`."),
            Parameter(
                "kinds",
                "Only these kinds: vm, handle, lab, node, alive, leader.",
                pattern=r"^(vm|handle|lab|node|alive|leader)(,(vm|handle|lab|node|alive|leader))*$",
                example="vm,handle",
            ),
        ),
    ),
)
