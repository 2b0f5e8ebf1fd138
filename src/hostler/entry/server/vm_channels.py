"""Channels of a machine as WebSockets: its serial console, its SSH server, and a shell.

The client presents a token in a header, or a one-time ticket in the URL. Either way the connection ends when that
token, or the token that the ticket was issued for, becomes invalid or loses the right.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from hostler.engine.tickets import worthless
from hostler.entry.server.authentication import check_origin, digest_shown
from hostler.entry.server.body import Disconnected
from hostler.entry.server.concurrency_limits import place_for
from hostler.entry.server.problem import INVALID, Refusal
from hostler.entry.server.route import Answer, Route, check_access, routes_of, write_answer
from hostler.entry.server.websocket import GOING_AWAY, NO_LONGER, WebSocketInput, join_streams, send, tell
from hostler.entry.terminal import protocol
from hostler.entry.terminal.machine import LabRoute, shell_in
from hostler.entry.terminal.session import RATE, SIZE, first
from hostler.errors import Forbidden, HostlerError, Unavailable
from hostler.model.resources.machines import TerminalApi, VmChannelApi
from hostler.model.resources.operation import Parameter
from hostler.model.vm_api import TerminalKey, VmLog
from hostler.ports.machines import ChannelKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.request import Caller
    from hostler.entry.server.route import Asked, Handler, Raw
    from hostler.entry.terminal.machine import Shell
    from hostler.model.vm_api import VmView


LOOK_EVERY = 1.0
"""Seconds between two checks of the token."""
ONE = "/v1/orgs/{org}/projects/{project}/vms/{vm}"
LOG_WITHIN = 15.0
"""Seconds for an agent to answer with a log."""
TICKET = Parameter("ticket", "In place of a token, for browsers: valid once, within 30 s (`POST …/tickets`).")


def _channel_handler(kind: ChannelKind) -> Handler:
    async def opened(asked: Asked) -> Answer | None:
        """Serve the channel until one side ends it; refuse a plain GET."""
        check_origin(asked.raw.headers)
        vm = await machine_of(asked)
        if asked.raw.scope["type"] != "websocket":
            raise Refusal(INVALID, f"{kind}: only WebSocket (version 13) is supported; request an upgrade to websocket")
        if vm.node is None:
            raise Unavailable(f"{kind} of {vm.name}: not placed on a node yet; wait until it is")
        with place_for(asked, kind):
            if asked.raw.ticket is not None:
                await asked.services.tickets.use(asked.raw.ticket, asked.caller)
            async with asked.services.peers.channel(vm.node, vm.id, kind) as channel:
                await asked.services.vms.tell_opened(asked.request, vm, kind)
                await asked.raw.send({"type": "websocket.accept"})
                await join_streams(asked.raw, channel, over(asked))
        return None

    return opened


async def _read_log(asked: Asked) -> Answer:
    """Return the last output of the serial port."""
    vm = await machine_of(asked)
    if vm.node is None:  # it was never on a node, so it has no output
        return Answer(VmLog(text=""))
    tail: int = asked.query["tail"]
    said = b""
    try:
        async with asked.services.peers.channel(
            vm.node, vm.id, ChannelKind.LOG
        ) as channel:  # has a time limit of its own
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


async def _issue_ticket(asked: Asked) -> Answer:
    parts, kind = asked.parts, asked.body.door
    vm = await asked.services.vms.get(asked.caller, parts["org"], parts["project"], parts["vm"])
    path = f"/v1/orgs/{quote(vm.org, safe='')}/projects/{quote(vm.project, safe='')}/vms/{quote(vm.id, safe='')}"
    return write_answer(
        await asked.services.tickets.issue(asked.request, vm, kind, digest_shown(asked.raw), f"{path}/{kind}")
    )


def _channel_route(kind: ChannelKind, summary: str) -> Route:
    return Route(
        method="GET",
        path=f"{ONE}/{kind}",
        name=f"vm.{kind}",
        summary=summary,
        handler=_channel_handler(kind),
        access="modify_workloads",
        status=101,
        errors=(400,),
        query=(TICKET,),
        channel=kind,
        about="A plain GET is refused with 400; with 503 while the machine has no node, or its node is unreachable.",
    )


VM_CHANNEL_ROUTES: tuple[Route, ...] = (
    *routes_of(VmChannelApi, ticket=_issue_ticket, log=_read_log),
    _channel_route(ChannelKind.CONSOLE, "The serial console, as a WebSocket of binary messages"),
    _channel_route(ChannelKind.SSH, "A connection to the SSH server inside, as a WebSocket of binary messages"),
)


SHELL = "shell"
"""Used in place of a machine's channel."""


async def _open_shell(asked: Asked) -> Answer | None:
    """Serve the shell until one side ends it; refuse a plain GET."""
    check_origin(asked.raw.headers)
    vm = await machine_of(asked)
    if asked.raw.scope["type"] != "websocket":
        raise Refusal(INVALID, "shell: only WebSocket (version 13) is supported; request an upgrade to websocket")
    with place_for(asked, "shell"):
        if asked.raw.ticket is not None:
            await asked.services.tickets.use(asked.raw.ticket, asked.caller)
        await send(asked.raw, "accept")  # accepted before the login: a browser gets no reason for a refused handshake
        try:
            hearing = WebSocketInput(asked.raw)
            code = await first(_serve_shell(asked, vm, hearing), hearing.until_gone(), over(asked))
        except HostlerError as error:
            await tell(asked.raw, str(error))
            code = protocol.FAILED
        if code is not None:
            await send(asked.raw, "close", code=code)
    return None


async def _serve_shell(asked: Asked, vm: VmView, hearing: WebSocketInput) -> int | None:
    """Log in and copy data. Return the close code."""
    way = _way(vm)
    channel = asked.services.peers.channel(way.node, way.vm, ChannelKind.SSH)
    try:
        async with shell_in(channel, way, await asked.terminals.key(), SIZE) as shell:
            await asked.services.vms.tell_opened(asked.request, vm, SHELL)
            await send(asked.raw, "send", text=protocol.connected_message(shell.id))
            return await first(_out(asked.raw, shell), hearing.passed_to(partial(_pass_input, shell)))
    except Forbidden:
        raise Forbidden(
            f"the machine {vm.name}: it refuses the login of {way.user} with this server's key; create it with a shell"
            " in"
            " the page, or add the key of GET /v1/terminal-key to its SSH keys and restart it"
        ) from None


def _way(vm: VmView) -> LabRoute:
    if vm.node is None or vm.access is None:
        raise Unavailable(f"the machine {vm.name}: no SSH access yet; wait until it runs and is available")
    return LabRoute(vm.id, vm.node, vm.access.user, vm.access.host_keys)


async def _out(raw: Raw, shell: Shell) -> int | None:
    """Send the output at the pace of the client until the shell ends.

    After the client disconnects nothing is sent, but its last input is still delivered.
    """
    while text := await shell.read():
        with suppress(Disconnected):  # `until_gone` ends it
            await send(raw, "send", text=protocol.output(text))
        await asyncio.sleep(len(text) / RATE)
    status = await shell.exit_status()
    said = "the connection to the machine was lost" if status is None else f"the shell has ended (exit status {status})"
    await send(raw, "send", text=protocol.info(said))
    return protocol.NORMAL if status is not None else protocol.GOING_AWAY


async def _pass_input(shell: Shell, said: protocol.Said) -> None:
    if isinstance(said, protocol.Resize):
        shell.resize(said.cols, said.rows)
    else:
        await shell.write(said.data)


async def _key(asked: Asked) -> Answer:
    return Answer(TerminalKey(key=await asked.terminals.public_key()))


SHELL_ROUTES: tuple[Route, ...] = (
    *routes_of(TerminalApi, key=_key),
    Route(
        method="GET",
        path=f"{ONE}/shell",
        name="vm.shell",
        summary="A shell in a machine, as a WebSocket of JSON texts",
        handler=_open_shell,
        access="modify_workloads",
        status=101,
        errors=(400,),
        query=(TICKET,),
        channel=SHELL,
        about="A plain GET is refused with 400. For machines that accept the key of /v1/terminal-key. The messages are"
        " in docs/terminal.md.",
    ),
)
