"""Quotas of projects and of orgs.

A quota record holds the usage of its project, and every transaction that changes the usage compares the record, so the
sum is always exact. A new quota is not counted yet; the first request that needs it counts. No transaction can change
the usage of a project whose quota is not counted, so a scan after the quota was read is exact. The quota of an org
holds the sum of its projects and is compared in the same transactions.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from hostler.engine.request import Written
from hostler.errors import Conflict, NotFound, QuotaExceeded, Uncertain
from hostler.keys.entry import Unreadable
from hostler.keys.families import ORG_QUOTA, QUOTA, VM
from hostler.keys.template import MAX_USER, check_home, check_part
from hostler.model.access import DEFAULT, Quota
from hostler.model.access_api import QuotaSet, QuotaView
from hostler.model.inventory import Capacity

if TYPE_CHECKING:
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller, Request
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.vm import VirtualMachine, VmSpec
    from hostler.ports.store import Comparison, Operation, Store

Pieces: TypeAlias = tuple[list["Comparison"], list["Operation"]]
"""Comparisons and operations for a transaction."""
_TRIES = 10


class Share(msgspec.Struct, frozen=True):
    """The usage of a machine in its project's quota, or a difference of usages."""

    vms: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_gib: int = 0

    def plus(self, other: Share) -> Share:
        return Share(
            self.vms + other.vms,
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.disk_gib + other.disk_gib,
        )

    def minus(self, other: Share) -> Share:
        return self.plus(Share(-other.vms, -other.cpus, -other.memory_mib, -other.disk_gib))


def share(spec: VmSpec) -> Share:
    """Return the usage of one machine with this spec."""
    return Share(1, spec.cpus, spec.memory_mib, spec.disk_gib)


class Bound(msgspec.Struct, frozen=True):
    """What a quota limits: one project or, if `project` is empty, all projects of an org together."""

    org: str
    project: str = ""

    def __str__(self) -> str:
        return f"project {self.org}/{self.project}" if self.project else f"org {self.org}"

    @property
    def key(self) -> Key[Quota]:
        return QUOTA if self.project else ORG_QUOTA

    @property
    def parts(self) -> dict[str, Any]:
        """Return the parts of its key; also those of the keys of the machines that count."""
        return {"org": self.org, "project": self.project} if self.project else {"org": self.org}


class Quotas(msgspec.Struct, frozen=True):
    """The quotas that limit a project, each counted; None: there is none, and the transaction requires that."""

    bounds: tuple[tuple[Bound, Entry[Quota] | None], ...]

    @property
    def limited(self) -> tuple[Bound, ...]:
        """Return the bounds that have a quota."""
        return tuple(bound for bound, entry in self.bounds if entry is not None)


class Turns:
    """One lock per project or org, so that clients of one replica do not conflict over a quota."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[Bound, asyncio.Lock] = weakref.WeakValueDictionary()

    def of(self, bound: Bound) -> asyncio.Lock:
        """Return the lock to hold while reading the quota and committing the transaction that compares it."""
        lock = self._locks.get(bound)
        if lock is None:
            lock = self._locks[bound] = asyncio.Lock()
        return lock


async def counted(store: Store, org: str, project: str) -> Quotas:
    """Return the quotas of the project and of its org, with usage. Conflict: concurrent writes kept changing one."""
    bounds = (Bound(org, project), Bound(org))
    own, whole = await asyncio.gather(*(_counted(store, bound) for bound in bounds))
    return Quotas(((bounds[0], own), (bounds[1], whole)))


async def _counted(store: Store, bound: Bound) -> Entry[Quota] | None:
    for _ in range(_TRIES):
        entry = await bound.key.get(store, **bound.parts)
        if entry is None or entry.value.counted:
            return entry
        has = await count(store, bound)
        try:
            return await bound.key.replace(store, entry, _with(entry.value, has))
        except (Conflict, Uncertain):
            continue
    raise Conflict(f"quota of {bound}: others kept writing it; nothing was written, try again in a moment")


async def count(store: Store, bound: Bound) -> Share:
    """Count the current usage. A machine with an unreadable record counts as one, without size."""
    total = Share()
    async for found in VM.scan(store, **bound.parts):
        total = total.plus(Share(1) if isinstance(found, Unreadable) else share(found.value.spec))
    return total


def claim(quotas: Quotas, more: Share) -> Pieces:
    """Return the pieces for a transaction that changes the usage by `more`, possibly negative.

    QuotaExceeded: too much.
    """
    when: list[Comparison] = []
    then: list[Operation] = []
    for bound, entry in quotas.bounds:
        compared, written = _claim(bound, entry, more)
        when += compared
        then += written
    return when, then


def _claim(bound: Bound, entry: Entry[Quota] | None, more: Share) -> Pieces:
    if entry is None:
        return [bound.key.absent(**bound.parts)], []
    quota = entry.value
    has = _has(quota).plus(more)
    limits = (("vms", quota.vms), ("cpus", quota.cpus), ("memory_mib", quota.memory_mib), ("disk_gib", quota.disk_gib))
    for name, limit in limits:
        if limit is not None and getattr(more, name) > 0 and getattr(has, name) > limit:
            raise QuotaExceeded(
                f"{bound}: {name} would be {getattr(has, name)}, its quota allows {limit};"
                " delete something, or ask for a higher quota"
            )
    return [bound.key.unchanged(entry)], [bound.key.put(_with(quota, has), **bound.parts)]


async def quota_release(store: Store, vm: VirtualMachine) -> Pieces:
    """Return the pieces for the transaction that deletes the machine's record."""
    return claim(await counted(store, vm.org, vm.project), Share().minus(share(vm.spec)))


async def quota_transfer(store: Store, giver: Bound, taker: Bound, size: Share) -> Pieces:
    """Return the pieces for moving a machine to another project. QuotaExceeded: the receiving project has no room."""
    theirs, ours = await asyncio.gather(
        counted(store, taker.org, taker.project), counted(store, giver.org, giver.project)
    )
    when: list[Comparison] = []
    then: list[Operation] = []
    for quotas, more in ((theirs, size), (ours, Share().minus(size))):
        for bound, entry in quotas.bounds:
            if not bound.project and giver.org == taker.org:
                continue  # the usage of the org does not change
            compared, written = _claim(bound, entry, more)
            when += compared
            then += written
    return when, then


async def quota_recount(store: Store, org: str, project: str) -> Pieces:
    """Return the pieces for a transaction that adds machines without a quota check: the usage is counted again."""
    when: list[Comparison] = []
    then: list[Operation] = []
    for bound in (Bound(org, project), Bound(org)):
        entry = await bound.key.get(store, **bound.parts)
        if entry is None:
            when.append(bound.key.absent(**bound.parts))
        else:
            again = msgspec.structs.replace(entry.value, counted=False)
            when.append(bound.key.unchanged(entry))
            then.append(bound.key.put(again, **bound.parts))
    return when, then


class QuotaService:
    """Sets and reads quotas. An empty `project` stands for the whole org.

    Only accounts that manage accounts everywhere set limits, so an account cannot change a limit that applies to it.
    """

    def __init__(self, store: Store, writer: Writer) -> None:
        self._store, self._writer = store, writer

    async def get(self, caller: Caller, org: str, project: str = "") -> QuotaView:
        """Return limits and usage. Without a quota the usage is counted now."""
        bound = _seen(caller, org, project)
        entry = await _counted(self._store, bound)
        whole = await ORG_QUOTA.get(self._store, org=org) if project else None
        inherited = QuotaSet() if whole is None else _limits(whole.value)
        if entry is None:
            return _view(bound, Quota(), await count(self._store, bound), 0, inherited)
        return _view(bound, entry.value, _has(entry.value), entry.mod_revision, inherited)

    async def set(self, request: Request, org: str, project: str, limits: QuotaSet) -> Written[QuotaView]:
        """Set the limits. Existing usage stays, even above the limits."""
        bound = _seen(request.caller, org, project)
        request.caller.require("manage_accounts", everywhere=True)
        wanted = Quota(vms=limits.vms, cpus=limits.cpus, memory_mib=limits.memory_mib, disk_gib=limits.disk_gib)

        subject = f"quota of {bound}"
        return await self._writer.once(
            request, QuotaView, lambda: self._writer.retry(subject, lambda: self._set(request, bound, wanted))
        )

    async def delete(self, request: Request, org: str, project: str) -> Written[QuotaView]:
        """Remove all limits. NotFound: there are none."""
        bound = _seen(request.caller, org, project)
        request.caller.require("manage_accounts", everywhere=True)
        subject = f"quota of {bound}"
        written = await self._writer.once(
            request, QuotaView, lambda: self._writer.retry(subject, lambda: self._delete(request, bound))
        )
        return msgspec.structs.replace(written, value=msgspec.structs.replace(written.value, revision=0))

    # Internal

    async def _set(self, request: Request, bound: Bound, wanted: Quota) -> Written[QuotaView]:
        entry = await bound.key.get(self._store, **bound.parts)
        request.check_match(f"quota of {bound}", 0 if entry is None else entry.mod_revision)
        if entry is None or not entry.value.counted:
            quota, has = wanted, await count(self._store, bound)
            if entry is None and not has.vms:  # nothing exists there yet
                check_home(bound.org, bound.project or DEFAULT)
        else:
            has = _has(entry.value)
            quota = _with(wanted, has)
        status = 200 if entry is not None else 201
        if entry is not None and quota == entry.value:
            view = _view(bound, quota, has, entry.mod_revision)
            await self._writer.remember(request, [bound.key.unchanged(entry)], status=status, answer=view)
            return Written(view, entry.mod_revision, status)
        view = _view(bound, quota, has, 0)
        when = bound.key.absent(**bound.parts) if entry is None else bound.key.unchanged(entry)
        put = bound.key.put(quota, **bound.parts)
        before = 0 if entry is None else entry.mod_revision
        revision = await self._writer.commit(
            request, "quota.set", put.key, before, [when], [put], status=status, answer=view
        )
        return Written(msgspec.structs.replace(view, revision=revision), revision, status)

    async def _delete(self, request: Request, bound: Bound) -> Written[QuotaView]:
        entry = await bound.key.get(self._store, **bound.parts)
        request.check_match(f"quota of {bound}", 0 if entry is None else entry.mod_revision)
        if entry is None:
            raise NotFound(f"quota of {bound}: not found; there are no limits to remove")
        view = _view(bound, Quota(), _has(entry.value), 0)
        revision = await self._writer.commit(
            request,
            "quota.delete",
            entry.key,
            entry.mod_revision,
            [bound.key.unchanged(entry)],
            [bound.key.delete(**bound.parts)],
            status=200,
            answer=view,
        )
        return Written(view, revision, 200)


def _seen(caller: Caller, org: str, project: str) -> Bound:
    """Return the bound. NotFound: the caller does not see it, as if it did not exist."""
    bound = Bound(check_part(org, "org"), project and check_part(project, "project", most=MAX_USER))
    if not (caller.sees(org, project) if project else caller.sees_org(org)):
        raise NotFound(f"{bound}: not found; name one that you are a member of")
    return bound


def _has(quota: Quota) -> Share:
    return Share(quota.used_vms, quota.used.cpus, quota.used.memory_mib, quota.used.disk_gib)


def _with(quota: Quota, has: Share) -> Quota:
    used = Capacity(cpus=max(has.cpus, 0), memory_mib=max(has.memory_mib, 0), disk_gib=max(has.disk_gib, 0))
    return msgspec.structs.replace(quota, counted=True, used_vms=max(has.vms, 0), used=used)


def _limits(quota: Quota) -> QuotaSet:
    return QuotaSet(vms=quota.vms, cpus=quota.cpus, memory_mib=quota.memory_mib, disk_gib=quota.disk_gib)


def _view(bound: Bound, quota: Quota, has: Share, revision: int, inherited: QuotaSet | None = None) -> QuotaView:
    used = Capacity(cpus=has.cpus, memory_mib=has.memory_mib, disk_gib=has.disk_gib)
    return QuotaView(
        org=bound.org,
        project=bound.project,
        limits=_limits(quota),
        inherited=inherited or QuotaSet(),
        used_vms=has.vms,
        used=used,
        revision=revision,
    )
