"""Lab status as a terminal needs it, from this process's view of the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Damaged, Unavailable, Uncertain
from hostler.keys.lab import LAB
from hostler.keys.vm import HANDLE
from hostler.model.lab import ORG, LabEvent, LabPhase, lab_project, lab_user
from hostler.model.vm import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.model.lab import Lab, LabNews, LabUser
    from hostler.ports.store import Store

WITHIN = 5.0
"""Seconds for the view to catch up with a revision read from the store."""
COUNT_EVERY = 1.0
"""Seconds between two counts of waiting users."""
_ENDS = {
    LabEvent.EXPIRED: "its time is over",
    LabEvent.STOPPED: "it was stopped",
    LabEvent.STOPPING: "it was stopped",
    LabEvent.FAILED: "it failed",
}


class LabRoute(msgspec.Struct, frozen=True):
    """How to log in to a lab's machine."""

    vm: str
    node: str
    user: str
    host_keys: tuple[str, ...]
    """Empty: not known, so no login is attempted."""


class LabTerminalStatus:
    """Lab status of all users. Listeners are called with the user whose lab or machine changed."""

    def __init__(self, store: Store, view: View, *, clock: Clock) -> None:
        self._store, self._view, self._clock = store, view, clock
        self._positions: dict[str, int] = {}
        self._counted_at = float("-inf")

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed` on every change. Return a function that ends the subscription."""
        machines = HANDLE.prefix(org=ORG)

        def lab(key: str) -> None:
            parts = LAB.match(key)
            if parts is not None:
                changed(parts["user"])

        def machine(key: str) -> None:
            if key.startswith(machines):
                parts = HANDLE.match(key)
                if parts is not None:
                    changed(lab_user(parts["project"]))

        ends = [self._view.labs.listen(lab), self._view.handles.listen(machine)]

        def end() -> None:
            for each in ends:
                each()

        return end

    async def fresh(self, user: str) -> Lab | None:
        """Return the user's lab as the store has it now, and wait until the view has it too.

        If the store is unreachable or the record is not readable, return the last known state.
        """
        try:
            entry = await LAB.get(self._store, user=user)
        except (Unavailable, Uncertain, Damaged):
            return self.lab(user)
        if entry is None:
            return None
        try:
            async with asyncio.timeout(WITHIN):
                await self._view.labs.reached(entry.mod_revision)
        except TimeoutError:
            raise Unavailable(f"lab of {user}: this server is behind the store; try again") from None
        return entry.value.lab

    def lab(self, user: str) -> Lab | None:
        """Return the user's lab as it was last seen."""
        found = self._record(user)
        return None if found is None else found.lab

    def readable(self, user: str) -> bool:
        """Return whether the result of `lab` is valid: an unreadable record does not mean that the lab is gone."""
        return LAB.fill(user=user) not in self._view.labs.unreadable

    def way(self, user: str, lab: Lab) -> LabRoute | None:
        """Return how to log in to the lab's machine; None: not known yet, as labs may be seen before their machines."""
        entry = self._view.handles.get(org=ORG, project=lab_project(user), vm=lab.vm) if lab.vm else None
        if entry is None:
            return None
        seen = entry.value
        if not seen.node or seen.access is None or seen.readiness is None or seen.readiness.step is not Step.AVAILABLE:
            return None
        return LabRoute(lab.vm, seen.node, lab.user or seen.access.user, seen.access.host_keys)

    def position(self, user: str) -> int | None:
        """Return the user's position among waiting users, from 1; counted on demand, at most once a second."""
        now = self._clock.now()
        if now - self._counted_at >= COUNT_EVERY:
            waiting = sorted(
                (entry.value.lab.requested_at, entry.value.user)
                for entry in self._view.labs.entries.values()
                if entry.value.lab is not None and entry.value.lab.phase is LabPhase.WAITING
            )
            self._positions = {name: number for number, (_, name) in enumerate(waiting, 1)}
            self._counted_at = now
        return self._positions.get(user)

    def ending(self, user: str, generation: int) -> str:
        """Return why the user's lab of that generation is gone, or is stopping."""
        found = self._record(user)
        if found is None:
            return "it is gone"
        if found.generation > generation:
            return "another lab has replaced it"
        if found.lab is not None and found.lab.ending is not None:
            return _told(found.lab.ending, found.lab.ending_reason)
        last = next((news for news in reversed(found.news) if news.event in _ENDS), None)
        return "it is gone" if last is None else _told(last.event, last.reason)

    def messages(self, user: str, after: int) -> tuple[LabNews, ...]:
        """Return the messages sent to the user after the event of that number."""
        found = self._record(user)
        news = () if found is None else found.events
        return tuple(one for one in news if one.number > after and one.event is LabEvent.MESSAGE)

    def last(self, user: str) -> int:
        """Return the number of the user's last event; 0: there is none."""
        found = self._record(user)
        return 0 if found is None else found.last_number

    def _record(self, user: str) -> LabUser | None:
        entry = self._view.labs.get(user=user)
        return None if entry is None else entry.value


def _told(event: LabEvent, reason: str) -> str:
    said = _ENDS.get(event, "it is gone")
    return f"{said} ({reason})" if reason else said
