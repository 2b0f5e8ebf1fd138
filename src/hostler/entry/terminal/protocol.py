"""What is said: JSON texts, one per message of the WebSocket.

from the browser   {"type": "input", "data": "ls\\r"}   {"type": "resize", "cols": 80, "rows": 24}
to the browser     {"type": "output", "data": "…"}      {"type": "info" | "error", "message": "…"}
                   {"type": "provisioning", "message": "…", "status": "waiting", "position": 3}
                   {"type": "connected", "shell": "…"}

An output that the shell wrote before this connection has "replay": true.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from hostler.errors import Invalid

TAKEN_OVER = 4001
"""A newer connection has the terminal."""
NO_LAB = 4004
"""There is no lab, or it is gone."""
NORMAL, GOING_AWAY, NOT_TEXT, NO_LONGER, FAILED = 1000, 1001, 1003, 1008, 1011

Side = Annotated[int, msgspec.Meta(ge=1, le=2000)]


class Input(msgspec.Struct, frozen=True, tag_field="type", tag="input"):
    """Somebody types."""

    data: str


class Resize(msgspec.Struct, frozen=True, tag_field="type", tag="resize"):
    """The window has another size."""

    cols: Side
    rows: Side


Said: TypeAlias = "Input | Resize"
_SAID: msgspec.json.Decoder[Input | Resize] = msgspec.json.Decoder(Input | Resize)


def heard(text: str) -> Said:
    """What the browser said. Invalid: nothing that can be understood."""
    try:
        return _SAID.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        why = str(error) or type(error).__name__
        raise Invalid(f"message: {why[:200]}; send input with data, or resize with cols and rows") from None


def output(data: str, *, replay: bool = False) -> str:
    """The shell said something. `replay`: before this connection, so that no question in it is answered any more."""
    more = {"replay": True} if replay else {}
    return _text(type="output", data=data, **more)


def info(message: str) -> str:
    """Something that is good to know."""
    return _text(type="info", message=message)


def message(text: str) -> str:
    """Somebody who looks after labs says something to the user: an `info` that tells so, and changes nothing."""
    return _text(type="info", message=f"message: {text}", news="message")


def error(message: str) -> str:
    """Something went wrong."""
    return _text(type="error", message=message)


def provisioning(message: str, status: str, position: int | None = None) -> str:
    """The lab is not available, and is waited for."""
    more = {} if position is None else {"position": position}
    return _text(type="provisioning", message=message, status=status, **more)


def connected(shell: str) -> str:
    """From here on, what is typed goes to this shell. One that the page has not shown begins on an empty screen."""
    return _text(type="connected", shell=shell)


def _text(**fields: str | int | bool) -> str:
    return msgspec.json.encode(fields).decode()
