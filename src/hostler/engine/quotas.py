"""How much a project may have.

The quota holds what the project has, and every transaction that changes that compares the quota: so the sum can never
be off. A new quota is not counted yet. Whoever needs it counts: as long as it is not counted nobody can change what the
project has, so a scan after the quota was read finds the truth.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.engine.request import Written
from hostler.errors import Conflict, NotFound, QuotaExceeded, Uncertain
from hostler.keys.access import QUOTA
from hostler.keys.entry import Unreadable
from hostler.keys.part import check_home, check_part
from hostler.keys.vm import VM
from hostler.model.access import Quota
from hostler.model.api import QuotaSet, QuotaView
from hostler.model.inventory import Capacity

if TYPE_CHECKING:
    from hostler.engine.request import Caller, Request
    from hostler.engine.write import Writer
    from hostler.keys.entry import Entry
    from hostler.model.vm import VirtualMachine, VmSpec
    from hostler.ports.store import Comparison, Operation, Store

Pieces: TypeAlias = tuple[list["Comparison"], list["Operation"]]
"""What goes into a transaction."""
_TRIES = 10


class Share(msgspec.Struct, frozen=True):
    """What a machine takes of its project's quota, or a difference of that."""

    vms: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_gib: int = 0

    def plus(self, other: Share) -> Share:
        """The sum."""
        return Share(
            self.vms + other.vms,
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.disk_gib + other.disk_gib,
        )

    def minus(self, other: Share) -> Share:
        """The difference."""
        return self.plus(Share(-other.vms, -other.cpus, -other.memory_mib, -other.disk_gib))


def share(spec: VmSpec) -> Share:
    """What one machine of this shape takes."""
    return Share(1, spec.cpus, spec.memory_mib, spec.disk_gib)


class Turns:
    """One at a time for each project, within this process: clients of one replica do not fight over a quota."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = weakref.WeakValueDictionary()

    def of(self, org: str, project: str) -> asyncio.Lock:
        """To be held around reading the quota and the transaction that compares it."""
        lock = self._locks.get((org, project))
        if lock is None:
            lock = self._locks[org, project] = asyncio.Lock()
        return lock


async def counted(store: Store, org: str, project: str) -> Entry[Quota] | None:
    """The quota, with what the project has; None: there is none. Conflict: it changed all the time."""
    for _ in range(_TRIES):
        entry = await QUOTA.get(store, org=org, project=project)
        if entry is None or entry.value.counted:
            return entry
        has = await count(store, org, project)
        try:
            return await QUOTA.replace(store, entry, _with(entry.value, has))
        except (Conflict, Uncertain):
            continue
    raise Conflict(f"quota of {org}/{project}: others kept writing it; nothing was written, try again in a moment")


async def count(store: Store, org: str, project: str) -> Share:
    """What the project has, now. A machine whose record cannot be read counts as one, of no size."""
    total = Share()
    async for found in VM.scan(store, org=org, project=project):
        total = total.plus(Share(1) if isinstance(found, Unreadable) else share(found.value.spec))
    return total


def claim(entry: Entry[Quota] | None, org: str, project: str, more: Share) -> Pieces:
    """For a transaction after which the project has `more`, which may be less. QuotaExceeded: too much.

    `entry` is counted; None: there is no quota, and must not be.
    """
    if entry is None:
        return [QUOTA.absent(org=org, project=project)], []
    quota = entry.value
    has = _has(quota).plus(more)
    limits = (("vms", quota.vms), ("cpus", quota.cpus), ("memory_mib", quota.memory_mib), ("disk_gib", quota.disk_gib))
    for name, limit in limits:
        if limit is not None and getattr(more, name) > 0 and getattr(has, name) > limit:
            raise QuotaExceeded(
                f"project {org}/{project}: {name} would be {getattr(has, name)}, its quota allows {limit};"
                " delete something, or ask for a higher quota"
            )
    return [QUOTA.unchanged(entry)], [QUOTA.put(_with(quota, has), org=org, project=project)]


async def quota_release(store: Store, vm: VirtualMachine) -> Pieces:
    """For the transaction that deletes the machine's record, and no other."""
    entry = await counted(store, vm.org, vm.project)
    return claim(entry, vm.org, vm.project, Share().minus(share(vm.spec)))


async def quota_recount(store: Store, org: str, project: str) -> Pieces:
    """For a transaction that adds machines without asking whether they may be: it will be counted again."""
    entry = await QUOTA.get(store, org=org, project=project)
    if entry is None:
        return [QUOTA.absent(org=org, project=project)], []
    again = msgspec.structs.replace(entry.value, counted=False)
    return [QUOTA.unchanged(entry)], [QUOTA.put(again, org=org, project=project)]


class QuotaService:
    """Setting and reading quotas."""

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store, self._writer = store, writer

    async def get(self, caller: Caller, org: str, project: str) -> QuotaView:
        """Limits and use. Without a quota the use is counted now."""
        _check(caller, org, project)
        entry = await counted(self._store, org, project)
        if entry is None:
            return _view(org, project, Quota(), await count(self._store, org, project), 0)
        return _view(org, project, entry.value, _has(entry.value), entry.mod_revision)

    async def set(self, request: Request, org: str, project: str, limits: QuotaSet) -> Written[QuotaView]:
        """Set the limits. What the project has already stays, also where it is more."""
        request.caller.require("manage_accounts")
        _check(request.caller, org, project)
        wanted = Quota(vms=limits.vms, cpus=limits.cpus, memory_mib=limits.memory_mib, disk_gib=limits.disk_gib)

        subject = f"quota of {org}/{project}"
        return await self._writer.once(
            request, QuotaView, lambda: self._writer.retried(subject, lambda: self._set(request, org, project, wanted))
        )

    async def delete(self, request: Request, org: str, project: str) -> Written[QuotaView]:
        """Lift all limits. NotFound: there are none."""
        request.caller.require("manage_accounts")
        _check(request.caller, org, project)
        subject = f"quota of {org}/{project}"
        written = await self._writer.once(
            request, QuotaView, lambda: self._writer.retried(subject, lambda: self._delete(request, org, project))
        )
        return msgspec.structs.replace(written, value=msgspec.structs.replace(written.value, revision=0))

    # Inside

    async def _set(self, request: Request, org: str, project: str, wanted: Quota) -> Written[QuotaView]:
        entry = await QUOTA.get(self._store, org=org, project=project)
        request.check_match(f"quota of {org}/{project}", 0 if entry is None else entry.mod_revision)
        if entry is None or not entry.value.counted:
            quota, has = wanted, await count(self._store, org, project)
            if entry is None and not has.vms:  # nothing is there yet
                check_home(org, project)
        else:
            has = _has(entry.value)
            quota = _with(wanted, has)
        status = 200 if entry is not None else 201
        if entry is not None and quota == entry.value:
            view = _view(org, project, quota, has, entry.mod_revision)
            await self._writer.remember(request, [QUOTA.unchanged(entry)], status=status, answer=view)
            return Written(view, entry.mod_revision, status)
        view = _view(org, project, quota, has, 0)
        when = QUOTA.absent(org=org, project=project) if entry is None else QUOTA.unchanged(entry)
        put = QUOTA.put(quota, org=org, project=project)
        before = 0 if entry is None else entry.mod_revision
        revision = await self._writer.commit(
            request, "quota.set", put.key, before, [when], [put], status=status, answer=view
        )
        return Written(msgspec.structs.replace(view, revision=revision), revision, status)

    async def _delete(self, request: Request, org: str, project: str) -> Written[QuotaView]:
        entry = await QUOTA.get(self._store, org=org, project=project)
        request.check_match(f"quota of {org}/{project}", 0 if entry is None else entry.mod_revision)
        if entry is None:
            raise NotFound(f"quota of {org}/{project}: there is none; nothing to lift")
        view = _view(org, project, Quota(), _has(entry.value), 0)
        operation = QUOTA.delete(org=org, project=project)
        revision = await self._writer.commit(
            request,
            "quota.delete",
            entry.key,
            entry.mod_revision,
            [QUOTA.unchanged(entry)],
            [operation],
            status=200,
            answer=view,
        )
        return Written(view, revision, 200)


def _check(caller: Caller, org: str, project: str) -> None:
    check_part(org, "org")
    check_part(project, "project")
    if not caller.sees(org, project):
        raise NotFound(f"project {org}/{project}: not found; name one that you are a member of")


def _has(quota: Quota) -> Share:
    return Share(quota.used_vms, quota.used.cpus, quota.used.memory_mib, quota.used.disk_gib)


def _with(quota: Quota, has: Share) -> Quota:
    used = Capacity(cpus=max(has.cpus, 0), memory_mib=max(has.memory_mib, 0), disk_gib=max(has.disk_gib, 0))
    return msgspec.structs.replace(quota, counted=True, used_vms=max(has.vms, 0), used=used)


def _view(org: str, project: str, quota: Quota, has: Share, revision: int) -> QuotaView:
    limits = QuotaSet(vms=quota.vms, cpus=quota.cpus, memory_mib=quota.memory_mib, disk_gib=quota.disk_gib)
    used = Capacity(cpus=has.cpus, memory_mib=has.memory_mib, disk_gib=has.disk_gib)
    return QuotaView(org=org, project=project, limits=limits, used_vms=has.vms, used=used, revision=revision)
