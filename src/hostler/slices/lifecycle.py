"""The lifecycle of an instance: loaded, active, ended. Each step is idempotent."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.ports.slices import Life
from hostler.ports.worker_protocol import State
from hostler.slices.error_text import MAX_TOLD, describe_error, log_raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.worker_protocol import Order
    from hostler.slices.calls import Calls
    from hostler.slices.module import SliceModule

UNWELL_AFTER = 3
"""Failed health checks in a row after which the instance counts as ended."""
LAST_WORDS = 1.0
"""Seconds that calls have to end after they were stopped."""
_LOG = logging.getLogger("hostler.slices")


class NotDone(Exception):
    """A step failed, and fails again if it is retried."""


class Instance:
    """One instance. `changed` is called when its state changes by itself."""

    def __init__(
        self, order: Order, module: SliceModule, calls: Calls, address: str, changed: Callable[[], None]
    ) -> None:
        self._order, self._module, self._calls, self._address = order, module, calls, address
        self._changed = changed
        self._life, self._detail = Life.LOADED, ""
        self._is_started = False
        self._turn = asyncio.Lock()
        self._watching: asyncio.Task[str] | None = None
        self._activating: asyncio.Task[None] | None = None

    def state(self, number: int = 0) -> State:
        """Return the current state."""
        return State(
            number,
            self._order.artifact,
            self._order.instance,
            self._order.template,
            self._order.settings,
            self._life,
            tuple(handler.method for handler in self._module.methods.values()),
            self._address,
            self._detail,
            self._calls.in_flight,
        )

    async def activate(self) -> None:
        """Activate the instance. NotDone: it cannot be activated."""
        if self._activating is None:
            self._activating = asyncio.create_task(self._activate(), name="activating")
            self._activating.add_done_callback(self._note_activation)
        try:
            await asyncio.shield(self._activating)
        except asyncio.CancelledError:
            raise NotDone("it was ended while it was being started") from None

    async def end(self, grace: float) -> None:
        """Deactivate permanently, also during an activation. NotDone: `stop` raised."""
        if self._activating is not None:
            self._activating.cancel()
        if self._life is Life.ACTIVE or self._is_started:
            await self.deactivate(grace)

    def _note_activation(self, _done: asyncio.Task[None]) -> None:
        self._activating = None

    async def _activate(self) -> None:
        async with self._turn:
            if self._life is Life.ACTIVE:
                return
            if self._life is Life.ENDED:
                raise NotDone(f"it has ended: {self._detail}")
            self._detail = "start is being called"
            try:
                await self._hook("start")
                self._is_started = True
                await self._until_healthy()
            except NotDone as error:
                self._detail = str(error)
                await self._stop_quietly()
                raise
            self._life, self._detail = Life.ACTIVE, ""
            self._calls.is_active = True
            self._watching = asyncio.create_task(self._watch(), name="healthy")
            self._watching.add_done_callback(self._note_check_end)

    async def deactivate(self, grace: float) -> None:
        """Deactivate the instance. NotDone: `stop` raised; the instance is inactive anyway."""
        self._calls.is_active, self._calls.why_not = False, "it is being stopped"
        async with self._turn:
            self._calls.is_active = False  # an activation may have run before the lock was taken
            if not self._is_started:
                self._calls.why_not = "it was not started yet" if self._life is Life.LOADED else self._detail
                return
            if self._watching is not None:
                self._watching.cancel()
                self._watching = None
            if not await self._calls.drained(grace):
                self._calls.stop_all(f"the instance was stopped, and gave calls {grace:g} s to end")
                await self._calls.drained(LAST_WORDS)
            if self._life is Life.ACTIVE:
                self._life = Life.LOADED
            self._calls.why_not = "it was stopped"
            self._is_started = False
            await self._hook("stop")

    async def _hook(self, name: str) -> object:
        try:
            return await self._module.run_hook(name)
        except BaseException as error:  # the slice may raise anything
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            log_raised(_LOG, name, error)
            raise NotDone(f"{name} raised {describe_error(error)}") from None

    async def _stop_quietly(self) -> None:
        if self._is_started:
            self._is_started = False
            with suppress(NotDone):  # it is logged; the first failure is the one to report
                await self._hook("stop")

    async def _until_healthy(self) -> None:
        pause = 0.05
        self._detail = "it was started and is not healthy yet"
        try:
            async with asyncio.timeout(self._order.healthy_within):
                while why := await self._unwell():
                    self._detail = f"it was started and is not healthy yet: {why}"
                    await asyncio.sleep(pause)
                    pause = min(1.0, pause * 1.5)
        except TimeoutError:
            raise NotDone(f"{self._detail.replace(' yet', '', 1)}, after {self._order.healthy_within:g} s") from None

    async def _watch(self) -> str:
        """Check the health until the instance is unhealthy; return why."""
        failed = 0
        while failed < UNWELL_AFTER:
            await asyncio.sleep(self._order.healthy_every)
            try:
                async with asyncio.timeout(2 * self._order.healthy_every):
                    why = await self._unwell()
            except TimeoutError:
                why = f"healthy has not answered within {2 * self._order.healthy_every:g} s"
            failed = failed + 1 if why else 0
        return why

    def _note_check_end(self, done: asyncio.Task[str]) -> None:
        """Handle the end of the health checks: without them the instance is unhealthy, unless it is being stopped."""
        if done is not self._watching:
            return
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        why = done.result() if error is None else f"the health checks ended with {describe_error(error)}"
        _LOG.error("unhealthy: %s", why)
        self._life, self._detail = Life.ENDED, f"unhealthy: {why}"
        self._calls.is_active, self._calls.why_not = False, self._detail
        self._changed()

    async def _unwell(self) -> str:
        """Return why the instance is unhealthy; empty: healthy. No hook, or one that returns None, means healthy."""
        if why := self._calls.held_up():
            return why
        try:
            found = await self._hook("healthy")
        except NotDone as error:
            return str(error)
        try:
            return "" if found is None or found else f"healthy returned {found!r}"[:MAX_TOLD]
        except BaseException as error:  # noqa: BLE001 - a value of the slice's own types may raise anything
            return f"what healthy returned raised {describe_error(error)}"


def _is_being_cancelled() -> bool:
    """Return whether this task itself is being cancelled, and not something that a hook awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
