"""Channels of a machine as WebSockets of binary messages: its serial console, and the SSH server inside it.

The client presents a token in a header, or a one-time ticket in the URL. Either way the connection ends when that
token, or the token that the ticket was issued for, becomes invalid or loses the right.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from hostler.engine.tickets import worthless
from hostler.entry.server.authentication import check_origin, digest_shown
from hostler.entry.server.problem import INVALID, Refusal
from hostler.entry.server.route import Answer, Route, check_access, routes_of, written
from hostler.entry.server.stream import GOING_AWAY, NO_LONGER, joined
from hostler.entry.server.stream_quota import place_for
from hostler.errors import HostlerError, Unavailable
from hostler.model.resources.machines import VmChannelApi
from hostler.model.resources.operation import Parameter
from hostler.model.vm_api import VmLog
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.request import Caller
    from hostler.entry.server.route import Asked, Handler
    from hostler.model.vm_api import VmView

LOOK_EVERY = 1.0
"""Seconds between two checks of the token."""
ONE = "/v1/orgs/{org}/projects/{project}/vms/{vm}"
LOG_WITHIN = 15.0
"""Seconds for an agent to answer with a log."""
TICKET = Parameter("ticket", "In place of a token, for browsers: valid once, within 30 s (`POST …/tickets`).")


def _opened(door: Door) -> Handler:
    async def opened(asked: Asked) -> Answer | None:
        """Serve the channel until one side ends it; refuse a plain GET."""
        check_origin(asked.raw.headers)
        vm = await machine_of(asked)
        if asked.raw.scope["type"] != "websocket":
            raise Refusal(INVALID, f"{door}: only WebSocket (version 13) is supported; request an upgrade to websocket")
        if vm.node is None:
            raise Unavailable(f"{door} of {vm.name}: not placed on a node yet; wait until it is")
        with place_for(asked, door):
            if asked.raw.ticket is not None:
                await asked.services.tickets.use(asked.raw.ticket, asked.caller)
            async with asked.services.peers.channel(vm.node, vm.id, door) as channel:
                await asked.services.vms.tell_opened(asked.request, vm, door)
                await asked.raw.send({"type": "websocket.accept"})
                await joined(asked.raw, channel, over(asked))
        return None

    return opened


async def _logged(asked: Asked) -> Answer:
    """Return the last output of the serial port."""
    vm = await machine_of(asked)
    if vm.node is None:  # it was never on a node, so it has no output
        return Answer(VmLog(text=""))
    tail: int = asked.query["tail"]
    said = b""
    try:
        async with asked.services.peers.channel(vm.node, vm.id, Door.LOG) as channel:  # has a time limit of its own
            async with asyncio.timeout(LOG_WITHIN):
                while piece := await channel.read():
                    said = (said + piece)[-tail:]
    except TimeoutError:
        raise Unavailable(f"log of {vm.name}: its node {vm.node} did not answer in time; try again") from None
    return Answer(VmLog(text=said.decode(errors="replace")))


async def machine_of(asked: Asked) -> VmView:
    """Return the machine; it must be the one of the ticket, if there is a ticket."""
    parts = asked.parts
    vm = await asked.services.vms.get(asked.caller, parts["org"], parts["project"], parts["vm"])
    shown = asked.raw.ticket
    if shown is not None and (shown.value.org, shown.value.project, shown.value.vm) != (vm.org, vm.project, vm.id):
        raise worthless()
    return vm


async def over(asked: Asked, check: Callable[[Caller], object] = lambda _: None) -> int:
    """Wait until the server closes, or the token becomes invalid or loses the right. Return the close code.

    `check` raises an error if the caller may not continue, for rules that are not part of the route.
    """
    digest = digest_shown(asked.raw)
    while not asked.feed.closing:
        await asyncio.sleep(LOOK_EVERY)
        try:
            caller = asked.services.users.holder(digest, asked.source)
            check_access(asked.route, caller, asked.parts)
            check(caller)
        except HostlerError:
            return NO_LONGER
    return GOING_AWAY


async def _issued(asked: Asked) -> Answer:
    parts, door = asked.parts, asked.body.door
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
        about="A plain GET is refused with 400; with 503 while the machine has no node, or its node is unreachable.",
    )


ROUTES: tuple[Route, ...] = (
    *routes_of(VmChannelApi, ticket=_issued, log=_logged),
    _door(Door.CONSOLE, "The serial console, as a WebSocket of binary messages"),
    _door(Door.SSH, "A connection to the SSH server inside, as a WebSocket of binary messages"),
)
