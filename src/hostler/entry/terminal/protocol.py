"""The messages of the terminal, JSON texts, one per WebSocket message; and the last output, which clients read again.

from the browser   {"type": "input", "data": "ls\\r"}   {"type": "resize", "cols": 80, "rows": 24}
to the browser     {"type": "output", "data": "…"}      {"type": "info" | "error", "message": "…"}
                   {"type": "provisioning", "message": "…", "status": "waiting", "position": 3}
                   {"type": "connected", "shell": "…"}

Output that the shell wrote before this connection has "replay": true.

The output is one long text of which the end is kept, with notes at positions in it. A reader has a `ReadPosition` and
asks for what follows. So nothing is sent twice, and output that one connection did not take is available to the next.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated, TypeAlias

import msgspec

from hostler.errors import Invalid
from hostler.kit.plural import counted

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


def decode_message(text: str) -> Said:
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


def connected_message(shell: str) -> str:
    """Encode that input now goes to this shell. The client clears its screen for a shell that it has not shown yet."""
    return _text(type="connected", shell=shell)


def _text(**fields: str | int | bool) -> str:
    return msgspec.json.encode(fields).decode()


KEPT = 64 * 1024
"""In characters."""
NOTES = 16
CHUNK = 16 * 1024
"""Characters per message."""


class ReadPosition(msgspec.Struct, frozen=True, order=True):
    """The position up to which a client has read."""

    position: int = 0
    note: int = 0


class _Note(msgspec.Struct, frozen=True):
    number: int
    position: int
    message: str


class Scroll:
    """The last `kept` characters and the last few notes."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._text, self._begin = "", 0
        self._shell_began = 0
        self._notes: deque[_Note] = deque(maxlen=NOTES)
        self._number = 0
        self._state: _Note | None = None

    @property
    def begin(self) -> ReadPosition:
        """Return where the kept output of the last shell begins.

        A new client is not sent the output of older shells.
        """
        return ReadPosition(max(self._begin, self._shell_began), self._number)

    @property
    def ahead(self) -> int:
        """Return how many characters a reader may lag behind without losing any."""
        return self._kept // 2

    @property
    def end(self) -> int:
        """Return the position after all output."""
        return self._begin + len(self._text)

    def say(self, text: str) -> None:
        """Append output of the shell."""
        self._text += text
        over = len(self._text) - self._kept
        if over > 0:
            self._text, self._begin = self._text[over:], self._begin + over

    def start_shell(self) -> None:
        """Mark the start of a new shell: later output belongs to it."""
        self._shell_began = self.end

    def note(self, message: str, *, state: bool = False) -> None:
        """Insert a message into the output.

        A state stays current until the next one; new clients get the last state.
        """
        self._number += 1
        note = _Note(self._number, self.end, message)
        self._notes.append(note)
        if state:
            self._state = note

    def greeting(self, place: ReadPosition) -> str | None:
        """Return the current state for a client that starts at `place`; None: there is none, or it follows anyway."""
        return self._state.message if self._state is not None and self._state.number <= place.note else None

    def after(self, place: ReadPosition, live: int = 0) -> tuple[str, ReadPosition] | None:
        """Return the next message and the place after it; None: there is none yet. Output before `live` is a replay."""
        if place.position < self._begin:
            lost = self._begin - place.position
            came = counted(lost, "character was", "characters were")
            said = info(f"{came} dropped while disconnected; the latest output follows")
            return said, ReadPosition(self._begin, place.note)
        note = next((note for note in self._notes if note.number > place.note), None)
        stop = self.end if note is None else note.position
        if place.position < stop:
            replay = place.position < live
            start, stop = place.position - self._begin, min(stop, live) if replay else stop
            text = self._text[start : min(start + CHUNK, stop - self._begin)]
            return output(text, replay=replay), ReadPosition(place.position + len(text), place.note)
        return None if note is None else (note.message, ReadPosition(place.position, note.number))
