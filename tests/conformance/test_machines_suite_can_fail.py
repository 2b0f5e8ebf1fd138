# ruff: noqa: ARG002 - a defect often is an argument that is ignored
"""The machines suite finds what is wrong: each mutant has one defect, and one claim that must not hold of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler import Closed, Invalid, NotFound, Refused
from hostler.drivers.machines.simulated import host as places
from hostler.drivers.machines.simulated.console import SimulatedConsole
from hostler.drivers.machines.simulated.host import switched_off
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.vm import MachineState
from hostler.ports.machines import ChannelKind
from hostler.testing import MemoryHost, SimulatedMachines, check_machines, machine_claims

from .simulated import SETUP, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.ports.machines import Channel, Machine, MachinePlan, Offer, RetainedMachine

MUTANTS: list[tuple[type[SimulatedMachines], type[MemoryHost], str]] = []
replace = msgspec.structs.replace


def found_by(claim: str, place: type[MemoryHost] = MemoryHost) -> Callable[[Any], Any]:
    def register(mutant: Any) -> Any:
        if issubclass(mutant, SimulatedMachines):
            MUTANTS.append((mutant, place, claim))
        else:
            MUTANTS.append((type(mutant.__name__, (SimulatedMachines,), {}), mutant, claim))
        return mutant

    return register


def cut_of(verb: str) -> str:
    return f"{verb}_that_is_cut_anywhere_is_finished_by_repeating_it"


class Sound(SimulatedMachines):
    def changed(self, vm: str, **fields: Any) -> Machine:
        row = replace(self._require_row(vm), **fields)
        self._place.put([row])
        return self._machine(row)


@found_by("a_machine_is_made_stopped_and_as_planned")
class StartsWhatItMakes(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        await super().create(plan)
        return await self.start(plan.label.vm)


@found_by("two_machines_have_ids_of_their_own")
class OneIdForAll(Sound):
    def _machine(self, row: Any) -> Machine:
        return replace(super()._machine(row), id="sim")


@found_by("making_a_machine_again_changes_nothing")
class MakesItAnew(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        await self.delete(plan.label.vm)
        return await super().create(plan)


@found_by("a_stopped_machine_takes_the_shape_of_the_plan")
class KeepsTheFirstShape(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        there = await self.inspect(plan.label.vm)
        return there if there is not None and there.state is MachineState.STOPPED else await super().create(plan)


@found_by("a_running_machine_is_left_as_it_is_by_another_plan")
class ShapesWhatRuns(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        await super().create(plan)
        return self.changed(plan.label.vm, spec=plan.spec)


@found_by("a_machine_with_another_label_is_not_taken_over")
class TakesOver(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        if await self.inspect(plan.label.vm) is not None:
            self.changed(plan.label.vm, label=plan.label)
        return await super().create(plan)


@found_by("an_image_that_does_not_exist_is_refused_and_leaves_nothing")
class LooksForTheImageTooLate(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        if plan.spec.image:
            await super().create(replace(plan, spec=replace(plan.spec, image="")))
        return await super().create(plan)


@found_by("a_running_machine_is_not_started_again")
class StartsAgain(Sound):
    async def start(self, vm: str) -> Machine:
        if (await self.inspect(vm) or self._require_row(vm)).state is MachineState.RUNNING:
            self.changed(vm, boots=self._require_row(vm).boots + 1)
        return await super().start(vm)


@found_by("a_machine_that_is_asked_to_stop_stops")
class OnlyAsks(Sound):
    async def stop(self, vm: str, *, grace: float) -> Machine:
        return self.changed(vm, state=MachineState.STOPPING) if grace else await super().stop(vm, grace=0)


@found_by("a_machine_that_is_switched_off_is_stopped")
class NeverSwitchesOff(Sound):
    async def stop(self, vm: str, *, grace: float) -> Machine:
        return await super().stop(vm, grace=grace) if grace else self._machine(self._require_row(vm))


@found_by("stopping_a_stopped_machine_is_fine")
class RefusesToStopTwice(Sound):
    async def stop(self, vm: str, *, grace: float) -> Machine:
        if self._require_row(vm).on is None:
            raise Refused("it is stopped")
        return await super().stop(vm, grace=grace)


@found_by("a_destroyed_machine_is_gone_running_or_not")
@found_by("whatever_was_cut_can_be_destroyed")
class SparesWhatRuns(Sound):
    async def delete(self, vm: str) -> None:
        row = self._row(vm)
        if row is None or row.on is None:
            await super().delete(vm)


@found_by("a_machine_of_the_same_name_starts_from_nothing")
class RemembersTheDead(Sound):
    async def delete(self, vm: str) -> None:
        row = self._row(vm)
        await super().delete(vm)
        self.graves = getattr(self, "graves", {}) | {vm: row}

    async def create(self, plan: MachinePlan) -> Machine:
        grave = getattr(self, "graves", {}).get(plan.label.vm)
        machine = await super().create(plan)
        return machine if grave is None else self.changed(plan.label.vm, resets=grave.resets)


@found_by("destroying_what_is_not_there_is_fine")
class MissesTheAbsent(Sound):
    async def delete(self, vm: str) -> None:
        self._require_row(vm)
        await super().delete(vm)


@found_by("no_such_machine_is_said_so_by_every_verb")
class AbsentIsUnlikely(Sound):
    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        if self._row(vm) is None:
            raise Refused("hm")
        return await super().drop_snapshot(vm, name)


@found_by("what_cannot_be_is_refused")
class TakesNegativeGrace(Sound):
    async def stop(self, vm: str, *, grace: float) -> Machine:
        return await super().stop(vm, grace=max(grace, 0.0) if grace < 0 else grace)


@found_by("everything_is_listed_with_its_label")
class ListsWhatRuns(Sound):
    async def list(self) -> Sequence[Machine]:
        return [m for m in await super().list() if m.state is MachineState.RUNNING]


@found_by("what_happens_to_one_machine_happens_to_no_other")
class DropsAllSnapshots(Sound):
    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        for other in list(self._place.contents.rows):
            await super().drop_snapshot(other, name)
        return self._machine(self._require_row(vm))


@found_by("a_node_has_room_for_machines")
class CapacityShrinks(Sound):
    async def offer(self) -> Offer:
        offer = await super().offer()
        cpus = offer.capacity.cpus - len(self._place.contents.rows)
        return replace(offer, capacity=replace(offer.capacity, cpus=cpus))


@found_by("a_reset_is_done_once_for_each_number")
class ResetsAgain(Sound):
    async def reset(self, vm: str, number: int) -> Machine:
        if self._require_row(vm).resets >= number:
            return self.changed(vm, boots=self._require_row(vm).boots + 1)
        return await super().reset(vm, number)


@found_by("a_reset_is_done_once_for_each_number")
class OnlyCountsResets(Sound):
    async def reset(self, vm: str, number: int) -> Machine:
        return self.changed(vm, resets=max(number, self._require_row(vm).resets))


@found_by("a_stopped_machine_only_counts_its_resets")
class ResetStarts(Sound):
    async def reset(self, vm: str, number: int) -> Machine:
        await super().reset(vm, number)
        return await self.start(vm)


@found_by("numbers_are_kept_over_a_stop_and_a_new_shape")
class ForgetsNumbers(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        await super().create(plan)
        return self.changed(plan.label.vm, resets=0)


@found_by("a_snapshot_is_there_until_it_is_dropped")
class OneSnapshotOnly(Sound):
    async def snapshot(self, vm: str, name: str) -> Machine:
        await super().snapshot(vm, name)
        row = self._require_row(vm)
        return self.changed(vm, snapshots={name: row.snapshots[name]})


@found_by("a_restore_leaves_the_machine_stopped")
class RestoreStarts(Sound):
    async def restore(self, vm: str, name: str, number: int) -> Machine:
        await super().restore(vm, name, number)
        return await self.start(vm)


@found_by("a_restore_is_done_once_for_each_number")
class RestoresAgain(Sound):
    async def restore(self, vm: str, name: str, number: int) -> Machine:
        self.changed(vm, restored=0)
        return await super().restore(vm, name, number)


@found_by("a_restore_that_was_done_needs_its_snapshot_no_more")
class LooksForTheSnapshotFirst(Sound):
    async def restore(self, vm: str, name: str, number: int) -> Machine:
        if name not in self._require_row(vm).snapshots:
            raise Refused("no such snapshot")
        return await super().restore(vm, name, number)


@found_by("a_snapshot_that_does_not_exist_is_refused_and_the_machine_is_not_called_absent")
class CallsTheMachineAbsent(Sound):
    async def restore(self, vm: str, name: str, number: int) -> Machine:
        try:
            return await super().restore(vm, name, number)
        except Refused:
            raise NotFound("no such snapshot") from None


@found_by("a_restored_disk_is_as_it_was_when_the_snapshot_was_taken")
class OverwritesSnapshots(Sound):
    async def snapshot(self, vm: str, name: str) -> Machine:
        await self.drop_snapshot(vm, name)
        return await super().snapshot(vm, name)


@found_by("a_restored_disk_is_as_it_was_when_the_snapshot_was_taken")
class RestoresNothing(Sound):
    async def restore(self, vm: str, name: str, number: int) -> Machine:
        disk = self._require_row(vm).disk
        await super().restore(vm, name, number)
        return self.changed(vm, disk=disk)


@found_by("a_disk_outlives_a_stop_a_reset_and_a_new_shape_but_not_its_machine")
class StopWipesTheDisk(Sound):
    async def stop(self, vm: str, *, grace: float) -> Machine:
        await super().stop(vm, grace=grace)
        return self.changed(vm, disk="")


@found_by("a_fenced_machine_that_is_not_held_stops_by_itself")
class NeverLetsGo(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        await super().hold(seconds + 100, since=since)


@found_by("a_fenced_machine_that_is_not_held_stops_by_itself")
class LetsGoEarly(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        await super().hold(seconds / 2, since=since)


@found_by("a_fenced_machine_that_is_held_again_and_again_runs_on")
class HoldsOnce(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        until = self._place.contents.held_until
        if until is None or not 0 < seconds < 100 or not self.clock.now() < until < self.clock.now() + 100:
            await super().hold(seconds, since=since)


@found_by("a_fenced_machine_whose_time_has_run_out_does_not_start")
class StartsWhatIsNotHeld(Sound):
    def _check_held(self, row: Any, now: float) -> None:
        pass


@found_by("holding_starts_nothing_that_has_stopped")
class HoldStarts(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        await super().hold(seconds, since=since)
        if seconds > 0:
            for row in list(self._place.contents.rows.values()):
                if row.detail == places.LAPSED:
                    await self.start(row.vm)


@found_by("a_hold_in_the_past_is_over_at_once")
class PastIsLong(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        await super().hold(abs(seconds), since=since)


@found_by("a_shorter_hold_counts_and_not_the_longer_one_before")
class OnlyLengthens(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        until = self._place.contents.held_until or 0
        left = until - self.clock.now()
        await super().hold(max(seconds, left) if left < 100 else seconds, since=since)


@found_by("a_hold_is_counted_from_the_instant_that_is_named_unless_that_is_to_come")
class CountsFromTheCall(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        await super().hold(seconds)


@found_by("a_machine_that_is_not_fenced_needs_no_hold")
@found_by("every_fenced_machine_stops_and_no_other")
class FencesAll(Sound):
    async def hold(self, seconds: float, *, since: float | None = None) -> None:
        await super().hold(seconds, since=since)
        if seconds <= 0:
            now = self.clock.now()
            self._place.put(
                [switched_off(row, now) for row in self._place.contents.rows.values() if row.on is not None]
            )


@found_by("a_fenced_machine_stops_though_nobody_has_it_open")
class HoldDiesWithTheDriver(Sound):
    async def aclose(self) -> None:
        if self._place.belongs_to(self):
            self._place.hold(self.clock.now() + 1000, self.clock.now())
        await super().aclose()


@found_by("a_fenced_machine_runs_until_its_time_though_nobody_has_it_open")
class ClosingLetsGo(Sound):
    async def aclose(self) -> None:
        if self._place.belongs_to(self):
            self._place.hold(0, self.clock.now())
        await super().aclose()


@found_by(cut_of("a_create"))
class MistakesTheBegunForTheMade(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        row = self._row(plan.label.vm)
        return await super().create(plan) if row is None else self._machine(row)


@found_by(cut_of("a_new_shape"))
class ShapesByDeleting(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        row = self._row(plan.label.vm)
        if row is not None and row.spec != plan.spec:
            self._place.delete(row.vm, self.clock.now())
            await asyncio.sleep(0)
        return await super().create(plan)


@found_by(cut_of("a_start"))
class MistakesStartingForRunning(Sound):
    async def start(self, vm: str) -> Machine:
        row = self._require_row(vm)
        return self._machine(row) if row.state is MachineState.STARTING else await super().start(vm)


@found_by(cut_of("a_graceful_stop"))
class MistakesStoppingForStopped(Sound):
    async def stop(self, vm: str, *, grace: float) -> Machine:
        row = self._require_row(vm)
        return self._machine(row) if row.state is MachineState.STOPPING else await super().stop(vm, grace=grace)


@found_by(cut_of("a_reset"))
class CountsTheResetInMemory(Sound):
    async def reset(self, vm: str, number: int) -> Machine:
        self.done = getattr(self, "done", set())
        if (vm, self._require_row(vm).number, number) in self.done:
            return self._machine(self._require_row(vm))
        self.done.add((vm, self._require_row(vm).number, number))
        await asyncio.sleep(0)
        return await super().reset(vm, number)


@found_by(cut_of("a_snapshot"))
class SnapshotOnlyOnce(Sound):
    async def snapshot(self, vm: str, name: str) -> Machine:
        if self._require_row(vm).detail == "taking":
            return self._machine(self._require_row(vm))
        self.changed(vm, detail="taking")
        return await super().snapshot(vm, name)


@found_by(cut_of("a_restore"))
class CountsTheRestoreFirst(Sound):
    async def restore(self, vm: str, name: str, number: int) -> Machine:
        if self._require_row(vm).restored < number:
            self.changed(vm, restored=number)
            await asyncio.sleep(0)
            self.changed(vm, restored=0)
        return await super().restore(vm, name, number)


@found_by(cut_of("a_dropped_snapshot"))
class DropsTheMachineForAWhile(Sound):
    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        row = self._require_row(vm)
        self._place.delete(vm, self.clock.now())
        await asyncio.sleep(0)
        self._place.put([row])
        return await super().drop_snapshot(vm, name)


@found_by(cut_of("a_delete"))
class ForgetsBeforeItIsGone(Sound):
    async def delete(self, vm: str) -> None:
        self.hidden = getattr(self, "hidden", set()) | {vm}
        await super().delete(vm)
        self.hidden.discard(vm)

    async def inspect(self, vm: str) -> Machine | None:
        return None if vm in getattr(self, "hidden", set()) else await super().inspect(vm)


@found_by("a_machine_that_was_half_destroyed_is_made_again")
class HalfDestroyedForGood(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        row = self._row(plan.label.vm)
        return self._machine(row) if row is not None and "deletion" in row.detail else await super().create(plan)


@found_by("machines_outlive_the_driver")
class ClosingStops(Sound):
    async def aclose(self) -> None:
        if self._place.belongs_to(self):
            for vm in list(self._place.contents.rows):
                await self.stop(vm, grace=0)
        await super().aclose()


@found_by("a_destroyed_machine_does_not_come_back")
class Ghosts(MemoryHost):
    def _load(self) -> None:
        for row in getattr(self, "buried", []):
            self.contents.apply(row)

    def delete(self, vm: str, now: float) -> None:
        self.buried = [*getattr(self, "buried", []), self.contents.rows[vm]]
        super().delete(vm, now)


@found_by("a_place_keeps_its_id")
class NamelessPlace(Sound):
    @property
    def place(self) -> str:
        return str(id(self))


@found_by("a_place_is_open_once")
class AnybodyMay(MemoryHost):
    def open(self, opener: object) -> None:
        self.disown()
        super().open(opener)


@found_by("a_driver_that_is_not_open_does_nothing")
class AnswersWhenClosed(Sound):
    async def inspect(self, vm: str) -> Machine | None:
        try:
            return await super().inspect(vm)
        except Closed:
            return None


@found_by("verbs_of_one_machine_at_once_leave_it_whole")
class ForeignErrors(Sound):
    async def start(self, vm: str) -> Machine:
        row = self._place.contents.rows[vm]
        await self.clock.sleep(1)
        assert self._place.contents.rows[vm].number == row.number
        return await super().start(vm)


@found_by("a_console_ends_when_its_machine_goes_off")
class EndlessConsole(Sound):
    def running(self, vm: str, since: float) -> Any:
        return super().running(vm, since) or object()

    def ends_at(self, row: Any) -> float | None:
        return None


@found_by("a_console_ends_when_its_machine_is_not_held")
class ConsoleNeverLooks(Sound):
    def ends_at(self, row: Any) -> float | None:
        return None


@found_by("a_machine_that_is_off_or_absent_has_no_console")
class ConsoleOfNothing(Sound):
    async def plug(self, console: Any, vm: str) -> Any:
        try:
            return await super().plug(console, vm)
        except NotFound:
            raise Invalid("off") from None


@found_by("a_started_machine_runs")
class StartsByHalf(Sound):
    async def start(self, vm: str) -> Machine:
        await super().start(vm)
        return self.changed(vm, state=MachineState.STARTING)


@found_by("a_machine_runs_again_after_a_stop")
class RunsOnce(Sound):
    async def start(self, vm: str) -> Machine:
        return await super().start(vm) if not self.intervals(vm) else self._machine(self._require_row(vm))


@found_by("machines_are_made_and_run_side_by_side")
class OnePlanForAll(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        self.plan = plan
        await self.clock.sleep(0.01)
        return await super().create(self.plan)


@found_by("a_stopped_machine_has_snapshots_too")
class SnapshotsOfWhatRuns(Sound):
    async def snapshot(self, vm: str, name: str) -> Machine:
        if self._require_row(vm).on is None:
            raise Refused("it is off")
        return await super().snapshot(vm, name)


class MuteConsole(SimulatedConsole):
    def _say(self, data: bytes) -> None:
        pass


@found_by("a_console_tells_something_when_typed_at")
class Mute(Sound):
    def channel(self, vm: str, door: ChannelKind) -> Channel:
        return MuteConsole(self, vm) if door is ChannelKind.CONSOLE else super().channel(vm, door)


@found_by("a_console_ends_when_its_machine_goes_off")
class LogsWhatRuns(Sound):
    def channel(self, vm: str, door: ChannelKind) -> Channel:
        return SimulatedConsole(self, vm) if door is ChannelKind.LOG else super().channel(vm, door)


@found_by("a_console_is_opened_again_and_again")
class OneConsole(Sound):
    async def plug(self, console: Any, vm: str) -> Any:
        if getattr(self, "plugged", False):
            raise NotFound("somebody is there")
        self.plugged = True
        return await super().plug(console, vm)


@found_by(cut_of("a_stop_at_once"))
class PullsThePlugOfAll(Sound):
    async def stop(self, vm: str, *, grace: float) -> Machine:
        others = [row for row in self._place.contents.rows.values() if row.on is not None and row.vm != vm]
        self._place.put([replace(row, state=MachineState.STOPPING) for row in others])
        await asyncio.sleep(0)
        self._place.put(others)
        return await super().stop(vm, grace=grace)


@found_by("a_machine_becomes_available_and_its_doors_lead_inside")
class ForEverOnItsWay(Sound):
    async def inspect(self, vm: str) -> Machine | None:
        machine = await super().inspect(vm)
        return machine and replace(machine, readiness=None)


@found_by("a_machine_that_switches_itself_off_is_stopped_and_told_of")
class TellsNobody(Sound):
    def listen(self, changed: Any) -> None:
        pass


# Handed to another place: the mutant is at both ends.


@found_by("a_running_machine_that_is_sent_goes_on_at_the_other_place")
class RunsAsSoonAsItHasArrived(Sound):
    async def takes(self, vm: str, message: Any) -> None:
        await super().takes(vm, message)
        if message.last:
            await self.start(vm)


@found_by("a_machine_that_has_departed_goes_on_where_it_was_if_it_is_started")
class ForgetsItsMemory(Sound):
    def _depart(self, vm: str, now: float) -> Any:
        return replace(super()._depart(vm, now), memory=False)


@found_by("a_machine_that_is_off_goes_with_its_disk_and_one_that_runs_does_not_go_so")
class SendsWhatRunsAsIfItWereOff(Sound):
    def _check_sendable(self, row: Any, number: int, *, live: bool) -> None:
        super()._check_sendable(row, number, live=True)


@found_by("what_has_arrived_stays_though_it_is_received_again")
class BeginsAnew(Sound):
    async def receive(self, plan: MachinePlan, number: int) -> Machine:
        await super().receive(plan, number)
        return self.changed(plan.label.vm, disk="", whole=False)


@found_by("a_send_that_was_done_is_done_when_it_is_repeated")
class SendsOnce(Sound):
    async def send(self, vm: str, number: int, connect: Any, *, live: bool = True) -> Machine:
        if self._require_row(vm).state is MachineState.DEPARTED:
            raise Refused("it has departed")
        return await super().send(vm, number, connect, live=live)


@found_by("one_that_has_departed_is_not_sent_as_another_move")
class SendsWhatHasGone(Sound):
    def _check_sendable(self, row: Any, number: int, *, live: bool) -> None:
        if row.state is not MachineState.DEPARTED:
            super()._check_sendable(row, number, live=live)


@found_by("one_that_was_not_sent_does_not_start")
class StartsWhatIsNotThere(Sound):
    def _check_arrived(self, row: Any) -> None:
        pass


@found_by("a_machine_whose_other_place_cannot_be_reached_goes_on")
class LostOnTheWay(Sound):
    async def send(self, vm: str, number: int, connect: Any, *, live: bool = True) -> Machine:
        self.changed(vm, disk="")
        return await super().send(vm, number, connect, live=live)


@found_by("nothing_arrives_where_a_machine_stands")
class MakesRoomByForce(Sound):
    async def receive(self, plan: MachinePlan, number: int) -> Machine:
        if self._row(plan.label.vm) is not None:
            await self.delete(plan.label.vm)
        return await super().receive(plan, number)


@found_by("a_machine_that_is_handed_over_is_left_as_it_is_by_create")
class MakesWhatIsOnItsWay(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        row = self._row(plan.label.vm)
        if row is not None and row.state is MachineState.DEPARTED:
            return self.changed(plan.label.vm, state=MachineState.STOPPED)
        return await super().create(plan)


# Of another owner.


@found_by("a_machine_carries_the_tags_of_its_plan")
class KeepsTheFirstTags(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        row = self._row(plan.label.vm)
        return await super().create(plan if row is None else replace(plan, tags=row.tags))


@found_by("a_marked_machine_has_another_owner_and_is_otherwise_as_it_was")
class MarksTheShapeToo(Sound):
    async def mark(self, plan: MachinePlan) -> Machine:
        await super().mark(plan)
        return self.changed(plan.label.vm, spec=plan.spec)


@found_by("a_running_machine_runs_on_when_it_is_marked")
class StopsToMark(Sound):
    async def mark(self, plan: MachinePlan) -> Machine:
        before = await self.inspect(plan.label.vm)
        await super().mark(plan)
        if before is not None and before.state is MachineState.RUNNING:
            await self.stop(plan.label.vm, grace=0)
            await self.start(plan.label.vm)
        return self._machine(self._require_row(plan.label.vm))


@found_by("a_mark_outlives_the_driver")
class MarksInMemory(Sound):
    async def mark(self, plan: MachinePlan) -> Machine:
        self.marked = {**getattr(self, "marked", {}), plan.label.vm: plan}
        return self._machine(self._require_row(plan.label.vm))

    def _machine(self, row: Any) -> Machine:
        plan = getattr(self, "marked", {}).get(row.vm)
        found = super()._machine(row)
        return found if plan is None else replace(found, label=plan.label, tags=plan.tags)


@found_by("a_marked_machine_is_made_again_by_its_new_owner_alone")
class AnyOwnerWillDo(Sound):
    async def create(self, plan: MachinePlan) -> Machine:
        row = self._row(plan.label.vm)
        return await super().create(plan if row is None else replace(plan, label=row.label))


@found_by("what_belongs_to_another_cluster_or_node_is_not_marked")
class MarksWhatIsNotOurs(Sound):
    async def mark(self, plan: MachinePlan) -> Machine:
        return self.changed(plan.label.vm, label=plan.label, tags=plan.tags)


@found_by("a_machine_that_is_not_there_is_not_marked")
class MakesWhatItMarks(Sound):
    async def mark(self, plan: MachinePlan) -> Machine:
        return await self.create(plan) if self._row(plan.label.vm) is None else await super().mark(plan)


@found_by("a_mark_changes_no_other_machine")
class MarksAll(Sound):
    async def mark(self, plan: MachinePlan) -> Machine:
        for row in list(self._place.contents.rows.values()):
            self.changed(row.vm, tags=plan.tags)
        return await super().mark(plan)


@found_by(cut_of("a_mark"))
class MarksTheTagsOnce(Sound):
    async def mark(self, plan: MachinePlan) -> Machine:
        if self._require_row(plan.label.vm).label == plan.label:
            return self._machine(self._require_row(plan.label.vm))
        self.changed(plan.label.vm, label=plan.label)
        await asyncio.sleep(0)
        return self.changed(plan.label.vm, tags=plan.tags)


@found_by("a_retained_machine_is_out_of_service_and_is_listed_as_retained")
class OnlyStopsWhatItRetains(Sound):
    def _keep(self, vm: str, name: str, now: float) -> Sequence[Any]:
        row = self._require_row(vm)
        super()._keep(vm, name, now)
        return [row]


@found_by("a_retained_machine_outlives_the_driver")
class ForgetsWhatIsRetained(Sound):
    async def aclose(self) -> None:
        self._place.contents.kept.clear()
        await super().aclose()


@found_by("a_reinstated_machine_has_its_snapshots_and_shape")
class ReinstatesTheDiskAlone(Sound):
    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        await super().reinstate(name, plan)
        return self.changed(plan.label.vm, snapshots={})


@found_by("a_machine_that_ran_has_its_disk_when_it_is_reinstated")
class ReinstatesAnEmptyDisk(Sound):
    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        await super().reinstate(name, plan)
        return self.changed(plan.label.vm, disk="")


@found_by("a_new_machine_of_a_retained_one_s_id_starts_from_nothing")
class LosesWhatIsRetainedWithItsNamesake(Sound):
    async def delete(self, vm: str) -> None:
        await super().delete(vm)
        for name, kept in list(self._place.contents.kept.items()):
            if kept.row.vm == vm:
                self._discard(name)


@found_by("a_retained_machine_comes_back_as_another_one")
class KeepsTheCountOfAnother(Sound):
    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        resets = self._place.contents.kept[name].row.resets
        await super().reinstate(name, plan)
        return self.changed(plan.label.vm, resets=resets)


@found_by("a_machine_is_retained_again_and_again")
class OverwritesWhatIsRetained(Sound):
    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        if self._row(vm) is not None:
            self._place.contents.kept.pop(name, None)
        return await super().retain(vm, name)


@found_by("what_is_discarded_is_gone_and_nothing_else_is")
class DiscardsAll(Sound):
    async def discard(self, name: str) -> None:
        for each in list(self._place.contents.kept):
            await super().discard(each)


@found_by("what_is_not_there_is_not_retained")
class RetainsOnlyWhatIsThere(Sound):
    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        self._require_row(vm)
        return await super().retain(vm, name)


@found_by("a_retain_that_is_cut_anywhere_is_finished_and_the_disk_is_there_once")
class RemovesBeforeItKeeps(Sound):
    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        row = self._row(vm)
        if row is None:
            return await super().retain(vm, name)
        await self._do("delete", "done", lambda _: [], gone=vm)
        await asyncio.sleep(0)
        self._place.put([switched_off(row, self._now())])
        return await super().retain(vm, name)


@found_by("a_reinstate_that_is_cut_anywhere_is_finished_and_the_disk_is_there_once")
class DiscardsBeforeItReinstates(Sound):
    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        kept = self._place.contents.kept.get(name)
        if kept is not None:
            self._discard(name)
            await asyncio.sleep(0)
            self._place.contents.apply(kept)
        return await super().reinstate(name, plan)


@found_by("a_discard_that_is_cut_anywhere_is_finished_by_repeating_it")
class DiscardsOnce(Sound):
    async def discard(self, name: str) -> None:
        asked = self.__dict__.setdefault("asked", set())
        if name not in asked or await self.retained() == ():
            asked.add(name)
            await super().discard(name)


@found_by("what_has_not_arrived_completely_is_not_kept")
class KeepsHalf(Sound):
    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        row = self._row(vm)
        if row is not None and row.state is MachineState.ARRIVING:
            self.changed(vm, whole=True)
        return await super().retain(vm, name)


@found_by("what_has_arrived_completely_is_kept_and_so_is_what_departed")
class DeletesWhatIsHandedOver(Sound):
    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        row = self._row(vm)
        if row is not None and row.state in (MachineState.ARRIVING, MachineState.DEPARTED):
            await self.delete(vm)
        return await super().retain(vm, name)


@found_by("verbs_about_one_retained_machine_follow_each_other")
class ReinstatesACopy(Sound):
    def _reinstate(self, name: str, plan: MachinePlan) -> Sequence[Any]:
        kept = self._place.contents.kept[name]
        super()._reinstate(name, plan)
        self._place.contents.apply(replace(kept, row=replace(kept.row, label=replace(kept.row.label, vm="copy"))))
        return ()


CASES = [pytest.param(*case, id=f"{case[0].__name__}-{case[2][:40]}") for case in MUTANTS]


def check(mutant: type[SimulatedMachines], place: MemoryHost, only: set[str]) -> None:
    # In virtual time: a mutant whose machines never stop is found as soon as its time is over.
    setup = replace(
        SETUP,
        within=2,
        grace=0.5,
        hold=5.0,
        late=0.5,
        elsewhere=lambda: simulated(MemoryHost("elsewhere"), mutant, clock=VirtualClock()),
    )

    async def main() -> None:
        await check_machines(lambda: simulated(place, mutant, clock=VirtualClock()), setup=setup, only=only)

    run_virtual(main)


@pytest.mark.parametrize(("mutant", "place", "claim"), CASES)
def test_a_defect_is_found(mutant: type[SimulatedMachines], place: type[MemoryHost], claim: str) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        check(mutant, place(), {claim})
    (failure,) = caught.value.exceptions
    assert claim.replace("_", " ") in failure.__notes__[0]


def test_what_the_mutants_are_made_of_is_sound() -> None:
    check(Sound, MemoryHost(), {claim for *_, claim in MUTANTS})


def test_claims_have_names_of_their_own() -> None:
    names = [claim.name for claim in machine_claims()]
    assert len(names) == len(set(names)) >= 60


def test_every_claim_finds_a_mutant() -> None:
    assert {claim.name for claim in machine_claims()} == {claim for *_, claim in MUTANTS}
