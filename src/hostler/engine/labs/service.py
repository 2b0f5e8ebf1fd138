"""The lab service, called by the HTTP API and the CLI. Every request is one transaction, answered by its event.

A lab belongs to the project `labs/{user}`: a caller who may see the project may see the lab. A lab that the caller may
not see is NotFound, exactly as if it did not exist.

| caller | may |
|---|---|
| sees `labs/{user}` | see the lab and its events |
| … by the membership `labs/{user}` itself, and has the user's name | start it, stop it, use its terminal: a student |
| … and has `modify_workloads` | all of that, extend it, and send messages to its user: a teacher |

So a student can neither decide how long a lab lives nor create VMs that are not labs. Lab users are case-sensitive and
accounts are not: the name alone, as for a caller who sees all labs, would match every spelling of it.
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from hostler.engine.labs import state_machine
from hostler.engine.labs.admission import WaitingList
from hostler.engine.labs.catalogue import problems_of
from hostler.engine.labs.state_machine import LabStart
from hostler.engine.request import Written, check_limit
from hostler.errors import Damaged, Forbidden, Invalid, NotFound
from hostler.keys.lab import LAB, check_user
from hostler.model.access import EVERYWHERE
from hostler.model.lab import ORG, LabPhase, lab_project, lab_user
from hostler.model.lab_api import LabAnswer, LabNewsPage, LabOffer, LabOffers, LabPage, LabView
from hostler.model.name import check_line, fold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller, Request
    from hostler.engine.runtime.env import Env
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.lab import LabCatalogue, LabTemplate, LabUser
    from hostler.ports.store import Store


DONE = 200
_MINE = f"{ORG}/"
Found: TypeAlias = "list[Entry[LabUser]]"


class LabService:
    """The lab service; one per process. `catalogue` returns the current one; `switch`: a new lab replaces the old."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        view: View,
        env: Env,
        *,
        catalogue: Callable[[], LabCatalogue],
        switch: bool = False,
    ) -> None:
        self._store, self._writer, self._view, self._catalogue = store, writer, view, catalogue
        self._clock, self._rng, self._switch = env.clock, env.rng, switch
        self._line = WaitingList(view)

    # Reads

    async def get(self, caller: Caller, user: str, *, stale: bool = False) -> LabView:
        """Return a user's lab. `stale`: from the cache of this process, also while the store is unreachable."""
        check_seen(caller, user)
        entry = self._view.labs.get(user=user) if stale else await LAB.get(self._store, user=user)
        view = None if entry is None else self._shown(entry.value, entry.mod_revision)
        if view is None:
            raise missing(user)
        return view

    async def list(self, caller: Caller, *, limit: int = 100, after: str | None = None, stale: bool = False) -> LabPage:
        """Return a page of the labs that the caller may see, ordered by user."""
        check_limit(limit)
        start = "" if after is None else LAB.fill(user=check_user(after))
        mine = _visible(caller)
        if stale:
            found, revision = self._cached(start, limit + 1, mine), self._view.labs.revision
        elif mine is None:
            found, revision = await self._read(start, limit + 1)
        else:
            found, revision = await self._read_each(sorted(key for key in mine if key > start), limit + 1)
        items = [view for entry in found if (view := self._shown(entry.value, entry.mod_revision)) is not None]
        last = items[limit - 1].user if len(items) > limit else None
        return LabPage(items=tuple(items[:limit]), after=last, revision=revision)

    async def news(self, caller: Caller, user: str) -> LabNewsPage:
        """Return the most recent events of a user."""
        check_seen(caller, user)
        entry = await LAB.get(self._store, user=user)
        return LabNewsPage(items=() if entry is None else entry.value.events)

    async def offers(self, caller: Caller) -> LabOffers:
        """Return the catalogue with the usage of each lab. Raise Forbidden if the caller may see no labs."""
        if _visible(caller) == frozenset():
            raise Forbidden(f"{caller.name}: sees no labs; ask an account administrator for a membership of {ORG}")
        catalogue, line = self._catalogue(), self._line
        if catalogue.labs is None:
            all_ = (line.running.total(), line.waiting.total(), line.warm_in_all())
            items = [self._offered(None, catalogue.default, all_)]
        else:
            items = [
                self._offered(lab_id, template, (line.running[lab_id], line.waiting[lab_id], line.warm(lab_id)))
                for lab_id, template in sorted(
                    ((int(name), of) for name, of in catalogue.labs.items()), key=itemgetter(0)
                )
            ]
        return LabOffers(
            items=tuple(items),
            at_once=catalogue.at_once,
            running=line.running.total(),
            waiting=line.waiting.total(),
        )

    def _offered(self, lab_id: int | None, template: LabTemplate, counts: tuple[int, int, int]) -> LabOffer:
        running, waiting, warm = counts
        problems = problems_of(template, (entry.value for entry in self._view.members.entries.values()))
        # User data may contain secrets of the VM.
        template = msgspec.structs.replace(template, user_data="")
        return LabOffer(
            lab_id=lab_id, template=template, running=running, waiting=waiting, warm=warm, problems=problems
        )

    # Writes

    async def start(self, request: Request, user: str, lab_id: int) -> Written[LabAnswer]:
        """Start a lab. The event in the answer says whether it starts.

        A caller who may extend the lab starts it for its full lifetime. Its own user gets what is left of the day.
        """
        own = not may_change(request.caller)

        def change(record: LabUser | None, now: float) -> LabUser:
            catalogue, switch = self._catalogue(), self._switch
            return state_machine.start(
                record, user, LabStart(lab_id, switch=switch, own=own), catalogue=catalogue, now=now
            )

        return await self._request(request, "lab.start", user, change)

    async def stop(self, request: Request, user: str, lab_id: int | None = None) -> Written[LabAnswer]:
        """Stop a lab; with a lab id, only that lab. Raise NotFound, writing nothing, if there is no lab."""
        return await self._request(
            request,
            "lab.stop",
            user,
            lambda record, now: state_machine.stop(_having(record, user), user, lab_id, now=now),
        )

    async def extend(
        self, request: Request, user: str, minutes: float, lab_id: int | None = None
    ) -> Written[LabAnswer]:
        """Extend a lab; with a lab id, only that lab. Raise NotFound as in `stop`."""

        def change(record: LabUser | None, now: float) -> LabUser:
            return state_machine.extend(_having(record, user), user, minutes, lab_id, now=now)

        check_change(request.caller, user)
        return await self._request(request, "lab.extend", user, change)

    async def message(self, request: Request, user: str, text: str) -> Written[LabAnswer]:
        """Send a message to the user, as an event and at the terminal. Raise NotFound as in `stop`."""
        check_change(request.caller, user)
        said = check_line(text.strip(), "message")
        return await self._request(
            request,
            "lab.message",
            user,
            lambda record, now: state_machine.message(_having(record, user), said, now=now),
        )

    async def tell_opened(self, request: Request, user: str) -> None:
        """Record in the audit log that a terminal of the user's lab was opened."""
        check_use(request.caller, user)
        await self._writer.commit(request, "terminal.open", LAB.fill(user=user), 0, [], [], status=DONE)

    async def attend(self, user: str, generation: int, at: float) -> None:
        """Record that a terminal of the user's lab was open at that time, if that lab ends with its terminal.

        Raise Conflict, Unavailable or Uncertain if it may not be recorded; the caller retries.
        """
        entry = await LAB.get(self._store, user=user)
        lab = None if entry is None else entry.value.lab
        template = None if lab is None else self._catalogue().find(lab.lab_id)
        if entry is None or template is None or not template.end_with_terminal:
            return
        new = state_machine.record_attendance(entry.value, generation, at, self._clock.wall())
        if new is not entry.value:
            await LAB.replace(self._store, entry, new)

    # Internals

    async def _request(
        self, request: Request, verb: str, user: str, change: Callable[[LabUser | None, float], LabUser]
    ) -> Written[LabAnswer]:
        check_use(request.caller, user)

        async def attempt() -> Written[LabAnswer]:
            entry = await LAB.get(self._store, user=user)
            request.check_match(f"lab of {user}", 0 if entry is None else entry.mod_revision)
            record = change(None if entry is None else entry.value, self._clock.wall())
            put = LAB.put(record, user=user)
            answer = LabAnswer(news=record.events[-1], lab=self._shown(record, 0))
            revision = await self._writer.commit(
                request,
                verb,
                put.key,
                0 if entry is None else entry.mod_revision,
                [LAB.absent(user=user) if entry is None else LAB.unchanged(entry)],
                [put],
                status=DONE,
                answer=answer,
            )
            return Written(msgspec.structs.replace(answer, revision=revision), revision, DONE)

        async def attempts() -> Written[LabAnswer]:
            return await self._writer.retry(f"lab of {user}", attempt, rng=self._rng)

        return _with_revision(await self._writer.once(request, LabAnswer, attempts))

    def _shown(self, record: LabUser, revision: int) -> LabView | None:
        """Return the view of a lab; None: there is no lab."""
        lab = record.lab
        if lab is None:
            return None
        template = self._catalogue().find(lab.lab_id)
        waits = lab.phase is LabPhase.WAITING
        server = lab.server(record.user)
        return LabView(
            user=record.user,
            lab_id=lab.lab_id,
            title="" if template is None else template.title,
            phase=lab.phase,
            status=server.status,
            available=lab.available and lab.phase is not LabPhase.STOPPING,
            ssh_user=lab.user,
            address=lab.address,
            port=lab.port,
            cloud_status=server.cloud_status,
            server_id=lab.server_id,
            vm=lab.vm,
            node=self._node(record.user, lab.vm),
            position=self._line.position(record.user, lab.requested_at) if waits else None,
            requested_at=lab.requested_at,
            expires_at=lab.expires_at,
            grace=lab.grace,
            again=lab.again,
            detail=lab.detail,
            generation=lab.generation,
            revision=revision,
        )

    def _node(self, user: str, vm: str) -> str:
        """Return the node, from the cache of this process."""
        handle = self._view.handles.get(org=ORG, project=lab_project(user), vm=vm) if vm else None
        return "" if handle is None else handle.value.node

    def _cached(self, start: str, limit: int, mine: frozenset[str] | None) -> Sequence[Entry[LabUser]]:
        """Return labs from the cache of this process."""
        entries = self._view.labs.entries
        keys = entries if mine is None else [key for key in mine if key in entries]
        having = (key for key in keys if key > start and entries[key].value.lab is not None)
        return [entries[key] for key in heapq.nsmallest(limit, having)]

    async def _read(self, start: str, limit: int) -> tuple[Sequence[Entry[LabUser]], int]:
        """Return users with a lab from the store, and its revision at the first read."""
        found: Found = []
        after, revision = start or None, 0
        while True:
            page = await self._store.range(LAB.prefix(), after=after, limit=limit)
            revision = revision or page.revision
            for kv in page.items:
                if LAB.match(kv.key) is None:
                    continue
                with suppress(Damaged):  # the caches count it, and the doctor reports it
                    entry = LAB.entry(kv)
                    if entry.value.lab is not None:
                        found.append(entry)
            if len(found) >= limit or not page.more:
                return found[:limit], revision
            after = page.items[-1].key

    async def _read_each(self, keys: Sequence[str], limit: int) -> tuple[Sequence[Entry[LabUser]], int]:
        found: Found = []
        revision = (await self._store.range(LAB.prefix(), limit=1, keys_only=True)).revision
        for key in keys:
            kv = await self._store.get(key)
            with suppress(Damaged):
                entry = None if kv is None else LAB.entry(kv)
                if entry is not None and entry.value.lab is not None:
                    found.append(entry)
            if len(found) == limit:
                break
        return found, revision


def _having(record: LabUser | None, user: str) -> LabUser:
    """Return the record if it has a lab. Raise NotFound otherwise: the caller gets an error instead of an event."""
    if record is None or record.lab is None:
        raise NotFound(f"lab of {user}: there is no lab; start one, or see the list of labs")
    return record


def _visible(caller: Caller) -> frozenset[str] | None:
    """Return the keys of the users whose labs the caller may see; None: all."""
    if EVERYWHERE in caller.memberships or ORG in caller.memberships:
        return None
    keys = set()
    for membership in caller.memberships:
        if membership.startswith(_MINE):
            with suppress(Invalid):  # no user can have this name
                keys.add(LAB.fill(user=check_user(lab_user(membership.removeprefix(_MINE)))))
    return frozenset(keys)


def _with_revision(done: Written[LabAnswer]) -> Written[LabAnswer]:
    """Set the revision of the lab in the answer, which was not known before the commit."""
    answer = done.value
    if answer.lab is None:
        return done
    lab = msgspec.structs.replace(answer.lab, revision=answer.revision)
    return msgspec.structs.replace(done, value=msgspec.structs.replace(answer, lab=lab))


_RIGHT = "modify_workloads"


def check_seen(caller: Caller, user: str) -> None:
    """Raise NotFound if the caller may not see the user's labs, as if there were none."""
    check_user(user)
    if not caller.sees(ORG, lab_project(user)):
        raise missing(user)


def check_use(caller: Caller, user: str) -> None:
    """Check start, stop and login. Raise Forbidden if it is another user's lab and the permission is missing."""
    check_seen(caller, user)
    if f"{ORG}/{lab_project(user)}" not in caller.memberships or fold(user) != caller.name:
        caller.require(_RIGHT)


def check_change(caller: Caller, user: str) -> None:
    """Check extend and message. Raise Forbidden if the permission is missing, also for one's own lab."""
    check_seen(caller, user)
    caller.require(_RIGHT)


def may_change(caller: Caller) -> bool:
    """Return whether the caller, who may use a lab, may extend it as well."""
    return bool(getattr(caller.rights, _RIGHT))


def missing(user: str) -> NotFound:
    """Return the error for a lab that does not exist or that the caller may not see."""
    return NotFound(f"lab of {user}: not found; see the list of labs")
