"""Workloads in the control plane of `plane`: their controller on every leader, and a note of who wrote what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from environment import env_on

from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import HOSTLER, Request
from hostler.engine.view import View
from hostler.engine.workloads.service import WorkloadService
from hostler.engine.workloads.vm_template import tune_of, tune_of_machine
from hostler.keys.families import ACTUAL, ARRIVAL, COMMAND, HANDLE, INSTANCE, TARGET, VM, WORKLOAD
from hostler.model.vm import OnNodeLoss, VmSpec
from hostler.model.workload import instance_parts
from hostler.model.workload_api import WorkloadApply, WorkloadScale

from .plane import PATIENCE, Host, Plane, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.control_plane import ControlPlane
    from hostler.engine.service import Service
    from hostler.model.workload import Actual, Target, WorkloadInstance
    from hostler.model.workload_api import WorkloadView
    from hostler.ports.store import Event

SPEC = VmSpec(cpus=1, memory_mib=64)


@dataclass
class WorkloadPlane(Plane):
    """Meanwhile, at every instant of the store, an instance and its target are there together, or neither is."""

    writers: dict[str, set[str]] = field(default_factory=dict)
    """Roles of processes that wrote targets, and actuals."""
    removers: dict[str, set[str]] = field(default_factory=dict)
    odd: str = ""
    most: int = 10**9
    """Machines that there may be at any instant."""
    seen_most: int = 0

    def more_controllers(self, host: Host, graph: ControlPlane) -> Sequence[Service]:  # noqa: ARG002 - as in Plane
        return (graph.workload_controller(),)

    def spawn(self, name: str) -> None:
        super().spawn(name)
        host = self.hosts[name]
        txn = host.wire.txn

        def noted(when: Any, then: Any, otherwise: Any = ()) -> Any:
            for operation in then:
                for what, key in (("target", TARGET), ("actual", ACTUAL)):
                    if key.match(getattr(operation, "key", "")) is not None:
                        wrote = self.writers if hasattr(operation, "value") else self.removers
                        wrote.setdefault(what, set()).add(host.role)
            return txn(when, then, otherwise)

        host.wire.txn = noted  # type: ignore[method-assign]

    def run(self, scenario: Any) -> Any:
        async def watched(plane: WorkloadPlane) -> Any:
            watching = asyncio.create_task(plane.watch())
            try:
                return await scenario(plane)
            finally:
                if watching.done():
                    watching.result()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                if plane.odd:
                    raise Wrong(plane.odd)

        return super().run(watched)

    async def watch(self) -> None:
        """Each revision whole: what a transaction does is there together."""
        there: dict[str, set[tuple[str, str]]] = {"instance": set(), "target": set(), "vm": set()}
        now = 0
        together: list[Event] = []
        async with self.store.watch("/", start_revision=1) as events:
            async for event in events:
                if event.kv.mod_revision != now:
                    self._check(now, there)
                    self._check_aim(now, together)
                    now, together = event.kv.mod_revision, []
                together.append(event)
                for what, key in (("instance", INSTANCE), ("target", TARGET), ("vm", VM)):
                    parts = key.match(event.kv.key)
                    if parts is not None:
                        one = (parts.get("workload", ""), parts.get("instance", parts.get("vm", "")))
                        (there[what].add if event.type == "put" else there[what].discard)(one)

    def _check(self, revision: int, there: dict[str, set[tuple[str, str]]]) -> None:
        self.seen_most = max(self.seen_most, len(there["vm"]))
        if there["instance"] != there["target"]:
            apart = there["instance"] ^ there["target"]
            self.odd = self.odd or f"revision {revision}: instance without target, or target without: {apart}"
        if len(there["vm"]) > self.most:
            self.odd = self.odd or f"revision {revision}: {len(there['vm'])} machines, {self.most} may be there"

    def _check_aim(self, revision: int, events: list[Event]) -> None:
        """Who is told to have an instance is its target, from that revision on; but where an agent hands it over."""
        puts = {event.kv.key: event.kv for event in events if event.type == "put"}
        if any(event.type == "delete" and ARRIVAL.match(event.kv.key) for event in events):
            return
        for kv in puts.values():
            command = COMMAND.entry(kv) if COMMAND.match(kv.key) else None
            ids = None if command is None else instance_parts(command.value.instance)
            if command is None or ids is None or command.value.deleting or command.value.departing is not None:
                continue
            aim = puts.get(TARGET.fill(**ids))
            if aim is None or TARGET.entry(aim).value.node != command.parts["node"]:
                self.odd = self.odd or f"revision {revision}: told {command}, target {aim}"

    # What a user does

    def service(self, view: View | None = None) -> WorkloadService:
        """Without a view that runs, it knows the wishes only: its answers have no counts."""
        new_id = next(iter(self.hosts.values())).new_id
        writer = Writer(self.store, clock=self.clock, new_id=new_id)
        view = view or View(self.store, clock=self.clock)
        return WorkloadService(self.store, writer, view, env_on(self.clock, self.rng))

    async def apply(self, *, view: View | None = None, **fields: Any) -> WorkloadView:
        wanted = WorkloadApply(**{"name": "web", "spec": SPEC, "on_node_loss": OnNodeLoss.RECREATE, **fields})
        return (await self.service(view).apply(Request(HOSTLER), wanted)).value

    async def scale(self, instances: int, **more: Any) -> None:
        await self.service().scale(Request(HOSTLER), "web", WorkloadScale(instances=instances, **more))

    async def delete(self) -> None:
        await self.service().delete(Request(HOSTLER), "web")

    # What there is

    async def instances(self) -> dict[int, WorkloadInstance]:
        return {int(e.parts["instance"]): e.value for e in (await INSTANCE.list(self.store)).entries}

    async def targets(self) -> dict[int, Target]:
        return {int(e.parts["instance"]): e.value for e in (await TARGET.list(self.store)).entries}

    async def actuals(self) -> dict[int, Actual]:
        return {int(e.parts["instance"]): e.value for e in (await ACTUAL.list(self.store)).entries}

    async def until(self, holds: Callable[[], Any], within: float = PATIENCE) -> None:
        end = self.clock.now() + within
        while not await holds():
            if self.failure is not None:
                raise self.failure
            if self.clock.now() > end:
                raise Wrong(f"not within {within:g} s: {await self.unmet()}; {await self.instances()}")
            await asyncio.sleep(0.25)

    async def met(self) -> None:
        """Until the workload is as it is wished for, and every record says the same. Wrong: not in time."""

        async def holds() -> bool:
            return await self.unmet() is None

        await self.until(holds)

    async def unmet(self) -> str | None:
        if (what := await self.unsettled()) is not None:
            return what
        entry = await WORKLOAD.get(self.store, workload="web")
        instances, targets, actuals = await self.instances(), await self.targets(), await self.actuals()
        if entry is None or entry.value.deleting:
            left = [instances, targets, actuals, (await VM.list(self.store)).entries]
            return f"left: {left}" if entry is not None or any(left) else None
        wish = entry.value
        if len(instances) != wish.instances or any(one.leaving for one in instances.values()):
            return f"{wish.instances} are wished for: {instances}"
        handles = {e.value.id: e.value for e in (await HANDLE.list(self.store)).entries}
        commands = {e.value.vm: e for e in (await COMMAND.list(self.store)).entries}
        vms = {e.value.id: e.value for e in (await VM.list(self.store)).entries}
        for number, one in instances.items():
            target, actual, handle = targets.get(number), actuals.get(number), handles[one.vm]
            if one.template != wish.template or target is None or actual is None:
                return f"{number}: {one}, {target}, {actual}"
            if tune_of_machine(vms[one.vm]) != tune_of(wish):
                return f"{number}: {vms[one.vm]}"
            command = commands[one.vm]
            aim = (command.parts["node"], one.vm, command.value.power, command.value.generation)
            if (target.node, target.vm, target.power, target.generation) != aim:
                return f"{number}: {target}; told {command}"
            seen = (handle.node, handle.state, handle.generation)
            if (actual.node, actual.state, actual.generation) != seen or actual.vm != one.vm:
                return f"{number}: {actual}; seen {handle}"
        return None

    def check_writers(self) -> None:
        """Targets are the leader's, actuals the agents'; the leader takes an actual away with its instance."""
        if self.writers != {"target": {"replica"}, "actual": {"agent"}}:
            raise Wrong(f"who wrote what: {self.writers}")
        if any(roles != {"replica"} for roles in self.removers.values()):
            raise Wrong(f"who removed what: {self.removers}")
