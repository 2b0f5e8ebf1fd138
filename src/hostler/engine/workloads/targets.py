"""Keeps targets consistent with the commands of the VMs.

The leader's VM controllers write the target together with the command. This module covers the other cases: an agent
that migrated a VM, which writes no targets, and records changed by other programs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.engine.runtime.expectation import LAG
from hostler.engine.runtime.guarded_writer import Why
from hostler.engine.runtime.work_queue import WorkQueue
from hostler.engine.workloads import transactions
from hostler.errors import Invalid
from hostler.keys.families import COMMAND, TARGET
from hostler.model.workload import instance_of, instance_parts

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hostler.engine.runtime.guarded_writer import GuardedWriter, Txn
    from hostler.engine.view import View
    from hostler.engine.workloads.instance_cache import InstanceCache
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import VmCommand


class Targets:
    """The part of the workload controller that repairs targets. It starts, runs and stops with the controller."""

    def __init__(
        self,
        view: View,
        rolls: InstanceCache,
        writing: GuardedWriter,
        *,
        clock: Clock,
        rng: random.Random,
        tell: Callable[[str], None],
        counters: dict[str, int],
    ) -> None:
        self._view, self._rolls, self._writing, self._clock = view, rolls, writing, clock
        self._queue = WorkQueue(self._look, clock=clock, rng=rng, tell=tell, counters=counters, width=8)

    def listen(self) -> list[Callable[[], None]]:
        """Start listening to changes. The returned functions end this."""
        return [
            self._view.commands.listen(self._command_changed),
            self._view.targets.listen(lambda key: self.check(TARGET.parse(key))),
        ]

    async def run(self) -> None:
        """Run until cancelled. Raise LeadershipLost when another replica leads."""
        await self._queue.run()

    def check(self, ids: dict[str, Any]) -> None:
        """Queue an instance with a short delay if its target seems out of date."""
        if not self._is_aimed(ids):
            self._queue.add(instance_of(ids["workload"], ids["instance"]), after=LAG)

    # Internals

    def _command_changed(self, key: str) -> None:
        entry = self._view.commands.entries.get(key)
        if entry is None:  # the command of the new node may have arrived earlier
            entry = self._command(COMMAND.parse(key)["vm"])
        ids = None if entry is None else instance_parts(entry.value.instance)
        if ids is not None:
            with suppress(Invalid):  # a command of another program; no instance can have this name
                self.check(ids)

    def _is_aimed(self, ids: dict[str, Any]) -> bool:
        """Return whether target and command agree in the caches, which may lag by different amounts."""
        instance, target = self._view.instances.get(**ids), self._view.targets.get(**ids)
        if instance is None or target is None:
            return instance is None and target is None
        command = self._command(instance.value.vm)
        if command is None or command.value.deleting:
            return True
        aim, told = target.value, command.value
        same = (aim.vm, aim.power, aim.generation) == (told.vm, told.power, told.generation)
        return same and aim.node == command.parts["node"]

    async def _look(self, instance: str) -> None:
        ids = instance_parts(instance)
        if ids is None or self._is_aimed(ids):
            return
        at, index, target = self._clock.wall(), self._view.instances.get(**ids), self._view.targets.get(**ids)
        if index is None:
            if target is not None:
                why = Why(what="untargeted", why="there is no such instance", read=(target,))
                await self._aim(transactions.untargeted(target), target, why)
            return
        vm, command = self._rolls.machine(instance, index.value.vm), self._command(index.value.vm)
        if target is None:
            why = Why(what="targeted", why="its target was missing", read=(index, vm))
            await self._aim(transactions.targeted(index, None if vm is None else vm.value, at), index, why)
        elif command is not None and vm is not None and not vm.value.deleting:
            why = Why(what="targeted", why=f"its machine is on {command.parts['node']}", read=(command, target))
            await self._aim(transactions.retargeted(index, target, vm.value, command, at), target, why)

    async def _aim(self, txn: Txn, about: Entry[Any], why: Why) -> None:
        await self._writing.write("", about.key, txn, why)

    def _command(self, vm: str) -> Entry[VmCommand] | None:
        node = self._view.node_of.get(vm)
        return None if node is None else self._view.commands.entries.get(COMMAND.fill(node=node, vm=vm))
