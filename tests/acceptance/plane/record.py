"""What there is to hold a story against: the machines' own records, and the history of the store."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.artefacts import safe

from hostler.keys.families import COMMAND, LEADER
from hostler.kit.clock import SystemClock
from hostler.model.node import VmCommand
from hostler.model.replica import LeaderRecord
from hostler.ports.store import Event, Store
from hostler.testing import FileHost, read_intervals


class Run(NamedTuple):
    """A machine ran from `on` to `off` (None: it still does), on the clock that all processes of a host share."""

    on: float
    off: float | None
    node: str


class Machines:
    """The machines of all nodes, as they tell of themselves in their journals."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = folders

    def runs(self) -> dict[str, list[Run]]:
        """Of every machine that ever ran, in the order in which the runs began."""
        found: dict[str, list[Run]] = {}
        for node, folder in self._folders.items():
            for vm, intervals in read_intervals(folder).items():
                found.setdefault(vm, []).extend(Run(on, off, node) for on, off in intervals)
        return {vm: sorted(runs, key=lambda run: run.on) for vm, runs in found.items()}

    def running(self) -> dict[str, list[Run]]:
        """Those that run now."""
        now = {vm: [run for run in runs if run.off is None] for vm, runs in self.runs().items()}
        return {vm: runs for vm, runs in now.items() if runs}

    def there(self, node: str) -> set[str]:
        """Every machine that exists on the node, running or not, whoever has its journal open."""
        with tempfile.TemporaryDirectory() as copy:
            for name in ("place", "journal"):
                shutil.copy(self._folders[node] / name, copy)
            place = FileHost(copy)
            place.open(self)
            try:
                return set(place.contents.rows)
            finally:
                place.close(self)

    def switch_off(self, node: str) -> None:
        """The node loses its power. Its agent must be dead."""
        place = FileHost(self._folders[node])
        place.open(self)
        place.power_off(SystemClock().now())

    def check_never_twice(self) -> None:
        """At no instant did a machine run in two places, or twice in one."""
        for vm, runs in self.runs().items():
            for first, second in itertools.pairwise(runs):
                apart = first.off is not None and first.off <= second.on
                safe(apart, f"machine {vm} ran twice at once: {first} {second}", runs=self.runs())


async def history(store: Store, *prefixes: str) -> list[Event]:
    """Every change under these prefixes since the store was made, in order. All who write there must have ended."""
    found: list[Event] = []
    for prefix in prefixes:
        end = f"{prefix}end-of-history"
        async with store.watch(prefix, start_revision=1) as watch:
            await store.put(end, b"")
            async for event in watch:
                if event.kv.key == end:
                    break
                found.append(event)
    return sorted(found, key=lambda event: event.kv.mod_revision)


async def check_commands(store: Store) -> int:
    """Every command was written by who led at that instant, and nobody else; how many there were."""
    fence, count = 0, 0
    events = await history(store, LEADER.prefix(), COMMAND.prefix())
    for event in events:
        if event.kv.key == LEADER.fill(n=1):
            fence = LeaderRecord.decode(event.kv.value).fence if event.type == "put" else 0
        elif event.type == "put" and COMMAND.match(event.kv.key):
            command = VmCommand.decode(event.kv.value)
            count += 1
            where = f"revision {event.kv.mod_revision} of {event.kv.key}"
            claim = f"{where}: written under fence {command.fence}, while {fence} led"
            safe(command.fence == fence, claim, history=events)
    return count
