"""Plays a scenario in a world: its specs, then its timeline, then a period without faults.

Actions of users are sent to live replicas until one answers, or are done by hand.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from hostler.engine.inventory.inventory_file import inventory_in
from hostler.engine.request import HOSTLER
from hostler.errors import HostlerError, Invalid, NotFound
from hostler.model.inventory_api import Drain, HardwareSet
from hostler.model.lab import LabDecommission, LabRequest
from hostler.model.name import fold
from hostler.model.workload_api import WorkloadScale
from hostler.sim.fault import FaultBase
from hostler.sim.hardware import Target, perform, propose
from hostler.sim.invariants.blueprints import unmet_blueprints
from hostler.sim.invariants.converged import Unmet, unmet, unmet_now
from hostler.sim.invariants.outcomes import UNKNOWN, Asked, Subject, shape
from hostler.sim.scenario import actions
from hostler.sim.world import WorldConfig
from hostler.sim.world.hardware import rack_plans
from hostler.sim.world.replica import Rate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.sim.scenario.actions import Act
    from hostler.sim.scenario.scenario import Moment, Scenario
    from hostler.sim.world import ReplicaServices, World


SOON = 5.0
"""Seconds for which a request that should be refused is retried."""


class Hands:
    """Performs actions, and remembers what was acknowledged."""

    def __init__(self, world: World, inventory: Inventory, *, within: float) -> None:
        self._world, self._within = world, within
        self.inventory = inventory
        """The present hardware, as far as operators know."""
        self.promised: dict[tuple[str, str, str], None] = {}
        """Machines whose creation was acknowledged and whose deletion was not requested."""
        self._deletions: Counter[tuple[str, str, str]] = Counter()
        """How often the deletion of a virtual machine was requested."""
        self.asked = Asked(world)
        self._saved: tuple[dict[tuple[str, str, str], None], dict[Subject, list[Any]]] = {}, {}
        """The promised machines and the acknowledged requests at the time of the last backup."""

    async def do(self, what: Act) -> None:
        """Perform an action until it is answered. Raise a refusal or a timeout."""
        within = SOON if what.refused else self._within
        match what:
            case actions.LabStart() | actions.LabStop():
                self._ask_for_labs(what)
            case actions.Repair(on=on):
                self.repair(on)
            case actions.Backup() | actions.Restore():
                await self._recover(what)
            case actions.LoadInventory() | actions.SetHardware():
                await self._change_inventory(what, within)
            case actions.DrainNodes() | actions.ActivateNodes() | actions.ConfirmOff() | actions.ReleaseBrake():
                await self._change_nodes(what, within)
            case actions.CreateVm() | actions.DeleteVm():
                await self._change_machines(what, within)
            case actions.Apply() | actions.Scale() | actions.Delete():
                await self._change_workload(what, within)
            case actions.ApplyBlueprint() | actions.DeleteBlueprint() | actions.RollbackBlueprint():
                await self._change_blueprint(what, within)
            case actions.Calls(artifact=artifact):
                self._world.traffic.set(
                    artifact,
                    Rate(per_second=what.per_second, errors=what.errors, p95_ms=what.p95_ms, in_flight=what.in_flight),
                )
            case _:
                raise Invalid(f"{type(what).__name__}: unknown action")

    def repair(self, on: str = "") -> int:
        """Perform the proposed repairs of a component, or of everything that should work; return their number."""
        world = self._world
        target = Target(rack_plans(self.inventory, world.plan.blades))
        proposals = [proposal for proposal in propose(target, world.racks) if on in ("", proposal.component)]
        for proposal in proposals:
            world.log.add("repair", proposal.component, f"{proposal.text}: {proposal.reason}")
            for event in perform(proposal):
                world.apply(event, cause=proposal.id)
        return len(proposals)

    def _ask_for_labs(self, what: actions.LabStart | actions.LabStop) -> None:
        if isinstance(what, actions.LabStart):
            for user in what.labs.users:
                self.asked.lab(user, what.labs.lab_id)
                self._world.lab_redis.push("provision", LabRequest(webuserid=user, lab_id=what.labs.lab_id).encode())
            return
        for user in what.users:
            self.asked.lab(user, None)
            self._world.lab_redis.push("decommission", LabDecommission(webuserid=user).encode())

    async def _recover(self, what: actions.Backup | actions.Restore) -> None:
        if isinstance(what, actions.Backup):
            await self._world.recovery.take_backup()
            self._saved = dict(self.promised), self.asked.known()
            return
        promised, known = self._saved
        await self._world.recovery.restore()
        # Machines created after the backup are gone with the store, and their disks are retained.
        self.promised = {name: None for name in self.promised if name in promised}
        self.asked.go_back(known)

    async def _change_machines(self, what: actions.CreateVm | actions.DeleteVm, within: float) -> None:
        if isinstance(what, actions.CreateVm):
            for name in what.vms.names:
                await self._create(what.vms, name, within)
            return
        org, project = what.org, what.project
        for name in what.names:
            self.promised.pop((org, project, name), None)
            self._deletions[org, project, name] += 1
            self.asked.deleted[org, project, name] = None
            with self.asked.asking({("vm", org, project, name): False}):
                await self._world.ask(lambda d, n=name: d.vms.delete(d.request, org, project, n), within=within)  # type: ignore[misc]

    async def _create(self, spec: actions.RequestedVm, name: str, within: float) -> None:
        wanted, subject = msgspec.structs.replace(spec.wanted, name=name), (spec.org, spec.project, name)
        deletions = self._deletions[subject]
        with self.asked.asking({("vm", *subject): True}):
            await self._world.ask(lambda d: d.vms.create(d.request, spec.org, spec.project, wanted), within=within)
        # otherwise either may have been executed last
        if wanted.expires_in is None and self._deletions[subject] == deletions:
            self.promised[subject] = None

    async def _change_workload(self, what: actions.Apply | actions.Scale | actions.Delete, within: float) -> None:
        def do(services: ReplicaServices) -> Awaitable[Any]:
            match what:
                case actions.Apply(workload=wanted):
                    return services.workloads.apply(services.request, wanted)
                case actions.Scale(workload=name, instances=number):
                    return services.workloads.scale(services.request, name, WorkloadScale(instances=number))
                case actions.Delete(workload=name):
                    return services.workloads.delete(services.request, name)

        with self.asked.asking(_workload_facts(what)):
            await self._world.ask(do, within=within)

    async def _change_blueprint(
        self, what: actions.ApplyBlueprint | actions.DeleteBlueprint | actions.RollbackBlueprint, within: float
    ) -> None:
        def do(services: ReplicaServices) -> Awaitable[Any]:
            match what:
                case actions.ApplyBlueprint(name=name, blueprint=wanted):
                    return services.blueprints.apply(services.request, name, wanted)
                case actions.DeleteBlueprint(name=name):
                    return services.blueprints.delete(services.request, name)
                case actions.RollbackBlueprint(name=name, to=to):
                    return services.blueprints.rollback(services.request, name, to)

        there = not isinstance(what, actions.DeleteBlueprint)
        with self.asked.asking({("blueprint", what.name, "there"): there} | _slices(what)):
            await self._world.ask(do, within=within)

    async def _change_inventory(self, what: actions.LoadInventory | actions.SetHardware, within: float) -> None:
        """Change the inventory; after an accepted load, change the racks themselves, too."""
        if isinstance(what, actions.LoadInventory):
            inventory = what.inventory
            await self._world.ask(lambda d: d.inventory.load(d.request, inventory), within=within)
            self.inventory = inventory
            self._world.revise(inventory)
            return
        change = HardwareSet(
            enabled=UNSET if what.enabled is None else what.enabled,
            condition=UNSET if what.condition is None else what.condition,
        )

        def do(services: ReplicaServices) -> Awaitable[Any]:
            request, inventory, (first, _, second) = services.request, services.inventory, what.on.partition("/")
            match what.level:
                case "region":
                    return inventory.set_region(request, first, change)
                case "zone":
                    return inventory.set_zone(request, first, second, change)
                case "rack":
                    return inventory.set_rack(request, first, change)
                case _:
                    return inventory.set_part(request, first, second, change)

        await self._world.ask(do, within=within)
        shown = await self._world.ask(lambda d: d.inventory.show(HOSTLER), within=within)
        self.inventory = inventory_in({"regions": list(shown.regions), "racks": list(shown.racks)})

    async def _change_nodes(
        self,
        what: actions.DrainNodes | actions.ActivateNodes | actions.ConfirmOff | actions.ReleaseBrake,
        within: float,
    ) -> None:
        if isinstance(what, actions.ReleaseBrake):
            await self._world.ask(lambda d: d.nodes.release_brake(d.request), within=within)
            return
        for node in what.nodes:
            await self._change_node(what, node, self._world.clock.now() + within)

    async def _change_node(
        self, what: actions.DrainNodes | actions.ActivateNodes | actions.ConfirmOff, node: str, end: float
    ) -> None:
        def do(services: ReplicaServices) -> Awaitable[Any]:
            match what:
                case actions.DrainNodes(mode=mode):
                    return services.nodes.drain(services.request, node, Drain(mode=mode))
                case actions.ActivateNodes():
                    return services.nodes.activate(services.request, node)
                case actions.ConfirmOff():
                    return services.nodes.confirm_off(services.request, node)

        duty: dict[Subject, Any] = {}
        if not isinstance(what, actions.ConfirmOff):
            duty["node", node] = what.mode if isinstance(what, actions.DrainNodes) else None
        with self.asked.asking(duty):
            while True:
                left = end - self._world.clock.now()
                try:
                    await self._world.ask(do, within=left)
                    return
                except NotFound:  # it has not registered yet
                    if left <= 1.0:
                        raise
                await self._world.sleep(1.0)


def _slices(what: actions.ApplyBlueprint | actions.DeleteBlueprint | actions.RollbackBlueprint) -> dict[Subject, Any]:
    """Return the content of a blueprint after the request. Only the store knows the content after a rollback."""
    if isinstance(what, actions.ApplyBlueprint):
        return {("blueprint", what.name, "said"): what.blueprint}
    return {("blueprint", what.name, "said"): UNKNOWN}


def _workload_facts(what: actions.Apply | actions.Scale | actions.Delete) -> dict[Subject, Any]:
    """Return the state of a workload after the request."""
    match what:
        case actions.Delete(workload=name):
            return {("workload", fold(name), "there"): False}
        case actions.Scale(workload=name, instances=number):
            return {("workload", fold(name), "instances"): number}
        case actions.Apply(workload=wanted):
            name = fold(wanted.name)
            found: dict[Subject, Any] = {("workload", name, "there"): True, ("workload", name, "shape"): shape(wanted)}
            if wanted.instances is not UNSET:
                found["workload", name, "instances"] = wanted.instances
            return found


LOOK_EVERY = 1.0
"""Seconds between two checks whether the state matches the specs; skipped while nothing changes."""
AGAIN_EVERY = 10.0
"""Seconds between checks even if the store has not changed: places change without the store."""
REPAIR_EVERY = 5.0


def plan_of(scenario: Scenario) -> WorldConfig:
    """Return the configuration of the world of a scenario."""
    asked = [moment.what for moment in scenario.timeline]
    return WorldConfig(
        inventory=scenario.inventory,
        replicas=scenario.replicas,
        labs=bool(scenario.labs) or any(isinstance(what, actions.LabStart) for what in asked),
        catalogue=scenario.catalogue,
        slices=bool(scenario.blueprints) or any(isinstance(what, actions.ApplyBlueprint) for what in asked),
        **scenario.settings,
    )


class Player:
    """Plays one scenario in one world.

    `wrong` is called for a request with a wrong answer, `missed` for an expectation that is not met.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        moments: Sequence[Moment],
        *,
        wrong: Callable[[str, str], None] = lambda _, __: None,
        missed: Callable[[Unmet], None] = lambda _: None,
    ) -> None:
        self._world, self._scenario, self._moments = world, scenario, moments
        self._wrong, self._missed = wrong, missed
        self.hands = Hands(world, scenario.inventory, within=scenario.length + scenario.settle)
        self.asked = 0
        self._asking: dict[asyncio.Task[None], str] = {}

    async def play(self, coming: Callable[[int], None] = lambda _: None) -> None:
        """Play until the scenario's length is over. `coming` is called with the number of events still to come."""
        world = self._world
        for what, text in self._wishes():
            self._ask(what, text)
        for number, moment in enumerate(self._moments):
            coming(len(self._moments) - number)
            await world.sleep(moment.at - world.clock.now())
            self._happen(moment)
        coming(0)
        await world.sleep(self._scenario.length - world.clock.now())

    async def settle(self) -> list[Unmet]:
        """Lift every fault, repair what is broken, and wait until the state matches the specs.

        Return what does not match in time.
        """
        world = self._world
        end = world.clock.now() + self._scenario.settle
        for id_ in tuple(world.faults):
            world.lift(id_)
        repair_at = look_at = world.clock.now()
        seen = -1
        left: list[Unmet] = []
        pending = self._scenario.pending
        while True:
            now = world.clock.now()
            if now >= repair_at:
                self.hands.repair()
                repair_at = now + REPAIR_EVERY
            if world.chronicle.revision != seen or now >= look_at or now >= end:
                seen, look_at = world.chronicle.revision, now + AGAIN_EVERY
                found = [*await unmet(world), *await self.hands.asked.unmet()]
                left = _without_waiting(found, pending) + await unmet_blueprints(world, self._scenario.given_up)
                if (not left and not self._asking) or now >= end:
                    break
            await world.sleep(LOOK_EVERY)
        for task, text in self._asking.items():
            task.cancel()
            self._wrong(text, "not answered")
        await asyncio.gather(*self._asking, return_exceptions=True)
        return left

    def _wishes(self) -> Iterator[tuple[Act, str]]:
        """Yield the specs at the start."""
        scenario = self._scenario
        for workload in scenario.workloads:
            yield actions.Apply(workload=workload), f"apply workload {workload.name}"
        for vms in scenario.vms:
            yield actions.CreateVm(vms=vms), f"create vm {vms.names[0]}"
        for name, blueprint in scenario.blueprints.items():
            yield actions.ApplyBlueprint(name=name, blueprint=blueprint), f"apply blueprint {name}"
        for labs in scenario.labs:
            yield actions.LabStart(labs=labs), f"start lab of {labs.users[0]}"

    def _happen(self, moment: Moment) -> None:
        what: Any = moment.what
        if not isinstance(what, FaultBase):
            self._ask(what, moment.told)
            return
        try:
            self._world.inject(what)  # type: ignore[arg-type]
        except HostlerError as error:  # a component may have been removed since the file was read
            self._world.log.add("fault", what.on or what.name, f"no effect: {error}")

    def _ask(self, what: Act, text: str) -> None:
        self.asked += 1
        self._world.log.add("asked", text, "should be refused" if what.refused else "")
        task = self._world.spawn(self._perform(what, text), f"act: {text}")
        self._asking[task] = text
        task.add_done_callback(lambda done: self._asking.pop(done, None))

    async def _perform(self, what: Act, text: str) -> None:
        try:
            if isinstance(what, actions.Expect):
                found = _without_waiting(await unmet_now(self._world), what.pending)
                for difference in [*found, *await unmet_blueprints(self._world, what.given_up)]:
                    self._missed(difference)
            else:
                await self.hands.do(what)
        except HostlerError as error:
            self._world.log.add("refused", text, str(error))
            if not what.refused:
                self._wrong(text, f"{type(error).__name__}: {error}")
        else:
            self._world.log.add("done", text, "")
            if what.refused:
                self._wrong(text, "it succeeded, but should have been refused")


def _without_waiting(found: list[Unmet], pending: int) -> list[Unmet]:
    """Remove what waits for capacity, if the number is as expected."""
    waiting = sum(difference.waits for difference in found)
    if waiting == pending:
        return [difference for difference in found if not difference.waits]
    return [Unmet("the world", f"{waiting} wait for capacity, {pending} should"), *found] if pending else found
