"""A shell in a machine as a WebSocket: the messages of a lab's terminal (`entry.terminal.protocol`).

The server logs in by SSH with the key of its terminals, where the machine lets that in: who made it decides, and the
audit says who opened one. It lasts as long as the connection, which lasts while the token counts and has the right, as
at the doors.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hostler.entry.server.authentication import check_origin
from hostler.entry.server.body import Disconnected
from hostler.entry.server.problem import INVALID, Refusal
from hostler.entry.server.route import Access, Answer, Route
from hostler.entry.server.stream_quota import place_for
from hostler.entry.server.vm_websockets import ONE, TICKET, machine_of, over
from hostler.entry.server.websocket_input import Hearing, send, tell
from hostler.entry.terminal import protocol
from hostler.entry.terminal.lab_status import Way
from hostler.entry.terminal.session import RATE, SIZE, first
from hostler.entry.terminal.ssh import shell_in
from hostler.errors import Forbidden, HostlerError, Unavailable
from hostler.model.api import TerminalKey
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from hostler.entry.server.route import Asked, Raw
    from hostler.entry.terminal.ssh import Shell
    from hostler.model.api import VmView

SHELL = "shell"
"""In place of a machine's door."""


async def _opened(asked: Asked) -> Answer | None:
    """The shell, until one side ends it; a plain GET is told that it needs a WebSocket."""
    check_origin(asked.raw.headers)
    vm = await machine_of(asked)
    if asked.raw.scope["type"] != "websocket":
        raise Refusal(INVALID, "shell: it speaks WebSocket (version 13) only; ask for an upgrade to websocket")
    with place_for(asked, "shell"):
        if asked.raw.ticket is not None:
            await asked.services.tickets.use(asked.raw.ticket, asked.caller)
        await send(asked.raw, "accept")  # a browser is told nothing of a handshake that was refused
        try:
            hearing = Hearing(asked.raw)
            code = await first(_served(asked, vm, hearing), hearing.until_gone(), over(asked))
        except HostlerError as error:
            await tell(asked.raw, str(error))
            code = protocol.FAILED
        if code is not None:
            await send(asked.raw, "close", code=code)
    return None


async def _served(asked: Asked, vm: VmView, hearing: Hearing) -> int | None:
    """Log in, and be there: the code to close with."""
    way = _way(vm)
    channel = asked.services.peers.channel(way.node, way.vm, Door.SSH)
    try:
        async with shell_in(channel, way, await asked.terminals.key(), SIZE) as shell:
            await asked.services.vms.tell_opened(asked.request, vm, SHELL)
            await send(asked.raw, "send", text=protocol.connected(shell.id))
            return await first(_out(asked.raw, shell), hearing.passed_to(partial(_typed, shell)))
    except Forbidden:
        raise Forbidden(
            f"the machine {vm.name}: it does not let {way.user} in with this server's key; create it with a shell in"
            " the page, or add the key of GET /v1/terminal-key to its SSH keys and start it again"
        ) from None


def _way(vm: VmView) -> Way:
    if vm.node is None or vm.access is None:
        raise Unavailable(f"the machine {vm.name}: there is nothing to log into; wait until it runs and is available")
    return Way(vm.id, vm.node, vm.access.user, vm.access.host_keys)


async def _out(raw: Raw, shell: Shell) -> int | None:
    """What it says, at the pace of who reads it, until it ends. Who goes hears no more; what they typed goes in yet."""
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
    """What a machine has to let in."""
    return Answer(TerminalKey(key=await asked.terminals.public_key()))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/terminal-key",
        name="terminal.key",
        summary="The public SSH key with which the server logs in where somebody opens a shell",
        handler=_key,
        access=Access.LOGGED_IN,
        answer=TerminalKey,
    ),
    Route(
        method="GET",
        path=f"{ONE}/shell",
        name="vm.shell",
        summary="A shell in it, as a WebSocket of JSON texts",
        handler=_opened,
        access="modify_workloads",
        status=101,
        errors=(400,),
        query=(TICKET,),
        door=SHELL,
        about="A plain GET is refused with 400. For machines that let the key of /v1/terminal-key in. The messages are"
        " in docs/terminal.md.",
    ),
)
