"""Routes of the control plane itself, of the decision log, and of a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.audit import AuditFilter, page
from hostler.entry.server.events import stream_events
from hostler.entry.server.feed import KINDS
from hostler.entry.server.route import Answer, Asked, Route, routes_of
from hostler.errors import NotFound
from hostler.keys.families import LEADER, REPLICA
from hostler.model.control_api import EventView, LeaderView, ReplicaPage, ReplicaView
from hostler.model.resources.control import ControlApi, SimApi, TraceApi
from hostler.model.resources.operation import Access, Parameter
from hostler.model.sim_api import SimState

if TYPE_CHECKING:
    from hostler.engine.view import View
    from hostler.model.replica import LeaderRecord
    from hostler.sim.simulation import Simulation


POSITION = Parameter(
    "after",
    "Events after this one: an event's id, or the `revision` of a list. `Last-Event-ID` takes precedence.",
    pattern=r"^[0-9]{1,18}(\.[0-9]{1,9})?$",
    example="1041.0",
)


async def _leader(asked: Asked) -> LeaderRecord | None:
    found = await LEADER.get(asked.services.store, n=1)
    return found.value if found is not None and found.value.fence else None


async def leader(asked: Asked) -> Answer:
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
    """Return the audit log; callers who do not belong everywhere see only their projects and accounts."""
    query, services = asked.query, asked.services
    wanted = AuditFilter(
        day=query["day"] or "", who=query["who"] or "", verb=query["verb"] or "", subject=query["subject"] or ""
    )
    found = await page(
        services.store,
        asked.caller,
        services.view,
        wanted,
        limit=asked.limit,
        after=asked.after,
        newest=query["newest"],
        clock=services.clock,
        name=lambda key: _name(services.view, key),
        files=services.audit_files,
    )
    return Answer(found)


def _name(view: View, key: str) -> str:
    """Return the name of a VM that is audited by its id, or the owner of a token, whose digest is secret."""
    vm, token = view.vms.entries.get(key), view.tokens.entries.get(key)
    return vm.value.name if vm is not None else f"of {token.value.user}" if token is not None else ""


async def overview(asked: Asked) -> Answer:
    view = await asked.services.overview.get(asked.caller)
    return Answer(msgspec.structs.replace(view, simulation=asked.services.sim is not None))


async def list_decisions(asked: Asked) -> Answer:
    page = await asked.services.traces.list(
        asked.caller, text=asked.query["object"], limit=asked.limit, after=asked.after
    )
    return Answer(page)


async def why(asked: Asked) -> Answer:
    org, project = asked.query["org"], asked.query["project"]
    found = await asked.services.traces.why(
        asked.caller, asked.query["object"] or "", org=org, project=project, limit=asked.limit
    )
    return Answer(found)


_LEADER, _REPLICAS, _AUDIT, _OVERVIEW = routes_of(
    ControlApi, leader=leader, replicas=replicas, audit=audit, overview=overview
)
_EVENTS = Route(
    method="GET",
    path="/v1/events",
    name="control.events",
    summary="Changes as Server-Sent Events; resumable with Last-Event-ID",
    handler=stream_events,
    access=Access.LOGGED_IN,
    answer=EventView,
    media="text/event-stream",
    query=(
        POSITION,
        Parameter("org", "Only machines of this org; labs are of `labs`."),
        Parameter("project", "Only machines of this project, or labs of this user; requires `org`."),
        Parameter(
            "kinds",
            f"Only these kinds: {', '.join(KINDS)}.",
            pattern=rf"^({'|'.join(KINDS)})(,({'|'.join(KINDS)}))*$",
            example="vm,handle",
        ),
        Parameter("beat", "Seconds between two keepalives.", "integer", minimum=1, maximum=60),
    ),
)
ROUTES: tuple[Route, ...] = (
    *(_LEADER, _REPLICAS, _AUDIT, _EVENTS, _OVERVIEW),
    *routes_of(TraceApi, list=list_decisions, why=why),
)


ANSWER_WITHIN = 20.0
"""Real seconds after which a step in progress is answered."""


def _simulation(asked: Asked) -> Simulation:
    found = asked.services.sim
    if found is None:
        raise NotFound("sim: not a simulation; hostler sim serve starts one")
    return found


async def show(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).view())


async def set_mode(asked: Asked) -> Answer:
    await _simulation(asked).change(asked.body)
    return Answer(await _simulation(asked).view())


async def step(asked: Asked) -> Answer:
    """Advance time; 202: the step is still in progress."""
    view = await _simulation(asked).step(asked.body, within=ANSWER_WITHIN)
    return Answer(view, status=200 if view.done else 202)


async def save(asked: Asked) -> Answer:
    simulation = _simulation(asked)
    file = await simulation.save()
    return Answer(SimState(file=file.decode()))


async def kinds(asked: Asked) -> Answer:
    return Answer(_simulation(asked).kinds())


async def inject(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).inject(asked.body))


async def lift(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).lift(asked.parts["fault"]))


async def command(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).command(asked.body))


async def proposals(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).proposals())


async def repair(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).repair(asked.parts["proposal"]))


async def auto_repair(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).auto_repair(asked.body))


async def log(asked: Asked) -> Answer:
    after = int(asked.query["after"] or 0)
    return Answer(await _simulation(asked).log(after=after, limit=asked.limit, last=asked.query["last"]))


SIM_ROUTES = routes_of(
    SimApi,
    get=show,
    mode=set_mode,
    step=step,
    state=save,
    kinds=kinds,
    inject=inject,
    lift=lift,
    command=command,
    proposals=proposals,
    auto_repair=auto_repair,
    repair=repair,
    log=log,
)
