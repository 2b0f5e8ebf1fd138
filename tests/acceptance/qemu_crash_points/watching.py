"""Looks all the time: no machine has two processes in one place, and its guest never runs in two places.

A guest that runs uses its processors; one that is stopped, or waits for its memory, uses none. So who runs is seen
by the time that the threads of the processors had, and QEMU is not asked. Within one look the guest may stop here and
go on there; in two looks in a row no two may have used more than noise.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Self

from harness.artefacts import safe

from . import table

if TYPE_CHECKING:
    from pathlib import Path

EVERY = 0.04
NOISE = 400_000
"""Nanoseconds that a stopped processor's thread may take to be told something."""


class Watching:
    """Entered: it looks. `wrong`: what it has seen that must never be."""

    def __init__(self, machines: Path) -> None:
        self._machines = machines
        self.wrong: list[str] = []
        self.looks = 0
        self.seen = False
        """That a guest ran: else nothing could be seen to be wrong."""
        self._had: dict[int, int] = {}
        self._both: dict[str, int] = defaultdict(int)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def check(self) -> None:
        assert self._task is None or not self._task.done(), "the watch has ended"
        safe(not self.wrong, f"a guest runs once: {self.wrong[:3]}", wrong=self.wrong)

    async def _watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(EVERY)

    def look(self) -> None:
        there: dict[str, list[table.Process]] = defaultdict(list)
        for process in table.processes(self._machines):
            if process.is_qemu:
                there[process.folder].append(process)
        pids = [process.pid for each in there.values() for process in each]
        had = {pid: table.run_time(pid) for pid in pids}
        for folder, each in there.items():
            places = [process.node for process in each]
            if len(set(places)) < len(places):
                self.wrong.append(f"{folder}: two processes in one place: {each}")
            ran = [pid for pid in (process.pid for process in each) if had[pid] - self._had.get(pid, had[pid]) > NOISE]
            self.seen = self.seen or bool(ran)
            self._both[folder] = self._both[folder] + 1 if len(ran) > 1 else 0
            if self._both[folder] > 1:
                self.wrong.append(f"{folder}: its guest runs twice: {each}")
        # Once more: a guest may have gone on elsewhere while the times were read, which two looks must not both see.
        self._had = {pid: table.run_time(pid) for pid in pids}
        self.looks += 1
