"""Simulated processes inside one event loop: each can be suspended, as by SIGSTOP, or killed, as by SIGKILL."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from hostler.kit.virtual_loop import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from contextvars import Context

PROCESS: ContextVar[str | None] = ContextVar("PROCESS", default=None)
"""The process whose code runs. Tasks, timers and callbacks inherit it from their creator; None: no process."""


class ProcessLoop(VirtualLoop):
    """Knows which process each callback belongs to, and runs none of a suspended process."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._suspended: dict[str, list[asyncio.Handle]] = {}
        # In order of creation: the order of a set of tasks differs between runs.
        self._tasks: defaultdict[str, dict[asyncio.Task[Any], None]] = defaultdict(dict)
        self.set_task_factory(self._made)

    def launch(self, process: str, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `main`, and everything it starts, as that process."""
        return self.create_task(main, name=process, context=_as(process))

    def suspend(self, process: str) -> None:
        """Stop running the process."""
        self._suspended.setdefault(process, [])

    def wake(self, process: str) -> None:
        """Resume the process: everything that became due in the meantime is due now."""
        for handle in self._suspended.pop(process, ()):
            self._ready.append(handle)

    def kill(self, process: str) -> None:
        """Cancel all tasks of the process.

        Its connections must be dead before, so that its actions during cancellation have no effect outside.
        """
        self.wake(process)
        for task in list(self._tasks[process]):
            task.cancel()

    def _admitted(self, handles: list[asyncio.Handle]) -> list[asyncio.Handle]:
        if not self._suspended:
            return handles
        admitted: list[asyncio.Handle] = []
        for handle in handles:
            kept = self._suspended.get(handle._context.get(PROCESS) or "")  # type: ignore[attr-defined]
            (admitted if kept is None else kept).append(handle)
        return admitted

    def _made(self, loop: Any, work: Any, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        process = context.get(PROCESS) if context is not None else PROCESS.get()
        if process is not None:
            tasks = self._tasks[process]
            tasks[task] = None
            task.add_done_callback(lambda done: tasks.pop(done, None))
        return task


def outside() -> Context:
    """Return a context that belongs to no process: for the network and the storage."""
    return _as(None)


def _as(process: str | None) -> Context:
    context = copy_context()
    context.run(PROCESS.set, process)
    return context
