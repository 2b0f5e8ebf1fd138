"""Doors of a machine as WebSockets, messages of bytes both ways: its serial port, and the SSH server inside it.

Who comes with a token in a header goes in; so does who comes with a ticket in the URL, once. Either way it lasts only
while the token counts that was shown, or that the ticket was issued for, and has the right.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from hostler.engine.tickets import worthless
from hostler.entry.server.answer import written
from hostler.entry.server.authentication import check_origin, digest_shown
from hostler.entry.server.problem import INVALID, Refusal
from hostler.entry.server.route import Parameter, Route, check_access
from hostler.entry.server.stream import GOING_AWAY, NO_LONGER, joined
from hostler.errors import HostlerError, Unavailable
from hostler.model.api import TicketRequest, TicketView
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from hostler.entry.server.route import Answer, Asked, Handler
    from hostler.model.api import VmView

LOOK_EVERY = 1.0
"""Seconds between two looks at the token."""
ONE = "/v1/orgs/{org}/projects/{project}/vms/{vm}"
TICKET = Parameter("ticket", "In place of a token, for browsers: counts once, within 30 s (`POST …/tickets`).")


def _opened(door: Door) -> Handler:
    async def opened(asked: Asked) -> Answer | None:
        """The door, until one side ends it; a plain GET is told that it needs a WebSocket."""
        check_origin(asked.raw.headers)
        vm = await _machine(asked)
        if asked.raw.scope["type"] != "websocket":
            raise Refusal(INVALID, f"{door}: it speaks WebSocket (version 13) only; ask for an upgrade to websocket")
        if asked.feed.streams >= asked.plan.max_streams or asked.feed.closing:
            raise Unavailable(f"{door}: no more are taken now; try again later")
        if vm.node is None:
            raise Unavailable(f"{door} of {vm.name}: no node has it yet; wait until one has")
        asked.feed.streams += 1
        try:
            if asked.raw.ticket is not None:
                await asked.services.tickets.use(asked.raw.ticket)
            async with asked.services.peers.channel(vm.node, vm.id, door) as channel:
                await asked.raw.send({"type": "websocket.accept"})
                await joined(asked.raw, channel, _over(asked))
        finally:
            asked.feed.streams -= 1
        return None

    return opened


async def _machine(asked: Asked) -> VmView:
    """The machine, which is the ticket's if there is one."""
    parts = asked.parts
    vm = await asked.services.vms.get(asked.caller, parts["org"], parts["project"], parts["vm"])
    shown = asked.raw.ticket
    if shown is not None and (shown.value.org, shown.value.project, shown.value.vm) != (vm.org, vm.project, vm.id):
        raise worthless()
    return vm


async def _over(asked: Asked) -> int:
    """Until the server closes, or the token no longer counts, or lost the right: the code that says so."""
    digest = digest_shown(asked.raw)
    while not asked.feed.closing:
        await asyncio.sleep(LOOK_EVERY)
        try:
            caller = asked.services.users.holder(digest, asked.source)
            check_access(asked.route, caller, asked.parts)
        except HostlerError:
            return NO_LONGER
    return GOING_AWAY


async def _issued(asked: Asked) -> Answer:
    """A ticket for one door of the machine."""
    parts, door = asked.parts, Door(asked.body.door)
    vm = await asked.services.vms.get(asked.caller, parts["org"], parts["project"], parts["vm"])
    path = f"/v1/orgs/{quote(vm.org, safe='')}/projects/{quote(vm.project, safe='')}/vms/{quote(vm.id, safe='')}"
    return written(
        await asked.services.tickets.issue(asked.request, vm, door, digest_shown(asked.raw), f"{path}/{door}")
    )


def _door(door: Door, summary: str) -> Route:
    return Route(
        method="GET",
        path=f"{ONE}/{door}",
        name=f"vm.{door}",
        summary=summary,
        handler=_opened(door),
        access="modify_workloads",
        status=101,
        errors=(400,),
        query=(TICKET,),
        door=door,
        about="A plain GET is refused with 400; with 503 while the machine has no node, or its node cannot be reached.",
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path=f"{ONE}/tickets",
        name="vm.ticket",
        summary="A ticket that opens one door of a machine, once, within 30 s",
        handler=_issued,
        access="modify_workloads",
        status=201,
        body=TicketRequest,
        answer=TicketView,
        idempotent=False,
        about="What it opens closes when the token ends with which it was asked for.",
    ),
    _door(Door.CONSOLE, "Its serial port, as a WebSocket of binary messages"),
    _door(Door.SSH, "A connection to the SSH server inside, as a WebSocket of binary messages"),
)
