"""The routes about the control plane itself: who leads, which replicas live, what was written by whom, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server.events import streamed
from hostler.entry.server.route import AFTER, LIMIT, Access, Answer, Asked, Parameter, Route
from hostler.errors import Invalid
from hostler.keys.access import AUDIT
from hostler.keys.replica import LEADER, REPLICA
from hostler.model.api import AuditPage, AuditView, EventView, LeaderView, ReplicaPage, ReplicaView

if TYPE_CHECKING:
    from hostler.model.replica import LeaderRecord

EVENTS = "/v1/events"
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
    """What was written, oldest first."""
    day = asked.query["day"]
    prefix = AUDIT.prefix() if day is None else AUDIT.prefix(day=day)
    after = None
    if asked.after is not None:
        first, slash, entry = asked.after.partition("/")
        if not slash:
            raise Invalid("query after: it is no `after` of an audit page; take it from the last page")
        after = AUDIT.fill(day=first, write=entry)
    page = await asked.services.store.range(prefix, after=after, limit=asked.limit)
    found = [AUDIT.entry(kv) for kv in page.items]
    items = tuple(
        AuditView(
            who=entry.value.who,
            verb=entry.value.verb,
            subject=entry.value.subject,
            before=entry.value.before,
            after=entry.create_revision,
            at=entry.value.at,
            source=entry.value.source,
        )
        for entry in found
    )
    last = f"{found[-1].parts['day']}/{found[-1].parts['write']}" if page.more and found else None
    return Answer(AuditPage(items=items, after=last))


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
            Parameter("org", "Only machines of this org."),
            Parameter("project", "Only machines of this project; needs `org`."),
            Parameter(
                "kinds",
                "Only these kinds: vm, handle, node, alive, leader.",
                pattern=r"^(vm|handle|node|alive|leader)(,(vm|handle|node|alive|leader))*$",
                example="vm,handle",
            ),
        ),
    ),
)
