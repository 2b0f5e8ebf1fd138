"""Decision history for users: what happened, what caused it, and how an object came to its current state.

Everything is read from the store. A decision names its cause or the revisions that it is based on, and the writer of
each such revision left a record in it. So the answer does not depend on which replica led or leads now.
"""

from __future__ import annotations

import heapq
import shlex
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from hostler.engine.access.audit import sees_subject, sees_workload
from hostler.engine.deployments.redaction import unspoken
from hostler.engine.history_entry import OF_AUDIT, instant_of
from hostler.engine.history_reader import SKEW, FiledLines, HistoryReader, Needed
from hostler.engine.object_lookup import ObjectLookup, ObjectName
from hostler.engine.request import check_limit
from hostler.errors import Invalid, NotFound
from hostler.keys.families import (
    ACTUAL,
    ALIVE,
    AUDIT_FILE,
    BLADE,
    BLUEPRINT,
    DEPLOYMENT,
    HANDLE,
    INSTANCE,
    MEMBER,
    NAME,
    ORG_QUOTA,
    PROJECT,
    QUOTA,
    RACK,
    RETRIES,
    SLICE,
    SLICE_DECISION,
    SLICE_OWNER,
    TARGET,
    TOKEN,
    USER,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB, LAB_CATALOGUE
from hostler.model.access import EVERYWHERE
from hostler.model.control_api import Sort, TracePage, TraceView, WhyView
from hostler.model.lab import ORG, lab_project, utc_time
from hostler.model.node import EpochKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.history_entry import HistoryEntry
    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.model.node import Epoch
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.store import Store

LOOKED_AT = 20_000
"""Approximate number of records that one query scans at most."""
ANCESTORS = 200
"""Largest number of causes that one query looks up individually."""
STEPS = 20
"""Default number of steps in an explanation."""
Happenings: TypeAlias = "list[HistoryEntry]"


class TraceService:
    """Answers queries about the decision history. One per process."""

    def __init__(self, store: Store, view: View, *, clock: Clock, files: AuditFiles | None = None) -> None:
        """`files`: audit log entries that are no longer in the store."""
        self._store, self._view, self._clock = store, view, clock
        self._topics = ObjectLookup(store, view)
        self._files = FiledLines(files)

    async def list(
        self, caller: Caller, *, text: str | None = None, limit: int = 100, after: str | None = None
    ) -> TracePage:
        """Return what happened to the object `text`, or to all that the caller sees, newest first, with the causes."""
        check_limit(limit)
        topic = None if text is None else await self._topics.find(caller, text)
        annals = await self._annals()
        found, last = await self._found(caller, annals, topic, limit, after)
        web = _Web(annals, self._shows(caller))
        for happening in found:
            await web.join(happening)
        mine = {happening.id for happening in found}
        return TracePage(
            items=tuple(self._shown(caller, web, happening) for happening in found),
            before=tuple(self._shown(caller, web, one) for one in web.newest_first() if one.id not in mine),
            unreadable=annals.unreadable,
            after=last,
        )

    async def why(
        self,
        caller: Caller,
        text: str,
        *,
        org: str | None = None,
        project: str | None = None,
        limit: int = STEPS,
    ) -> WhyView:
        """Explain the state of the object: what happened to it, and the causes, newest first."""
        check_limit(limit)
        topic = await self._topics.find(caller, text, org=org, project=project)
        annals = await self._annals()
        told = await self._told(caller, annals, topic, limit)
        if not told.is_complete and caller.rights.manage_accounts:  # the same right as for the audit log
            shows = self._shows(caller)
            needed = _needed(topic, told.web, lambda line: _is_about(line, topic) and shows(line))
            filed = await self._files.find(needed, border=annals.border, epoch=annals.epoch)
            if filed:
                annals.add(filed)
                told = await self._told(caller, annals, topic, limit, filed)
        steps = told.web.newest_first()
        subject = topic.vm or topic.name.rpartition("/")[2]
        note = "" if told.is_complete else await self._filed(caller, subject)
        if not topic.present and not steps:
            where = f"; {note}" if note else ""
            raise NotFound(f"object {text!r}: not found, and no history is kept for it in the store{where}")
        return WhyView(
            object=topic.name,
            state=_said(caller, topic.state),
            since=topic.since,
            steps=tuple(self._shown(caller, told.web, happening) for happening in steps),
            cut=told.cut,
            border=told.border,
            filed=note,
        )

    # Internal

    async def _told(
        self, caller: Caller, annals: HistoryReader, topic: ObjectName, limit: int, filed: Sequence[HistoryEntry] = ()
    ) -> _Told:
        """Return what happened to the object, with the causes. `filed`: entries from files, which are added."""
        web, border = _Web(annals, self._shows(caller)), ""
        if topic.present:
            found, cut, older = await _history(annals, web, topic, limit)
            if older:
                border = _told_border(annals.epoch)
                found += await self._before_border(caller, annals, topic, limit - len(found))
        else:  # the object is deleted: there is no record whose revisions could be followed
            found, last = await self._found(caller, annals, topic, limit, None)
            cut = last is not None
        ids = {happening.id for happening in found}
        more = [line for line in filed if line.id not in ids and _is_about(line, topic) and web.shows(line)]
        cut = cut or len(more) > limit - len(found)
        for happening in (*found, *more[: limit - len(found)]):
            await web.join(happening)
        steps = web.newest_first()
        revisions = {step.revision for step in steps}
        is_complete = bool(steps) and not any(step.id in web.open for step in steps)
        is_complete = is_complete and all(kv.mod_revision in revisions for kv in topic.present[:1])
        return _Told(web, cut, border, is_complete)

    async def _annals(self) -> HistoryReader:
        annals = HistoryReader(self._store, clock=self._clock)
        await annals.find_border()
        return annals

    async def _filed(self, caller: Caller, subject: str) -> str:
        """Return how to read the audit log entries that are no longer in the store; empty: there are none."""
        if not caller.rights.manage_accounts:
            return ""
        days = [entry.parts["day"] for entry in (await AUDIT_FILE.list(self._store, strict=False)).entries]
        if not days:
            return ""
        span = min(days) if min(days) == max(days) else f"{min(days)} to {max(days)}"
        word = subject.rpartition(" ")[2]
        return f"older entries of the audit log are in files ({span}): hostler audit --subject {shlex.quote(word)}"

    async def _before_border(self, caller: Caller, annals: HistoryReader, topic: ObjectName, limit: int) -> Happenings:
        """Return what is recorded about the object from before the store was copied or restored, newest first."""
        shows, looked_at = self._shows(caller), 0
        found: Happenings = []
        async with aclosing(annals.back()) as happenings:
            async for happening in happenings:
                looked_at += 1
                if len(found) >= limit or looked_at >= LOOKED_AT:
                    break
                if happening is None or happening.revision > annals.border:
                    continue
                if _is_about(happening, topic) and shows(happening):
                    found.append(happening)
        return found

    async def _found(
        self, caller: Caller, annals: HistoryReader, topic: ObjectName | None, limit: int, after: str | None
    ) -> tuple[Happenings, str | None]:
        """Return some entries, newest first, and where they end if there may be more."""
        end, older_than = None, None
        if after is not None:
            instant = instant_of(after)
            if instant is None:
                raise Invalid("query after: not a cursor of a page of decisions; use the `after` of the last page")
            last = await annals.get(after)
            end, older_than = instant + SKEW, None if last is None else annals.order(last)
        shows, looked_at, newest, place = self._shows(caller), 0, 0, after
        found: Happenings = []
        async with aclosing(annals.back(end)) as happenings:
            async for happening in happenings:
                looked_at += 1
                if happening is None or (older_than is not None and annals.order(happening) >= older_than):
                    continue
                newest, place = newest or happening.revision, happening.id
                if (topic is None or _is_about(happening, topic)) and shows(happening):
                    found.append(happening)
                if len(found) == limit or looked_at >= LOOKED_AT:
                    annals.cover(newest, happening.revision)
                    return found, place
        annals.cover(newest, 0)
        return found, None

    def _shows(self, caller: Caller) -> _Shows:
        return _Shows(caller, self._view)

    def _shown(self, caller: Caller, web: _Web, happening: HistoryEntry) -> TraceView:
        shows = self._shows(caller)
        parent = web.parents.get(happening.id)
        return TraceView(
            id=happening.id,
            parent="" if parent is None else parent,
            open=happening.id in web.open,
            sort=happening.sort,
            revision=happening.revision,
            at=happening.at,
            actor=happening.actor,
            what=happening.what,
            subject=self._name(happening.subject),
            why=_said(caller, happening.why),
            reasons=happening.reasons,
            touches=tuple(touch for touch in happening.touches if shows.key(touch.key, happening)),
            fence=happening.fence,
        )

    def _name(self, key: str) -> str:
        """Return the name that users know the object by."""
        for kind, families in _KINDS:
            for family in families:
                parts = family.match(key)
                if parts is None:
                    continue
                entry = self._view.vms.get(**parts) if kind == "vm" else None
                if entry is not None:
                    parts["vm"] = entry.value.name
                return f"{kind} {'/'.join(parts.values())}"
        return "a token" if key.startswith(TOKEN.prefix()) else key


class _Told(NamedTuple):
    """What is known of an object. `is_complete`: no step is missing."""

    web: _Web
    cut: bool
    border: str
    is_complete: bool


def _needed(topic: ObjectName, web: _Web, is_about: Callable[[HistoryEntry], bool]) -> Needed:
    """Return which audit log entries are missing."""
    waiting = [step for step in web.newest_first() if step.id in web.open]
    return Needed(
        parts=(*topic.keys, *((topic.vm,) if topic.vm else ())),
        is_about=is_about,
        revisions=frozenset(step.led_by for step in waiting if step.led_by),
        ids=frozenset(step.led_by_id for step in waiting if step.led_by_id.startswith(OF_AUDIT)),
        root=topic.present[0].key if topic.present else "",
    )


def _said(caller: Caller, text: str) -> str:
    """Return the text; output of slices is removed for callers who may not deploy."""
    return text if caller.may_deploy else unspoken(text)


_KINDS: tuple[tuple[str, tuple[Key[Any], ...]], ...] = (
    ("vm", (VM, HANDLE)),
    ("node", (MEMBER, ALIVE)),
    ("lab", (LAB,)),
    ("workload", (WORKLOAD, INSTANCE, TARGET, ACTUAL)),
    ("rack", (RACK, BLADE)),
    ("user", (USER,)),
    ("quota", (QUOTA, ORG_QUOTA)),
    ("project", (PROJECT,)),
    ("labs", (LAB_CATALOGUE,)),
    ("blueprint", (BLUEPRINT,)),
    ("slice", (DEPLOYMENT, SLICE, RETRIES, SLICE_DECISION, SLICE_OWNER)),
)


_ACCOUNTS = (USER.prefix(), TOKEN.prefix(), QUOTA.prefix(), ORG_QUOTA.prefix(), PROJECT.prefix())


class _Shows:
    """Decides whether a caller may see an entry."""

    def __init__(self, caller: Caller, view: View) -> None:
        self._caller, self._view = caller, view
        self._everywhere = EVERYWHERE in caller.memberships

    def __call__(self, happening: HistoryEntry) -> bool:
        subject = happening.subject
        if subject.startswith(_ACCOUNTS):  # the same rule as for the audit log
            manages = self._caller.rights.manage_accounts
            return manages and sees_subject(self._caller, subject, happening.revision, self._view)
        if self._everywhere:
            return True
        if happening.sort is not Sort.WISH and (MEMBER.match(subject) or ALIVE.match(subject)):
            return True  # all users may see nodes
        return self._of_project(subject, happening) is True

    def key(self, key: str, of: HistoryEntry) -> bool:
        """Return whether a touched key may be shown: a key of a project is shown to those who may see the project."""
        return self._everywhere or self._of_project(key, of) is not False

    def _of_project(self, key: str, happening: HistoryEntry) -> bool | None:
        """Return whether the caller sees the project of the key; None: it belongs to no project."""
        for family in (VM, HANDLE, NAME):
            parts = family.match(key)
            if parts is not None:
                return self._caller.sees(parts["org"], parts["project"])
        parts = LAB.match(key)
        if parts is not None:
            return self._caller.sees(ORG, lab_project(parts["user"]))
        for workloads in (WORKLOAD, INSTANCE, TARGET, ACTUAL):
            parts = workloads.match(key)
            if parts is not None:
                return self._of_workload(parts["workload"], happening)
        return None

    def _of_workload(self, name: str, happening: HistoryEntry) -> bool:
        return sees_workload(self._caller, name, happening.revision, happening.at, self._view)


class _Web:
    """Entries and their causes. A cause is older than its effect, so there are no cycles, even with forged records."""

    def __init__(self, annals: HistoryReader, shows: _Shows) -> None:
        self._annals, self.shows = annals, shows
        self._left = ANCESTORS
        self._all: dict[str, HistoryEntry] = {}
        self.parents: dict[str, str] = {}
        self.open: set[str] = set()

    def newest_first(self) -> list[HistoryEntry]:
        return sorted(self._all.values(), key=lambda one: (self._annals.order(one), one.id), reverse=True)

    async def join(self, happening: HistoryEntry) -> None:
        """Add an entry and everything that caused it, as far as that is known and visible to the caller."""
        child: HistoryEntry | None = happening
        while child is not None and child.id not in self._all:
            self._all[child.id] = child
            parent = await self.led_to(child)
            if parent is not None:
                self.parents[child.id] = parent.id
            child = parent

    async def led_to(self, child: HistoryEntry) -> HistoryEntry | None:
        """Return the cause of an entry; None: it has none, or it cannot be shown, and then the entry stays open."""
        if not child.led_by_id and not child.led_by:
            return None
        parent = None
        # A record from before a copy or restore names revisions of another store.
        known = bool(child.led_by_id) or child.revision > self._annals.border
        if self._left > 0 and known:
            self._left -= 1
            parent = await self._looked_up(child)
        order = self._annals.order
        if parent is None or order(parent) >= order(child) or not self._is_shown(parent):
            self.open.add(child.id)
            return None
        return parent

    async def _looked_up(self, child: HistoryEntry) -> HistoryEntry | None:
        if child.led_by_id:
            return await self._annals.get(child.led_by_id)
        found = await self._annals.at(child.led_by, child.at)
        if found is not None:
            return found
        key = child.key_at(child.led_by)
        report = await self._annals.report(key, child.led_by) if key else None
        return None if report is None else _answering(report, child)

    def _is_shown(self, happening: HistoryEntry) -> bool:
        return happening.sort is Sort.REPORT or self.shows(happening)


def _answering(report: HistoryEntry, child: HistoryEntry) -> HistoryEntry:
    """Link a report to what its agent acted on: the newest revision of the same object that the decision had read."""
    tail = report.subject.rpartition("/")[2]
    before = [
        touch
        for touch in child.touches
        if 0 < touch.revision < report.revision and touch.key.rpartition("/")[2] == tail
    ]
    if not before:
        return report
    newest = max(before, key=lambda touch: touch.revision)
    return msgspec.structs.replace(report, cause=f"@{newest.revision}", touches=(*report.touches, newest))


async def _history(
    annals: HistoryReader, web: _Web, topic: ObjectName, limit: int
) -> tuple[list[HistoryEntry], bool, bool]:
    """Follow the revisions that each step is based on; return the steps and whether there are more.

    The step that created the object is always included, if it is kept. The last value says whether the history reaches
    back beyond the copy or restore that made this store; older revisions have no meaning here.
    """
    found: list[HistoryEntry] = []
    older = False
    near: dict[int, tuple[str, float | None]] = {}
    heap: list[int] = []

    def follow(key: str, revision: int, at: float | None) -> None:
        nonlocal older
        older = older or 0 < revision <= annals.border
        if revision > annals.border and revision not in near:
            near[revision] = (key, at)
            heapq.heappush(heap, -revision)

    for kv in topic.present:
        follow(kv.key, kv.mod_revision, None)
        follow(kv.key, kv.create_revision, None)
    first = topic.present[0].create_revision
    left = 4 * limit + ANCESTORS
    while heap and left > 0 and len(found) < limit:
        left -= 1
        revision = -heapq.heappop(heap)
        key, at = near[revision]
        happening = await annals.at(revision, at)
        if happening is None:  # the agent wrote this revision; follow the one before it, if known
            follow(key, await annals.before(key, revision), at)
            continue
        if web.shows(happening):
            found.append(happening)
        for touch in happening.touches:
            if topic.owns(touch.key) and touch.revision < revision:
                follow(touch.key, touch.revision, happening.at)
    cut = bool(heap)
    root = await annals.at(first) if cut and first > 0 else None
    if root is not None and web.shows(root) and root not in found:
        found.append(root)
    return found, cut, older


def _told_border(epoch: Epoch | None) -> str:
    """Return the note about steps from before the copy or restore."""
    if epoch is None:
        return ""
    what = {
        EpochKind.COPY: "the store was copied from",
        EpochKind.RESTORE: "the store was restored from the",
        EpochKind.ACTIVATION: "the store was put into service after",
        EpochKind.MIGRATION: "the records were moved from",
    }[epoch.begun_by]
    source = epoch.source or "a restore or copy"
    return f"{what} {source} at {utc_time(epoch.at)}; causes of earlier steps are known only where the steps name them"


def _is_about(happening: HistoryEntry, topic: ObjectName) -> bool:
    return topic.owns(happening.subject) or any(topic.owns(touch.key) for touch in happening.touches)
