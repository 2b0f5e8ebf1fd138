"""The workload controller of the leader: creates and removes instances in batches until the spec is met.

A workload is reconciled when its record or one of its instances changes, and periodically. The cost depends on the
amount of work, not on the number of instances, because their conditions are indexed (`instance_index`) as they change.
Writes compare the revisions that the decision was based on, and carry the leader's guard.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

from hostler.engine import text
from hostler.engine.quotas import Share, claim, counted, share
from hostler.engine.runtime.controller import BatchController
from hostler.engine.runtime.guarded_writer import LAG, ConditionFailed, Txn, Why
from hostler.engine.runtime.work_queue import Resync
from hostler.engine.workloads import transactions, vm_template
from hostler.engine.workloads.decide import BATCH, decide
from hostler.engine.workloads.instance_index import WorkloadInstanceState
from hostler.engine.workloads.transactions import Held, New, Targets
from hostler.errors import QuotaExceeded
from hostler.keys.families import INSTANCE, TARGET, WORKLOAD
from hostler.kit.tasks import Fairness
from hostler.model.trace import Reason
from hostler.model.workload import instance_of, instance_parts
from hostler.ports.store import MAX_REQUEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator, Sequence

    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.engine.workloads.decide import WorkloadSteps
    from hostler.engine.workloads.instance_index import WorkloadInstances
    from hostler.keys.entry import Entry
    from hostler.model.workload import Workload

PASS_EVERY = 300.0
ROUNDS = 50
"""Maximum number of consecutive batches for one workload before others are processed."""
REST = 30.0
"""Seconds before a project whose quota is used up is tried again."""
BESIDE = 32_768
"""Bytes reserved in a transaction in addition to its pieces: comparisons, quota and decision entry."""


class WorkloadController(BatchController):
    """The workload controller of a replica. Without `tracer` its decisions are not logged."""

    name = "workloads"
    pass_every = PASS_EVERY
    rounds = ROUNDS

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        width: int = 16,
    ) -> None:
        mirrors = (view.vms, view.instances)
        super().__init__(env, width=width, mirrors=mirrors)
        self._view, self._new_id = view, env.new_id
        self._rolls = view.rolls
        self._targets = Targets(
            view, self._rolls, self._writing, clock=env.clock, rng=env.rng, tell=env.tell, counters=self.counters
        )
        self._instance_resync = Resync(lambda: view.instances.entries, every=PASS_EVERY)
        self._target_resync = Resync(lambda: view.targets.entries, every=PASS_EVERY)
        self._taken: set[tuple[str, int]] = set()  # instances whose VM's intended name another VM has
        self._resting: dict[str, tuple[float, int, int]] = {}  # time of the next try, revision of the spec, VM count
        self._suspected: dict[str, float] = {}  # inconsistencies, and since when each is seen

    # The service

    async def read_caches(self) -> None:
        """Refresh the workloads and their instances."""
        await self._view.refresh(self._view.workloads, self._view.instances, self._view.targets)

    async def begin(self) -> None:
        """Follow changes, and build the indexes."""
        self.follow(
            self._view.workloads.listen(lambda key: self._queue.add(WORKLOAD.parse(key)["workload"])),
            *self._targets.listen(),
            self._rolls.listen(self._queue.add),
        )
        await self._rolls.load()

    def works(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what else runs."""
        return {"targets": self._targets.run()}

    def state(self) -> dict[str, int]:
        """Return counters and current sizes, for metrics."""
        return {**self.counters, "looks_waiting": len(self._queue)}

    async def resync(self, *, first: bool) -> None:
        """Check everything once at the start, and then periodically in portions."""
        instances, targets = self._instance_resync, self._target_resync
        if first:
            await self._look_at(instances.all(), targets.all())
        else:
            await self._look_at(instances.next(), targets.next())

    async def _look_at(self, instances: Iterable[str], targets: Iterable[str]) -> None:
        """Queue every workload, and check the instances and targets at these keys."""
        view, fairness, now = self._view, Fairness(), self._clock.now()
        self._suspected = {what: since for what, since in self._suspected.items() if now - since < PASS_EVERY}
        names = (WORKLOAD.parse(key)["workload"] for key in view.workloads.entries)
        for name in dict.fromkeys((*names, *self._rolls.names())):
            self._queue.add(name, patient=True)
        for key in instances:
            self._targets.check(INSTANCE.parse(key))
            await fairness.share()
        for key in targets:
            self._targets.check(TARGET.parse(key))
            await fairness.share()

    # One workload

    async def step(self, name: str) -> bool:
        """Execute one batch of each kind; return whether there was work. Raise Conflict if a record just changed."""
        view, roll = self._view, self._rolls.roll(name)
        if WORKLOAD.fill(workload=name) in view.workloads.unreadable:
            return False  # the spec is unknown
        entry = view.workloads.get(workload=name)
        if entry is not None and entry.value.held:
            return False  # its VMs are still being moved from a state file
        plan = decide(None if entry is None else entry.value, roll)
        done = await self._remove_strays(name, roll)
        done |= await self._drop(name, entry, roll, plan.drop)
        done |= await self._remove(name, entry, roll, plan.remove)
        if entry is None:
            return done
        if plan.over:
            why = Why(what="forgotten", why="nothing is left of it", read=(entry,))
            return await self._write(name, transactions.forgotten(entry), why)
        done |= await self._tune(name, entry, plan.tune)
        done |= await self._make(name, entry, roll, plan)
        return done

    async def _write(self, name: str, txn: Txn, why: Why, *, new: Sequence[New] = ()) -> bool:
        """Commit; return whether there was anything to write. Raise Conflict if a condition did not hold."""
        if not txn.then:
            return False
        subject = WORKLOAD.fill(workload=name)
        try:
            await self._writing.write(name, subject, txn, why, otherwise=transactions.names(new))
        except ConditionFailed as failed:
            self._taken.update((name, one.number) for one, there in zip(new, failed.responses) if there is not None)
            raise
        return True

    # Scaling down

    async def _drop(
        self, name: str, entry: Entry[Workload] | None, roll: WorkloadInstances, numbers: Sequence[int]
    ) -> bool:
        """Delete instances without a VM."""
        lost = roll.by[WorkloadInstanceState.LOST]
        drop = [n for n in numbers if n not in lost or self._is_certain(name, instance_of(name, n))]
        held, pieces = transactions.cut(self._held(name, drop), lambda one: transactions.drop(entry, one))
        why = "its machine is gone" if any(number in lost for number in drop) else "it has no machine"
        told = Why(what="dropped", why=f"{text.instances(_numbers(held))}: {why}", read=(entry, *_records(held)))
        return await self._write(name, transactions.together(name, entry, pieces), told)

    async def _remove(
        self, name: str, entry: Entry[Workload] | None, roll: WorkloadInstances, numbers: Sequence[int]
    ) -> bool:
        # A missing record is not a request to delete: a deleted workload is marked, and removed after its instances.
        remove = functools.partial(transactions.remove, keep_disk=entry is None)
        held, pieces = transactions.cut(self._held(name, numbers), remove)
        if entry is None:
            why = "the record of the workload is missing; their disks are retained (hostler vm retained list)"
        elif entry.value.deleting:
            why = "the workload is deleted"
        elif any(_template(roll, number) != entry.value.template for number in _numbers(held)):
            why = "replaced, because the workload has changed"
        else:
            why = f"{entry.value.instances} are requested"
        told = Why(what="removed", why=f"{text.instances(_numbers(held))}: {why}", read=(entry, *_records(held)))
        return await self._write(name, transactions.together(name, entry, pieces), told)

    async def _remove_strays(self, name: str, roll: WorkloadInstances) -> bool:
        done = False
        for key in list(itertools.islice(roll.strays, BATCH)):
            vm = self._view.vms.entries.get(key)
            ids = None if vm is None else instance_parts(vm.value.instance)
            if vm is None or ids is None or vm.value.deleting or not self._is_certain(name, key):
                continue
            why = f"machine {vm.value.name} claims to be instance {ids['instance']} of {name}, and is not"
            self._tell(f"{why}; it is removed, and its disk retained")
            instance = self._view.instances.get(**ids)
            told = Why(what="strays", why=why, read=(vm, instance))
            done |= await self._write(name, transactions.stray(vm, instance, ids), told)
        return done

    def _is_certain(self, name: str, what: str) -> bool:
        """Return whether an inconsistency has lasted long enough. If not, queue the workload again."""
        now = self._clock.now()
        left = self._suspected.setdefault(what, now) + LAG - now
        if left > 0:
            self._queue.add(name, after=left + 0.001)
        return left <= 0

    def _held(self, name: str, numbers: Iterable[int]) -> list[Held]:
        """Return the instances with their VMs, as the caches have them."""
        found = []
        for number in numbers:
            instance = self._view.instances.get(workload=name, instance=str(number))
            if instance is not None:
                found.append(Held(instance, self._rolls.machine(instance_of(name, number), instance.value.vm)))
        return found

    # Changes in place

    async def _tune(self, name: str, entry: Entry[Workload], numbers: Sequence[int]) -> bool:
        tune = vm_template.tune_of(entry.value)
        held, pieces = transactions.cut(self._held(name, numbers), lambda one: transactions.tuned(one, tune))
        why = f"{text.instances(_numbers(held))}: changed as the workload specifies"
        told = Why(what="tuned", why=why, read=(entry, *_records(held)))
        return await self._write(name, transactions.together(name, entry, pieces), told)

    # Scaling up

    async def _make(self, name: str, entry: Entry[Workload], roll: WorkloadInstances, plan: WorkloadSteps) -> bool:
        """Create instances and their VMs, as far as the quota of the project allows."""
        numbers = plan.equip or plan.make
        if not numbers or self._rests(name, entry, roll):
            return False
        workload, at, there = entry.value, self._clock.wall(), len(roll)
        coming = (self._new(name, workload, number, at) for number in numbers)
        new, pieces = transactions.cut(coming, lambda one: transactions.create(name, entry, one, at))
        org, project = workload.home
        if (size := transactions.size(pieces[0])) > MAX_REQUEST_BYTES - BESIDE:
            why = (
                f"it takes {size} bytes, and {MAX_REQUEST_BYTES - BESIDE} can be written at once; shorten its user_data"
            )
            return await self._refused(name, entry, numbers[0], Reason(subject=new[0].vm.name, why=why))
        quotas = await counted(self._store, org, project)
        refusal = ""
        while new:
            try:
                when, then = claim(quotas, _times(share(workload.spec), len(new)))
            except QuotaExceeded as error:
                refusal = str(error)
                new.pop()
            else:
                break
        else:
            full = Reason(subject=f"quota of {org}/{project}", why=refusal)
            return await self._refused(name, entry, numbers[0], full)
        txn = transactions.together(name, entry, pieces[: len(new)])
        txn.when += when
        txn.then += then
        why = f"{text.instances([one.number for one in new])}: {there} of {workload.instances} existed"
        return await self._write(name, txn, Why(what="made", why=why, read=(entry,)), new=new)

    def _new(self, name: str, workload: Workload, number: int, at: float) -> New:
        vm = self._new_id()
        called = vm_template.name_of(workload, number, vm=vm if (name, number) in self._taken else "")
        record = vm_template.vm_of_instance(workload, number, vm=vm, name=called, at=at)
        return New(number, record, self._view.instances.get(workload=name, instance=str(number)))

    async def _refused(self, name: str, entry: Entry[Workload], number: int, reason: Reason) -> bool:
        """Record on one instance why no more VMs can be created. It represents all further instances."""
        self._resting[name] = (self._clock.now() + REST, entry.mod_revision, _machines(self._rolls.roll(name)))
        self._queue.add(name, after=REST)
        ids = {"workload": name, "instance": str(number)}
        instance, target = self._view.instances.get(**ids), self._view.targets.get(**ids)
        if instance is not None and target is not None and target.value.reasons == (reason,):
            return False
        txn = transactions.waits(name, entry, number, instance, why=reason, at=self._clock.wall())
        told = Why(what="refused", why=reason.why, reasons=(reason,), read=(entry, instance, target))
        return await self._write(name, txn, told)

    def _rests(self, name: str, entry: Entry[Workload], roll: WorkloadInstances) -> bool:
        """Return whether the quota was used up recently, the spec is unchanged, and no VM was removed since."""
        until, revision, machines = self._resting.get(name, (0.0, 0, 0))
        left = until - self._clock.now()
        if left > 0 and revision == entry.mod_revision and _machines(roll) >= machines:
            self._queue.add(name, after=left)
            return True
        self._resting.pop(name, None)
        return False


def _times(one: Share, count: int) -> Share:
    return Share(one.vms * count, one.cpus * count, one.memory_mib * count, one.disk_gib * count)


def _machines(roll: WorkloadInstances) -> int:
    return len(roll) - roll.count(WorkloadInstanceState.WAITING)


def _template(roll: WorkloadInstances, number: int) -> int:
    condition = roll.conditions.get(number)
    return 0 if condition is None else condition.template


def _records(held: Sequence[Held]) -> Iterator[Entry[Any] | None]:
    return itertools.chain.from_iterable((one.instance, one.vm) for one in held)


def _numbers(held: Sequence[Held]) -> list[int]:
    return [int(one.instance.parts["instance"]) for one in held]
