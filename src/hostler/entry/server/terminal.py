"""A lab's terminal as a WebSocket of JSON texts (`entry.terminal.protocol`).

The client presents a token in a header, or a one-time ticket in the URL. Either way the connection ends when that
token, or the token that the ticket was issued for, becomes invalid or loses the right.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from hostler.engine.labs.service import check_use
from hostler.engine.tickets import TERMINAL, worthless
from hostler.entry.server.authentication import check_origin, digest_shown
from hostler.entry.server.body import Disconnected
from hostler.entry.server.concurrency_limits import place_for
from hostler.entry.server.problem import INVALID, Refusal
from hostler.entry.server.route import Route, routes_of, write_answer
from hostler.entry.server.vm_channels import TICKET, over
from hostler.entry.server.websocket import WebSocketInput, send
from hostler.entry.terminal import protocol
from hostler.entry.terminal.session import first
from hostler.errors import Invalid, NotFound
from hostler.model.lab import ORG, lab_project
from hostler.model.resources.machines import LAB_USED, LabTerminalApi
from hostler.model.resources.operation import Access, Parameter

if TYPE_CHECKING:
    from hostler.engine.request import Caller
    from hostler.entry.server.route import Answer, Asked, Raw
    from hostler.entry.terminal.session import Screen

ONE = "/v1/labs/{user}"
PATH = f"{ONE}/terminal"
REPLAY = Parameter(
    "replay",
    "Output shown on reconnect: `missed`, or `all` that is kept, for an empty screen.",
    pattern="^(missed|all)$",
    default="missed",
)


async def _open_terminal(asked: Asked) -> Answer | None:
    """Serve the terminal until one side ends it; refuse a plain GET."""
    check_origin(asked.raw.headers)
    user = _user(asked.caller, asked.parts)
    shown = asked.raw.ticket
    if shown is not None and (shown.value.org, shown.value.project) != (ORG, lab_project(user)):
        raise worthless()
    if asked.query["replay"] not in ("missed", "all"):
        raise Invalid("replay: must be missed or all")
    if asked.raw.scope["type"] != "websocket":
        raise Refusal(INVALID, "terminal: only WebSocket (version 13) is supported; request an upgrade to websocket")
    # A lab has one terminal. It counts for the lab, because a teacher may open many.
    with place_for(asked, "terminal", of=f"{ORG}/{user}"):
        if shown is not None:
            await asked.services.tickets.use(shown, asked.caller)
        await _serve(asked, user)
    return None


async def _serve(asked: Asked, user: str) -> None:
    raw = asked.raw
    try:
        screen = await asked.terminals.enter(
            user,
            lambda: asked.services.labs.tell_opened(asked.request, user),
            everything=asked.query["replay"] == "all",
        )
    except NotFound as error:  # accepted first: a browser gets no reason for a refused handshake
        await send(raw, "accept")
        await _farewell(raw, protocol.NO_LAB, protocol.error(str(error)))
        return
    try:
        await send(raw, "accept")
        hearing = WebSocketInput(raw)
        code = await first(
            _out(raw, screen),
            hearing.passed_to(screen.write),
            hearing.until_gone(),
            over(asked, lambda caller: _user(caller, asked.parts)),
            _take_message(screen),
        )
    finally:
        screen.terminal.leave(screen)
    if code == protocol.TAKEN_OVER:
        await _farewell(raw, code, protocol.info("the terminal was opened elsewhere and continues there"))
    elif code is not None:
        await _farewell(raw, code)


async def _out(raw: Raw, screen: Screen) -> int | None:
    """Send the terminal's messages at the pace of the client until it ends. Return the close code."""
    while (message := await screen.read()) is not None:
        try:
            await send(raw, "send", text=message)
        # another `read` would acknowledge the message; the last input is still delivered (`until_gone`)
        except Disconnected:
            await asyncio.Event().wait()
    return screen.terminal.code


async def _take_message(screen: Screen) -> int | None:
    await screen.taken.wait()
    return protocol.TAKEN_OVER


async def _farewell(raw: Raw, code: int, message: str | None = None) -> None:
    if message is not None:
        await send(raw, "send", text=message)
    await send(raw, "close", code=code)


def _user(caller: Caller, parts: dict[str, str]) -> str:
    """Return the user of the terminal.

    NotFound: the caller does not see the user's labs. Forbidden: a right is missing.
    """
    user = parts["user"]
    check_use(caller, user)
    return user


async def _issue_ticket(asked: Asked) -> Answer:
    user = _user(asked.caller, asked.parts)
    url = f"/v1/labs/{quote(user, safe='')}/terminal"
    return write_answer(await asked.services.tickets.issue_terminal(asked.request, user, digest_shown(asked.raw), url))


ROUTES: tuple[Route, ...] = (
    *routes_of(LabTerminalApi, ticket=_issue_ticket),
    Route(
        method="GET",
        path=PATH,
        name="lab.terminal",
        summary="A shell in the user's lab, as a WebSocket of JSON texts",
        handler=_open_terminal,
        access=Access.LOGGED_IN,
        status=101,
        errors=(400, 403),
        query=(TICKET, REPLAY),
        channel=TERMINAL,
        about=f"{LAB_USED} A plain GET is refused with 400. A newer connection takes over; a shell waits five minutes"
        " for the user to reconnect. The messages are in docs/terminal.md.",
    ),
)
