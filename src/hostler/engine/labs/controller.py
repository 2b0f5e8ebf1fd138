"""The lab controller of the leader: gives labs VMs in order, records their state, ends them in time, and cleans up.

A user is reconciled when the lab record, its VM or the VM's handle changes, when a time is reached, and in a periodic
full pass. Writes compare the revisions in the caches that the decision was based on, and carry the leader's guard. If a
comparison fails, the controller reads the records again and decides again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.engine.labs import state_machine, transactions
from hostler.engine.labs.admission import Admission
from hostler.engine.labs.catalogue import (
    CATALOGUE,
    Catalogue,
    Feasibility,
    catalogue_problems,
    node_labels_of,
    shape_of,
)
from hostler.engine.labs.decide import Act, LabConditions, decide
from hostler.engine.labs.lab_cache import LabCache
from hostler.engine.labs.transactions import LabSnapshot
from hostler.engine.quotas import claim, counted, share
from hostler.engine.runtime.controller import TRIES, SnapshotController
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Closed, QuotaExceeded, Refused, Unavailable, Uncertain
from hostler.keys.lab import LAB
from hostler.kit.tasks import Fairness
from hostler.model.lab import ORG, LabCatalogue, LabEvent, lab_project
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from hostler.engine.labs.decide import Step
    from hostler.engine.labs.transactions import Pool
    from hostler.engine.runtime.controller import Attempt
    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.lab import Lab, LabTemplate, LabUser

PASS_EVERY = 300.0
CHECK_EVERY = 5.0
"""Seconds between two checks of the catalogue against the nodes."""
MOST_SAID = 1000
"""Maximum length of an event about the catalogue."""
REST = 30.0
"""Seconds before the next try for a lab that was refused a VM for a reason outside the lab."""
DOUBT = 10.0
"""Seconds until the next check of a lab that has expired by a clock that is in doubt."""


class LabController(SnapshotController[LabSnapshot]):
    """The lab controller of a replica.

    `catalogue`: from the catalogue file of this replica, if it has one. `keys`: public SSH keys that may log in to
    every lab. `pool`: the warm pool, if there is one. Without `tracer` its decisions are not logged.
    """

    name = "labs"
    pass_every = PASS_EVERY

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        catalogue: LabCatalogue | None = None,
        keys: Sequence[str] = (),
        pool: Pool | None = None,
        width: int = 64,
    ) -> None:
        mirrors = (view.labs, view.vms)
        super().__init__(env, width=width, mirrors=mirrors)
        self._view, self._new_id = view, env.new_id
        self._offer, self._keys, self._pool = Catalogue(view, catalogue), tuple(keys), pool
        self._tracer = env.tracer
        self._catalogue_changed, self._told = asyncio.Event(), frozenset[str]()
        self._admission = Admission()
        self._sight, self._fit = LabCache(env.store, view, clock=env.clock), Feasibility(view)
        self._resting: dict[str, float] = {}  # users whose lab was refused a VM, and the time of the next try
        self._fairness = Fairness()
        self._since = 0.0  # when it began to lead

    # The service

    async def start(self, standing: Standing) -> None:
        """Write the catalogue, refresh all caches, and start from there."""
        self._since = self._clock.wall()
        await super().start(standing)
        if self._pool is not None:
            await self._pool.start(standing)

    async def read_caches(self) -> None:
        """Write the catalogue, and refresh everything that decisions are made from."""
        view = self._view
        await self._offer.write(self._store, self._writing)
        await view.refresh(view.catalogues, view.labs, view.vms, view.handles)

    async def begin(self) -> None:
        """Count the labs, and follow them from now on."""
        self.follow(
            *self._sight.listen(self._changed),
            self._fit.listen(self._nodes_changed),
            self._view.catalogues.listen(lambda _: self._give_turns()),
            self._view.catalogues.listen(lambda _: self._catalogue_changed.set()),
        )
        self._catalogue_changed.set()
        for user in self._sight.users():
            self._note(user, self._sight.of(user))
            await self._fairness.share()

    def works(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what else runs."""
        pool = {} if self._pool is None else {"pool": self._pool.run()}
        return {"catalogue": self._check_catalogue(), **pool}

    async def stop(self) -> None:
        """Stop following the caches."""
        await super().stop()
        if self._pool is not None:
            await self._pool.stop()

    def state(self) -> dict[str, int]:
        """Return counters and current sizes, for metrics."""
        sizes = {"running_now": self._admission.running, "waiting_now": self._admission.waiting}
        return {**self.counters, **sizes, "looks_waiting": len(self._queue)}

    async def resync(self, *, first: bool) -> None:  # noqa: ARG002 - each pass covers all users
        """Check all users once, and queue those that need work."""
        for user in self._sight.users():
            seen = self._sight.of(user)
            self._note(user, seen)
            if not seen.unreadable and (seen.strays or (seen.entry and self._wants(user, seen.entry, seen))):
                self._queue.add(user, patient=True)
            await self._fairness.share()
        self._give_turns()

    # Work queue

    def _changed(self, user: str) -> None:
        self._note(user, self._sight.of(user))
        self._queue.add(user)
        self._give_turns()

    async def _check_catalogue(self) -> None:
        """Report problems of labs on the current nodes, when the catalogue is read and when nodes change.

        A problem that was reported and persists is not reported again.
        """
        while True:
            await self._catalogue_changed.wait()
            self._catalogue_changed.clear()
            catalogue = self._offer.current()
            if catalogue is None:
                continue
            records = (entry.value for entry in self._view.members.entries.values())
            found = catalogue_problems(catalogue, records)
            new = [problem for problem in found if problem not in self._told]
            self._told = frozenset(found)
            for problem in new:
                self._tell(f"labs: {problem}")
            if new and self._tracer is not None:
                why = Why(what="catalogue_problem", why="; ".join(new)[:MOST_SAID])
                with suppress(Unavailable, Uncertain):  # it is in the log anyway
                    await self._writing.commit("", CATALOGUE, Txn([], []), why)
            await self._clock.sleep(CHECK_EVERY)

    def _nodes_changed(self) -> None:
        self._catalogue_changed.set()
        for user in self._admission.pending():
            self._queue.add(user)

    def _note(self, user: str, seen: LabSnapshot) -> None:
        """Update the admission. It uses only the caches, which never go back, so it never counts too few."""
        if seen.unreadable:
            self._admission.hold(user, has_machine=self._sight.has_machine(user))
            return
        record = None if seen.entry is None else seen.entry.value
        handle = None if seen.handle is None else seen.handle.value
        # Its own new VM also looks like a stray if the caches contain it but not yet the record that names it.
        going = any(stray.value.deleting for stray in seen.strays) and not self._writing.is_behind(user)
        held = going or user in self._resting
        self._admission.note(user, record, handle, self._catalogue(), held=held)

    def _give_turns(self) -> None:
        if self._offer.current() is None:
            return  # the catalogue cannot be decoded, so the limits are not known
        for user in self._admission.give(self._catalogue()):
            self._queue.add(user)

    def _wants(self, user: str, entry: Entry[LabUser], seen: LabSnapshot) -> bool:
        """Return whether there is work. If not, schedule the next check."""
        step = self._decide(entry.value, seen)
        if step.act is Act.ADMIT:
            lab = entry.value.lab
            return lab is not None and (not lab.detail or bool(self._admission.turn(user, lab.generation)))
        self._look_again(step, seen)
        return step.act is not Act.NOTHING

    def _look_again(self, step: Step, seen: LabSnapshot) -> None:
        if step.until is not None:
            left = step.until - self._clock.wall()  # negative while the clock is in doubt
            self._queue.add(seen.user, after=left if left > 0 else DOUBT if step.act is Act.NOTHING else 0.01)
        if seen.silent_in is not None:
            self._queue.add(seen.user, after=seen.silent_in)

    # One user

    async def reconcile(self, user: str) -> None:
        """Take the next step of a user's lab."""
        if user in self._resting and not self._writing.is_behind(user):
            self._rest(user)
        await super().reconcile(user)

    def snapshot(self, user: str) -> LabSnapshot:
        """Return the state from the caches."""
        return self._sight.of(user)

    async def read_snapshot(self, user: str, last: LabSnapshot | None) -> LabSnapshot:  # noqa: ARG002
        """Read the current state from the store. This resolves uncertain writes."""
        seen = await self._sight.read(user, self._writing.guard())
        self._writing.settle(user, seen.entry, seen.vm)
        return seen

    async def step(self, seen: LabSnapshot, attempt: Attempt) -> bool:
        """Execute one step; False: its conditions did not hold."""
        entry, user = seen.entry, seen.user
        stray = next((stray for stray in seen.strays if not stray.value.deleting), None)
        if stray is not None:
            return await self._write(seen, transactions.delete_vm(entry, user, stray, None), "strays", None)
        if entry is None:
            return True
        record, lab = entry.value, entry.value.lab
        step = self._decide(record, seen)
        new, what = step.record or record, step.act.name.lower()
        if step.act is Act.ADMIT and lab is not None:
            return await self._admit(seen, entry, lab, attempt.number)
        if step.act is Act.FORGET:
            return await self._write(seen, transactions.forget_user(entry), what, None)
        if step.act is Act.GONE and lab is not None:
            return await self._write(seen, transactions.end_lab(entry, new, lab.vm), what, new)
        if step.act is Act.WRITE:
            return await self._write(seen, transactions.write_record(seen, entry, new), what, new)
        if step.act is Act.DELETE and seen.vm is not None:
            return await self._write(seen, transactions.delete_vm(entry, user, seen.vm, step.record), what, step.record)
        if step.act is Act.KEEP and lab is not None and seen.vm is not None:
            return await self._write(seen, transactions.keep_vm(entry, lab, seen.vm), what, record)
        self._look_again(step, seen)
        if lab is not None and seen.handle is not None and seen.handle.value.state is MachineState.PENDING:
            self._make_room(lab)
        return True

    def _decide(self, record: LabUser, seen: LabSnapshot) -> Step:
        vm, handle = seen.vm, seen.handle
        pending = vm is not None and handle is not None and handle.value.state is MachineState.PENDING
        return decide(
            record,
            None if vm is None else vm.value,
            None if handle is None else handle.value,
            LabConditions(
                catalogue=self._catalogue(),
                unreachable=seen.silent,
                never=self._fit.never(vm.value.spec, vm.value.node_labels) if vm is not None and pending else "",
                expires=self._view.calendar.apart() is None,
                since=self._since,
            ),
            now=self._clock.wall(),
        )

    def _make_room(self, lab: Lab) -> None:
        template = self._catalogue().find(lab.lab_id)
        if self._pool is not None and template is not None:
            self._pool.make_room(lab, template)

    # VMs

    async def _admit(self, seen: LabSnapshot, entry: Entry[LabUser], lab: Lab, attempt: int) -> bool:
        """Give the lab a VM if it is its turn; otherwise record why not, once."""
        user, record, catalogue = seen.user, entry.value, self._catalogue()
        now, template = self._clock.wall(), catalogue.find(lab.lab_id)
        if seen.strays:
            return True  # an older VM of this user is removed first; its removal queues the user again
        turn = self._admission.turn(user, lab.generation)
        if turn is None:
            return True  # the caches do not have it yet, and will queue it
        if not turn:
            why = self._admission.why_not(user, catalogue)
            new = state_machine.put_off(record, self._admission.position(user), why, now) if why else record
            return new is record or await self._write(seen, transactions.write_record(seen, entry, new), "put_off", new)
        if template is None:
            return await self._fail(seen, entry, f"there is no lab {lab.lab_id} any more")
        try:
            taken = await self._claim(seen, entry, template, now) if attempt < TRIES - 1 else None
            return await self._create(seen, entry, lab, template, now=now, attempt=attempt) if taken is None else taken
        except QuotaExceeded as error:
            return await self._fail(seen, entry, str(error))
        except Closed:
            raise
        except Refused:  # nothing was written, and an operator must act, as for a quota record that cannot be decoded
            self._resting[user] = self._clock.now() + REST
            self._rest(user)
            raise

    def _rest(self, user: str) -> None:
        """Leave the turn to others until the time of the next try."""
        left = self._resting[user] - self._clock.now()
        if left > 0:
            self._queue.add(user, after=left)
        else:
            del self._resting[user]
        self._note(user, self._sight.of(user))
        self._give_turns()

    async def _create(
        self, seen: LabSnapshot, entry: Entry[LabUser], lab: Lab, template: LabTemplate, *, now: float, attempt: int
    ) -> bool:
        """Give the lab a new VM, if any node could run it."""
        spec = shape_of(template, self._keys)
        if why := self._fit.never(spec, node_labels_of(template)):
            return await self._fail(seen, entry, f"no node can run it: {why}")
        vm = self._new_id()
        new = state_machine.admit(entry.value, vm, template, now)
        if new.lab is None:
            return True
        # A VM that already has this name (created by hand) must not block the lab forever.
        name = f"lab-{lab.lab_id}-{lab.generation}" + (f"-{vm[:8]}" if attempt else "")
        txn = transactions.admit_with_new_vm(
            entry, new, transactions.new_vm(seen.user, new.lab, template, spec, vm=vm, name=name, at=now)
        )
        when, then = claim(await counted(self._store, ORG, lab_project(seen.user)), share(spec))
        txn.when += when
        txn.then += then
        return await self._write(seen, txn, "created", new)

    async def _claim(self, seen: LabSnapshot, entry: Entry[LabUser], template: LabTemplate, now: float) -> bool | None:
        """Give the lab a VM of the pool; None: there is none."""
        if self._pool is None or (found := await self._pool.claim(entry, template, now)) is None:
            return None
        new, written = state_machine.admit(entry.value, found.vm, template, now), False
        try:
            written = await self._write(
                seen, transactions.admit_with_pool_vm(entry, new, found), "claimed", new, found.read
            )
        finally:
            self._pool.settle(found, written=written)
        return written

    async def _fail(self, seen: LabSnapshot, entry: Entry[LabUser], why: str) -> bool:
        """Fail a lab that can never have a VM."""
        new = state_machine.stopping(entry.value, LabEvent.FAILED, why, self._clock.wall())
        return await self._write(seen, transactions.write_record(seen, entry, new), "refused", new)

    # Writes

    async def _write(
        self, seen: LabSnapshot, txn: Txn, what: str, new: LabUser | None, read: tuple[Entry[Any], ...] = ()
    ) -> bool:
        """Commit; False: a condition did not hold. `new`: the lab record afterwards; `read`: further causes."""
        node = "" if seen.handle is None else seen.handle.value.node
        silent = self._view.silences.get(node=node) if node else None
        why = Why(
            what=what,
            why=transactions.why(what, None if seen.entry is None else seen.entry.value, new),
            read=(seen.entry, seen.vm, seen.handle, *seen.strays, *read),
            cause=transactions.cause(seen, new, "" if silent is None else silent.value.trace),
        )
        return await self._writing.commit(seen.user, LAB.fill(user=seen.user), txn, why) is not None

    def _catalogue(self) -> LabCatalogue:
        return self._offer.current() or LabCatalogue()
