"""What a terminal said last, for who reads it now and for who comes back.

One long text, of which the end is kept, with notes at their places in it. A reader has a `Place` and asks for what
comes after it; so nothing is said twice, and what a connection did not take is there for the next.
"""

from __future__ import annotations

from collections import deque

import msgspec

from hostler.entry.terminal import protocol
from hostler.kit.plural import counted

KEPT = 64 * 1024
"""Characters."""
NOTES = 16
CHUNK = 16 * 1024
"""Characters of one message."""


class Place(msgspec.Struct, frozen=True, order=True):
    """Up to where somebody has read."""

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
    def begin(self) -> Place:
        """Where what is kept of the last shell begins: an empty screen is not shown the picture of an older one."""
        return Place(max(self._begin, self._shell_began), self._number)

    @property
    def ahead(self) -> int:
        """How many characters who reads may be behind, so that none is dropped before it was read."""
        return self._kept // 2

    @property
    def end(self) -> int:
        """The position after all that was said."""
        return self._begin + len(self._text)

    def say(self, text: str) -> None:
        """The shell said this."""
        self._text += text
        over = len(self._text) - self._kept
        if over > 0:
            self._text, self._begin = self._text[over:], self._begin + over

    def start_shell(self) -> None:
        """What is said from now on comes from another shell."""
        self._shell_began = self.end

    def note(self, message: str, *, state: bool = False) -> None:
        """A message between what the shell says. A state holds until the next one: who comes is told the last."""
        self._number += 1
        note = _Note(self._number, self.end, message)
        self._notes.append(note)
        if state:
            self._state = note

    def greeting(self, place: Place) -> str | None:
        """The present state, for who begins at `place`; None: it comes after it anyway, or there is none."""
        return self._state.message if self._state is not None and self._state.number <= place.note else None

    def after(self, place: Place, live: int = 0) -> tuple[str, Place] | None:
        """The next message, and the place after it; None: there is none yet. Output before `live` is a replay."""
        if place.position < self._begin:
            lost = self._begin - place.position
            came = counted(lost, "character came meanwhile that is", "characters came meanwhile that are")
            said = protocol.info(f"{came} not kept; what follows is the end")
            return said, Place(self._begin, place.note)
        note = next((note for note in self._notes if note.number > place.note), None)
        stop = self.end if note is None else note.position
        if place.position < stop:
            replay = place.position < live
            start, stop = place.position - self._begin, min(stop, live) if replay else stop
            text = self._text[start : min(start + CHUNK, stop - self._begin)]
            return protocol.output(text, replay=replay), Place(place.position + len(text), place.note)
        return None if note is None else (note.message, Place(place.position, note.number))
