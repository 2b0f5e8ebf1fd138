"""A shell in a machine as a WebSocket, with the messages of a lab's terminal (`entry.terminal.protocol`).

The server logs in by SSH with its terminal key, if the machine accepts that key: the creator of the machine decides
that, and the audit log records who opens a shell. The shell ends with the connection, which ends when the token becomes
invalid or loses the right, as for consoles.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hostler.entry.server.authentication import check_origin
from hostler.entry.server.body import Disconnected
from hostler.entry.server.problem import INVALID, Refusal
from hostler.entry.server.route import Answer, Route, routes_of
from hostler.entry.server.stream_quota import place_for
from hostler.entry.server.vm_websockets import ONE, TICKET, machine_of, over
from hostler.entry.server.websocket_input import WebSocketInput, send, tell
from hostler.entry.terminal import protocol
from hostler.entry.terminal.machine import LabRoute, shell_in
from hostler.entry.terminal.session import RATE, SIZE, first
from hostler.errors import Forbidden, HostlerError, Unavailable
from hostler.model.resources.machines import TerminalApi
from hostler.model.vm_api import TerminalKey
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from hostler.entry.server.route import Asked, Raw
    from hostler.entry.terminal.machine import Shell
    from hostler.model.vm_api import VmView

SHELL = "shell"
"""Used in place of a machine's channel."""


async def _opened(asked: Asked) -> Answer | None:
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
            code = await first(_served(asked, vm, hearing), hearing.until_gone(), over(asked))
        except HostlerError as error:
            await tell(asked.raw, str(error))
            code = protocol.FAILED
        if code is not None:
            await send(asked.raw, "close", code=code)
    return None


async def _served(asked: Asked, vm: VmView, hearing: WebSocketInput) -> int | None:
    """Log in and copy data. Return the close code."""
    way = _way(vm)
    channel = asked.services.peers.channel(way.node, way.vm, Door.SSH)
    try:
        async with shell_in(channel, way, await asked.terminals.key(), SIZE) as shell:
            await asked.services.vms.tell_opened(asked.request, vm, SHELL)
            await send(asked.raw, "send", text=protocol.connected(shell.id))
            return await first(_out(asked.raw, shell), hearing.passed_to(partial(_typed, shell)))
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


async def _typed(shell: Shell, said: protocol.Said) -> None:
    if isinstance(said, protocol.Resize):
        shell.resize(said.cols, said.rows)
    else:
        await shell.write(said.data)


async def _key(asked: Asked) -> Answer:
    return Answer(TerminalKey(key=await asked.terminals.public_key()))


ROUTES: tuple[Route, ...] = (
    *routes_of(TerminalApi, key=_key),
    Route(
        method="GET",
        path=f"{ONE}/shell",
        name="vm.shell",
        summary="A shell in a machine, as a WebSocket of JSON texts",
        handler=_opened,
        access="modify_workloads",
        status=101,
        errors=(400,),
        query=(TICKET,),
        door=SHELL,
        about="A plain GET is refused with 400. For machines that accept the key of /v1/terminal-key. The messages are"
        " in docs/terminal.md.",
    ),
)
