"""A lab's terminal as a WebSocket: JSON texts both ways (`entry.terminal.protocol`).

Who comes with a token in a header goes in; so does who comes with a ticket in the URL, once. Either way it lasts only
while the token counts that was shown, or that the ticket was issued for, and has the right.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import quote

from hostler.engine.tickets import TERMINAL, worthless
from hostler.entry.server import body as incoming
from hostler.entry.server.answer import written
from hostler.entry.server.authentication import check_origin, digest_shown
from hostler.entry.server.doors import LOOK_EVERY, TICKET
from hostler.entry.server.problem import INVALID, Refusal
from hostler.entry.server.route import Parameter, Route, check_access
from hostler.entry.terminal import protocol
from hostler.entry.terminal.session import first
from hostler.errors import HostlerError, Invalid, NotFound, Unavailable
from hostler.keys.lab import check_user
from hostler.model.api import TicketView
from hostler.model.lab import ORG

if TYPE_CHECKING:
    from hostler.engine.request import Caller
    from hostler.entry.server.route import Answer, Asked, Raw
    from hostler.entry.terminal.session import Screen

ONE = "/v1/labs/{user}"
PATH = f"{ONE}/terminal"
MISTAKES = 10
"""Messages that cannot be understood before it is enough."""
REPLAY = Parameter(
    "replay",
    "What who comes back is shown: `missed`, or `all` that is kept, for a screen that is empty.",
    pattern="^(missed|all)$",
    default="missed",
)
TYPED_WITHIN = 30.0
"""Seconds for which a shell may take nothing of what is typed; while we wait we do not hear that the caller goes."""


async def _opened(asked: Asked) -> Answer | None:
    """The terminal, until one side ends it; a plain GET is told that it needs a WebSocket."""
    check_origin(asked.raw.headers)
    user = _user(asked.caller, asked.parts)
    shown = asked.raw.ticket
    if shown is not None and (shown.value.org, shown.value.project) != (ORG, user):
        raise worthless()
    if asked.query["replay"] not in ("missed", "all"):
        raise Invalid("replay: must be missed or all")
    if asked.raw.scope["type"] != "websocket":
        raise Refusal(INVALID, "terminal: it speaks WebSocket (version 13) only; ask for an upgrade to websocket")
    if asked.feed.streams >= asked.plan.max_streams or asked.feed.closing:
        raise Unavailable("terminal: no more are taken now; try again later")
    asked.feed.streams += 1
    try:
        if shown is not None:
            await asked.services.tickets.use(shown)
        await _served(asked, user)
    finally:
        asked.feed.streams -= 1
    return None


async def _served(asked: Asked, user: str) -> None:
    raw = asked.raw
    try:
        screen = await asked.terminals.enter(user, everything=asked.query["replay"] == "all")
    except NotFound as error:  # a browser is told nothing of a handshake that was refused
        await _send(raw, "accept")
        await _farewell(raw, protocol.NO_LAB, protocol.error(str(error)))
        return
    try:
        await _send(raw, "accept")
        code = await first(_out(raw, screen), _in(raw, screen), _over(asked), _taken(screen))
    finally:
        screen.terminal.leave(screen)
    if code == protocol.TAKEN_OVER:
        await _farewell(raw, code, protocol.info("the terminal was opened elsewhere, and goes on there"))
    elif code is not None:
        await _farewell(raw, code)


async def _out(raw: Raw, screen: Screen) -> int | None:
    """What the terminal says, at the pace of who reads it, until it is over: the code that says how."""
    while (message := await screen.read()) is not None:
        await _send(raw, "send", text=message)
    return screen.terminal.code


async def _in(raw: Raw, screen: Screen) -> int | None:
    """What is typed, until the caller goes (None), or talks nonsense."""
    mistakes = 0
    while True:
        message = await raw.receive()
        if message["type"] == "websocket.disconnect":
            return None
        if message["type"] != "websocket.receive":
            continue
        text = message.get("text")
        if text is None:
            await _tell(raw, "message: it is binary; send JSON as text")
            return protocol.NOT_TEXT
        try:
            said = protocol.heard(text)
        except Invalid as error:
            await _tell(raw, str(error))
            mistakes += 1
            if mistakes >= MISTAKES:
                return protocol.NO_LONGER
        else:
            await _typed(raw, screen, said)


async def _over(asked: Asked) -> int | None:
    """Until the server closes, or the token no longer counts, or lost the right: the code that says so."""
    digest = digest_shown(asked.raw)
    while not asked.feed.closing:
        await asyncio.sleep(LOOK_EVERY)
        try:
            caller = asked.services.users.holder(digest, asked.source)
            check_access(asked.route, caller, asked.parts)
            _user(caller, asked.parts)
        except HostlerError:
            return protocol.NO_LONGER
    return protocol.GOING_AWAY


async def _taken(screen: Screen) -> int | None:
    await screen.taken.wait()
    return protocol.TAKEN_OVER


async def _typed(raw: Raw, screen: Screen, said: protocol.Said) -> None:
    try:
        async with asyncio.timeout(TYPED_WITHIN):
            await screen.write(said)
    except TimeoutError:
        await _tell(raw, "input: the shell takes none at present; what was typed is dropped")


async def _tell(raw: Raw, mistake: str) -> None:
    await _send(raw, "send", text=protocol.error(mistake))


async def _farewell(raw: Raw, code: int, message: str | None = None) -> None:
    if message is not None:
        await _send(raw, "send", text=message)
    await _send(raw, "close", code=code)


async def _send(raw: Raw, what: str, **more: str | int) -> None:
    try:
        await raw.send({"type": f"websocket.{what}", **more})
    except (OSError, RuntimeError):  # uvicorn's words for a caller that has gone, or is going
        raise incoming.Disconnected from None


def _user(caller: Caller, parts: dict[str, str]) -> str:
    """Whose terminal it is. NotFound: the caller does not see that user's labs."""
    user = check_user(parts["user"])
    if not caller.sees(ORG, user):
        raise NotFound(f"lab of {user}: there is none such; list what there is")
    return user


async def _issued(asked: Asked) -> Answer:
    """A ticket for the terminal."""
    user = _user(asked.caller, asked.parts)
    url = f"/v1/labs/{quote(user, safe='')}/terminal"
    return written(await asked.services.tickets.issue_terminal(asked.request, user, digest_shown(asked.raw), url))


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path=f"{ONE}/tickets",
        name="lab.ticket",
        summary="A ticket that opens the terminal of a user's lab, once, within 30 s",
        handler=_issued,
        access="modify_workloads",
        status=201,
        answer=TicketView,
        idempotent=False,
        about="What it opens closes when the token ends with which it was asked for.",
    ),
    Route(
        method="GET",
        path=PATH,
        name="lab.terminal",
        summary="A shell in the user's lab, as a WebSocket of JSON texts",
        handler=_opened,
        access="modify_workloads",
        status=101,
        errors=(400,),
        query=(TICKET, REPLAY),
        door=TERMINAL,
        about="A plain GET is refused with 400. The newer of two takes over; a shell waits five minutes for who comes"
        " back. The messages are in docs/terminal.md.",
    ),
)
