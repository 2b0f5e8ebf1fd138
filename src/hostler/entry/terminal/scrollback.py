"""The last output of a terminal, for the connected client and for one that reconnects.

The output is one long text of which the end is kept, with notes at positions in it. A reader has a `ReadPosition` and
asks for what follows. So nothing is sent twice, and output that one connection did not take is available to the next.
"""

from __future__ import annotations

from collections import deque

import msgspec

from hostler.entry.terminal import protocol
from hostler.kit.plural import counted

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
            said = protocol.info(f"{came} dropped while disconnected; the latest output follows")
            return said, ReadPosition(self._begin, place.note)
        note = next((note for note in self._notes if note.number > place.note), None)
        stop = self.end if note is None else note.position
        if place.position < stop:
            replay = place.position < live
            start, stop = place.position - self._begin, min(stop, live) if replay else stop
            text = self._text[start : min(start + CHUNK, stop - self._begin)]
            return protocol.output(text, replay=replay), ReadPosition(place.position + len(text), place.note)
        return None if note is None else (note.message, ReadPosition(place.position, note.number))
