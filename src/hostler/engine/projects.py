"""Projects: which ones exist, and who may create one.

A project is created by an account that manages accounts in its org: with `create`, or by the first write into it. A
project that such an account named in a membership also exists. Every org has the project `default`. Projects from
before project records existed remain as long as they contain a machine, a workload or a quota; the first write into one
creates its record. The control plane creates the projects of labs itself, without this module.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.idempotent_writer import Beaten
from hostler.engine.request import Written
from hostler.errors import Conflict, Forbidden, NotFound
from hostler.keys.entry import Unreadable
from hostler.keys.families import PROJECT, QUOTA, VM
from hostler.keys.template import check_home, check_part
from hostler.model.access import DEFAULT, EVERYWHERE, Project
from hostler.model.access_api import ProjectList, ProjectView

if TYPE_CHECKING:
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.request import Caller, Request
    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.model.access_api import ProjectCreate
    from hostler.ports.store import Store

_RIGHT = "manage_accounts"


class Projects:
    """Lists and creates projects. One per process. Projects are never deleted, so a found project is cached."""

    def __init__(self, store: Store, writer: Writer, view: View, *, clock: Clock) -> None:
        self._store, self._writer, self._view, self._clock = store, writer, view, clock
        self._found: set[tuple[str, str]] = set()

    async def list(self, caller: Caller, org: str | None = None) -> ProjectList:
        """Return the projects that the caller sees, of one org if given: recorded ones, and those with contents."""
        if org is not None:
            check_part(org, "org")
        found: dict[tuple[str, str], ProjectView] = {}
        for home in self._occupied():
            found[home] = ProjectView(org=home[0], name=home[1])
        for membership in caller.memberships:
            one, _, project = membership.partition("/")
            if one != EVERYWHERE:
                found[one, project or DEFAULT] = ProjectView(org=one, name=project or DEFAULT)
        async for entry in PROJECT.scan(self._store) if org is None else PROJECT.scan(self._store, org=org):
            if not isinstance(entry, Unreadable):
                home = (entry.parts["org"], entry.parts["project"])
                found[home] = _view(*home, entry.value, entry.mod_revision)
        shown = (view for home, view in sorted(found.items()) if caller.sees(*home) and org in (None, home[0]))
        return ProjectList(items=tuple(shown))

    async def create(self, request: Request, org: str, wanted: ProjectCreate) -> Written[ProjectView]:
        """Create an empty project. Conflict: the name is taken."""
        caller = request.caller
        check_part(org, "org")
        check_part(wanted.name, "project")
        if not caller.sees_org(org):
            raise NotFound(f"org {org}: not found; name one that you are a member of")
        _require(caller, org, wanted.name)
        check_home(org, wanted.name)

        async def once() -> Written[ProjectView]:
            try:
                return await self._record(request, org, wanted.name, "project.create")
            except Beaten:
                raise Conflict(f"project {org}/{wanted.name}: exists already; choose another name") from None

        return await self._writer.once(request, ProjectView, once)

    async def admit(self, request: Request, org: str, project: str) -> None:
        """Check that the caller may put something into a project that the caller sees, and record the project.

        Forbidden: it does not exist, and the caller may not create it.
        """
        caller = request.caller
        if (org, project) in self._found or _is_given(caller, org, project):
            return
        self._writer.check_healthy()
        if await PROJECT.get(self._store, org=org, project=project) is None:
            verb = "project.create"
            if await self._is_occupied(org, project):
                verb = "project.record"
            else:
                _require(caller, org, project)
                check_home(org, project)
            keyless = msgspec.structs.replace(request, key=None, if_match=None)
            with suppress(Beaten):  # a concurrent request has recorded it
                await self._record(keyless, org, project, verb)
        self._found.add((org, project))

    # Internal

    async def _record(self, request: Request, org: str, project: str, verb: str) -> Written[ProjectView]:
        record = Project(created_at=self._clock.wall(), created_by=request.caller.name)
        put = PROJECT.put(record, org=org, project=project)
        view = _view(org, project, record, 0)
        revision = await self._writer.commit(
            request, verb, put.key, 0, [PROJECT.absent(org=org, project=project)], [put], status=201, answer=view
        )
        return Written(msgspec.structs.replace(view, revision=revision), revision, 201)

    def _occupied(self) -> set[tuple[str, str]]:
        """Return the projects of machines and workloads, from the cache of this process."""
        found = {(entry.parts["org"], entry.parts["project"]) for entry in self._view.vms.entries.values()}
        return found | {entry.value.home for entry in self._view.workloads.entries.values()}

    async def _is_occupied(self, org: str, project: str) -> bool:
        if (await self._store.range(VM.prefix(org=org, project=project), limit=1, keys_only=True)).items:
            return True
        if await QUOTA.get(self._store, org=org, project=project) is not None:
            return True
        return any(entry.value.home == (org, project) for entry in self._view.workloads.entries.values())


def _is_given(caller: Caller, org: str, project: str) -> bool:
    """Return whether it exists because an administrator named it, or the org, in a membership of the caller."""
    if f"{org}/{project}" in caller.memberships:
        return True
    return project == DEFAULT and (org == DEFAULT or org in caller.memberships)


def _require(caller: Caller, org: str, project: str) -> None:
    """Raise Forbidden if the caller may not create projects of the org."""
    if not caller.rights.manage_accounts or not caller.sees_org(org):
        raise Forbidden(
            f"project {org}/{project}: it does not exist, and {caller.name} may not create projects of {org}: that"
            f" takes {_RIGHT} and membership in {org};"
            f" ask an administrator: hostler project create {project} --org {org}"
        )


def _view(org: str, project: str, record: Project, revision: int) -> ProjectView:
    return ProjectView(
        org=org, name=project, created_at=record.created_at, created_by=record.created_by, revision=revision
    )
