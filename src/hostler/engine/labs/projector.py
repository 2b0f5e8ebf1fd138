"""Publishes the state of labs for the front end. The published records are derived, and can be rebuilt.

Each user's record is published with the store revision that it was derived from, so an older one never replaces a newer
one, whichever process publishes it. An outage of the board affects nothing else. Once it is back, everything is
published again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import HostlerError, Invalid
from hostler.keys.lab import LAB, check_user
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import Fairness, run_together
from hostler.model.lab import LabPhase, lab_project, lab_user
from hostler.ports.inbox import Published

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterator

    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.model.lab import LabServer
    from hostler.ports.inbox import LabRecords, Shown

EPOCH_EVERY = 1.0
SWEEP_EVERY = 300.0
REFRESH_EVERY = 3600.0
BATCH = 256
"""Number of users per call."""
FIRST_RETRY, LAST_RETRY = 0.1, 5.0
_PREFIX = LAB.prefix()


class LabProjector:
    """The projection of lab records. `board` must be open while it runs."""

    name = "lab-board"

    def __init__(
        self,
        board: LabRecords,
        view: View,
        *,
        clock: Clock,
        rng: random.Random,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._board, self._view, self._clock, self._rng, self._tell = board, view, clock, rng, tell
        self.counters: dict[str, int] = {}
        self._dirty: dict[str, None] = {}  # users to publish, in order
        self._news = asyncio.Event()
        self._epoch: str | None = None  # None: not known, or the board was unreachable since
        self._rid: str | None = None  # the epoch in which records of other stores have been removed
        self._ends_of_listening: list[Callable[[], None]] = []
        self._fairness = Fairness()

    # Controller lifecycle

    async def start(self, standing: Standing) -> None:  # noqa: ARG002 - it writes nothing in the store
        """Start listening to changes. Everything is published once when the epoch of the board is known."""
        self._ends_of_listening = [self._view.labs.listen(lambda key: self._mark(_user(key)))]

    async def run(self) -> None:
        """Run until cancelled. It never fails, because the leader has other work to do."""
        await run_together("lab board", {"changes": self._retry(self._show), "sweep": self._sweeping()})

    async def stop(self) -> None:
        """Stop listening to changes."""
        for end in self._ends_of_listening:
            end()

    def state(self) -> dict[str, int]:
        """Return counters and current sizes, for metrics."""
        return {**self.counters, "unshown": len(self._dirty)}

    async def sweep(self) -> None:
        """Compare the published records with the store, in both directions."""
        shown = await self._board.servers()
        labs = self._view.labs
        for user, server in shown.items():
            await self._fairness.share()
            key = _key(user)
            if key in labs.entries:
                if server is None or server != self._desired_server(user):
                    self._mark(user)
            elif key not in labs.unreadable and await self._board.withdraw(user, labs.revision):
                self._count("withdrawn", 1)
        for user in self._users():
            await self._fairness.share()
            if user not in shown and self._desired_server(user) is not None:
                self._mark(user)
        self._count("sweeps", 1)

    # Internals

    def _users(self) -> Iterator[str]:
        for key in tuple(self._view.labs.entries):
            yield _user(key)

    def _mark(self, user: str) -> None:
        self._dirty[user] = None
        self._news.set()

    def _desired_server(self, user: str) -> LabServer | None:
        entry = self._view.labs.entries.get(_key(user))
        return None if entry is None or entry.value.lab is None else entry.value.lab.server(user)

    def _publication(self, user: str) -> Published | None:
        """Return what to publish for the user; None: nothing, because the record or the name cannot be used."""
        labs, key = self._view.labs, _key(user)
        try:
            check_user(user)
        except Invalid:
            return None
        entry = labs.entries.get(key)
        if entry is None:
            gone = Published(user=user, revision=labs.revision, server=None)
            return None if key in labs.unreadable else gone
        lab = entry.value.lab
        return Published(
            user=user,
            revision=entry.mod_revision,
            server=None if lab is None else lab.server(user),
            waits_since=lab.requested_at if lab is not None and lab.phase is LabPhase.WAITING else None,
            news=entry.value.events,
        )

    async def _show(self) -> None:
        """Publish changes until the epoch must be checked again; first everything, if published records may be lost."""
        before, self._epoch = self._epoch, None
        epoch, checked_at = await self._board.epoch(), self._clock.now()
        if epoch != before:
            if epoch != self._rid:
                await self._forget_other_times()
                self._rid = epoch
            for user in self._users():
                self._mark(user)
                await self._fairness.share()
        await self._show_changes(checked_at + EPOCH_EVERY)
        self._epoch = epoch

    async def _forget_other_times(self) -> None:
        """Remove published records that come from another store.

        Revisions and event numbers only grow within one store. A published record that is ahead of this store comes
        from another one that was used before (the store was moved, restored to an older state, or started empty), and
        would block the records of this store.
        """
        shown = await self._board.shown()
        if any(self._ahead(user, how) for user, how in shown.items()):
            await self._view.refresh(self._view.labs)  # another process that publishes from this store may be ahead
        for user, how in shown.items():
            await self._fairness.share()
            if self._ahead(user, how) and await self._board.forget(user, how.revision):
                self._count("forgotten", 1)

    def _ahead(self, user: str, shown: Shown) -> bool:
        labs, key = self._view.labs, _key(user)
        if key in labs.unreadable:
            return shown.revision > labs.revision
        entry = labs.entries.get(key)
        if entry is None:
            return shown.revision > labs.revision or shown.news > 0
        return shown.revision > entry.mod_revision or shown.news > entry.value.last_number

    async def _show_changes(self, until: float) -> None:
        while (left := until - self._clock.now()) > 0:
            self._news.clear()
            if self._dirty:
                await self._show_batch()
                continue
            try:
                async with asyncio.timeout(left):
                    await self._news.wait()
            except TimeoutError:
                return

    async def _show_batch(self) -> None:
        users = [user for user, _ in zip(tuple(self._dirty), range(BATCH))]
        for user in users:
            del self._dirty[user]
        changes = [change for user in users if (change := self._publication(user)) is not None]
        self._count("shown", await self._board.publish(changes))  # if it fails, everything is published again

    async def _sweeping(self) -> None:
        """Sweep at once and then periodically; renew the expiry of published records."""
        refreshed_at = self._clock.now()

        async def turn() -> None:
            nonlocal refreshed_at
            await self.sweep()
            if self._clock.now() - refreshed_at >= REFRESH_EVERY:
                await self._refresh()
                refreshed_at = self._clock.now()
            await self._clock.sleep(SWEEP_EVERY)

        await self._retry(turn)

    async def _refresh(self) -> None:
        users = [user for user in self._users() if self._desired_server(user) is not None]
        for start in range(0, len(users), BATCH):
            for user in await self._board.refresh(users[start : start + BATCH]):
                self._mark(user)

    async def _retry(self, do: Callable[[], Awaitable[None]]) -> None:
        backoff, healthy = Backoff(FIRST_RETRY, LAST_RETRY, rng=self._rng), True
        while True:
            try:
                await do()
            except Exception as error:  # noqa: BLE001 - whatever it is, the leader continues, and it is tried again
                self._count("failures", 1)
                if healthy:
                    what = str(error) if isinstance(error, HostlerError) else f"{type(error).__name__}: {error}"
                    self._tell(f"lab records: {what}; they are published again once it is back")
                healthy = False
                await self._clock.sleep(backoff.next())
            else:
                if not healthy:
                    self._tell("lab records: published again")
                healthy = True
                backoff.reset()

    def _count(self, what: str, number: int) -> None:
        self.counters[what] = self.counters.get(what, 0) + number


def _key(user: str) -> str:
    """Return the key as `LAB.fill` does, but also for ids that no request may have."""
    return _PREFIX + lab_project(user)


def _user(key: str) -> str:
    return lab_user(key.removeprefix(_PREFIX))
