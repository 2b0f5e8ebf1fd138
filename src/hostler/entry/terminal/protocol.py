"""The messages of the terminal: JSON texts, one per WebSocket message.

from the browser   {"type": "input", "data": "ls\\r"}   {"type": "resize", "cols": 80, "rows": 24}
to the browser     {"type": "output", "data": "…"}      {"type": "info" | "error", "message": "…"}
                   {"type": "provisioning", "message": "…", "status": "waiting", "position": 3}
                   {"type": "connected", "shell": "…"}

Output that the shell wrote before this connection has "replay": true.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

from hostler.errors import Invalid

TAKEN_OVER = 4001
"""Close code: a newer connection took over the terminal."""
NO_LAB = 4004
"""Close code: there is no lab, or it is gone."""
NORMAL, GOING_AWAY, NOT_TEXT, NO_LONGER, FAILED = 1000, 1001, 1003, 1008, 1011

Side = Annotated[int, msgspec.Meta(ge=1, le=2000)]


class Input(msgspec.Struct, frozen=True, tag_field="type", tag="input"):
    """Keyboard input."""

    data: str


class Resize(msgspec.Struct, frozen=True, tag_field="type", tag="resize"):
    """A new window size."""

    cols: Side
    rows: Side


Said: TypeAlias = "Input | Resize"
_SAID: msgspec.json.Decoder[Input | Resize] = msgspec.json.Decoder(Input | Resize)


def heard(text: str) -> Said:
    """Decode a message from the browser. Invalid: it is not a valid message."""
    try:
        return _SAID.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        why = str(error) or type(error).__name__
        raise Invalid(f"message: {why[:200]}; send input with data, or resize with cols and rows") from None


def output(data: str, *, replay: bool = False) -> str:
    """Encode output of the shell.

    `replay`: written before this connection; the client must not answer queries in it.
    """
    more = {"replay": True} if replay else {}
    return _text(type="output", data=data, **more)


def info(message: str) -> str:
    """Encode an informational message."""
    return _text(type="info", message=message)


def message(text: str) -> str:
    """Encode a message from an operator to the user: an `info` marked as such, without effect on the state."""
    return _text(type="info", message=f"message: {text}", news="message")


def error(message: str) -> str:
    """Encode an error."""
    return _text(type="error", message=message)


def provisioning(message: str, status: str, position: int | None = None) -> str:
    """Encode the progress of a lab that is not available yet."""
    more = {} if position is None else {"position": position}
    return _text(type="provisioning", message=message, status=status, **more)


def connected(shell: str) -> str:
    """Encode that input now goes to this shell. The client clears its screen for a shell that it has not shown yet."""
    return _text(type="connected", shell=shell)


def _text(**fields: str | int | bool) -> str:
    return msgspec.json.encode(fields).decode()
