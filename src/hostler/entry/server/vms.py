"""Routes of virtual machines."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from hostler.engine.vm_queries import VmQuery
from hostler.entry.server.response import body_of, likes_of, written
from hostler.entry.server.route import AFTER, LIMIT, STALE, Access, Answer, Asked, Parameter, Route
from hostler.errors import Invalid
from hostler.model.api import (
    ImageList,
    MoveRequest,
    SnapshotRequest,
    VmCreate,
    VmPage,
    VmRowPage,
    VmUpdate,
    VmView,
    Why,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.entry.server.route import Handler

PROJECT = "/v1/orgs/{org}/projects/{project}"
VMS = PROJECT + "/vms"
ONE = VMS + "/{vm}"
LABELS = Parameter(
    "labels",
    "Only those with all of these labels.",
    pattern=r"^[^=,]+=[^,]*(,[^=,]+=[^,]*)*$",
    example="tier=web,zone=a",
)

BRIEF = Parameter("brief", "Short rows (`VmRow`), for long lists.", "boolean", default=False)


def labels_of(text: str | None) -> dict[str, str]:
    """Parse `a=b,c=d` into a dict. Invalid: it has another form."""
    found: dict[str, str] = {}
    for pair in text.split(",") if text else ():
        name, equals, value = pair.partition("=")
        if not name or not equals or name in found:
            raise Invalid(f"query labels = {text[:80]!r}: must be name=value,name=value, each name once")  # type: ignore[index]
        found[name] = value
    return found


async def listed(asked: Asked) -> Answer:
    """Return the VMs of one project, or all that the caller sees."""
    vms = asked.services.vms
    query = VmQuery(
        asked.parts.get("org"),
        asked.parts.get("project"),
        limit=asked.limit,
        after=asked.after,
        labels=labels_of(asked.query["labels"]),
        stale=asked.stale,
    )
    if asked.query["brief"]:
        return packed(asked, await vms.rows(asked.caller, query))
    return Answer(await vms.list(asked.caller, query))


def packed(asked: Asked, page: VmRowPage) -> Answer:
    """Return the answer, compressed if the client accepts that: rows compress well."""
    vary = (b"vary", b"accept-encoding")
    likes = likes_of(asked.raw.headers.get(b"accept-encoding", b""))
    if not likes.get(b"gzip", likes.get(b"*", 0.0)):
        return Answer(page, (vary,))
    data = gzip.compress(body_of(page), compresslevel=1, mtime=0)
    tag = (b"etag", b'"%d"' % page.revision)
    return Answer(headers=(vary, (b"content-encoding", b"gzip"), tag), text=data)


async def images(asked: Asked) -> Answer:
    return Answer(await asked.services.nodes.images(asked.caller))


async def created(asked: Asked) -> Answer:
    org, project = asked.parts["org"], asked.parts["project"]
    done = await asked.services.vms.create(asked.request, org, project, asked.body)
    return written(done, location=f"/v1/orgs/{org}/projects/{project}/vms/{done.value.id}")


async def shown(asked: Asked) -> Answer:
    parts = asked.parts
    return Answer(
        await asked.services.vms.get(asked.caller, parts["org"], parts["project"], parts["vm"], stale=asked.stale)
    )


async def explained(asked: Asked) -> Answer:
    parts = asked.parts
    return Answer(await asked.services.vms.why(asked.caller, parts["org"], parts["project"], parts["vm"]))


async def updated(asked: Asked) -> Answer:
    parts = asked.parts
    vms = asked.services.vms
    return written(await vms.update(asked.request, parts["org"], parts["project"], parts["vm"], asked.body))


def _verb(name: str) -> Handler:
    """Return the handler of a write that takes only the machine."""

    async def act(asked: Asked) -> Answer:
        parts = asked.parts
        verb: Callable[..., Awaitable[object]] = getattr(asked.services.vms, name)
        return written(await verb(asked.request, parts["org"], parts["project"], parts["vm"]))

    return act


async def moved(asked: Asked) -> Answer:
    parts = asked.parts
    return written(
        await asked.services.vms.move(asked.request, parts["org"], parts["project"], parts["vm"], asked.body)
    )


def _snapshot_verb(name: str) -> Handler:
    """Return the handler of a write about one snapshot, named in the body or in the path."""

    async def act(asked: Asked) -> Answer:
        parts = asked.parts
        verb: Callable[..., Awaitable[object]] = getattr(asked.services.vms, name)
        which = parts["name"] if asked.body is None else asked.body.name
        return written(await verb(asked.request, parts["org"], parts["project"], parts["vm"], which))

    return act


def _change(verb: str, summary: str, path: str = "", *, method: str = "POST", handler: Handler | None = None) -> Route:
    return Route(
        method=method,
        path=ONE + path,
        name=f"vm.{verb}",
        summary=summary,
        handler=handler or _verb(verb),
        access="modify_workloads",
        status=202 if verb == "delete" else 200,
        answer=VmView,
        conditional=True,
    )


def _with_snapshot(verb: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=f"{ONE}/{verb}",
        name=f"vm.{verb}",
        summary=summary,
        handler=_snapshot_verb(verb),
        access="modify_workloads",
        body=SnapshotRequest,
        answer=VmView,
        conditional=True,
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=ONE,
        name="vm.get",
        summary="A virtual machine, by its id or its name",
        handler=shown,
        access=Access.PROJECT,
        answer=VmView,
        query=(STALE,),
    ),
    Route(
        method="GET",
        path=VMS,
        name="vm.list",
        summary="The virtual machines of a project",
        handler=listed,
        access=Access.PROJECT,
        answer=VmPage,
        brief=VmRowPage,
        query=(LIMIT, AFTER, LABELS, STALE, BRIEF),
    ),
    Route(
        method="GET",
        path="/v1/vms",
        name="vm.list_all",
        summary="All virtual machines that the caller sees",
        handler=listed,
        access=Access.LOGGED_IN,
        answer=VmPage,
        brief=VmRowPage,
        query=(LIMIT, AFTER, LABELS, STALE, BRIEF),
    ),
    Route(
        method="GET",
        path="/v1/images",
        name="image.list",
        summary="Images that nodes in service have",
        handler=images,
        access=Access.LOGGED_IN,
        answer=ImageList,
    ),
    Route(
        method="POST",
        path=VMS,
        name="vm.create",
        summary="Create a virtual machine",
        handler=created,
        access="modify_workloads",
        status=201,
        body=VmCreate,
        answer=VmView,
    ),
    Route(
        method="PATCH",
        path=ONE,
        name="vm.update",
        summary="Change a virtual machine; omitted fields stay",
        handler=updated,
        access="modify_workloads",
        body=VmUpdate,
        answer=VmView,
        conditional=True,
    ),
    _change("delete", "Delete a virtual machine; it is gone once it is not found", method="DELETE"),
    _change("start", "Start it", "/start"),
    _change("stop", "Shut it down", "/stop"),
    _change("reset", "Reset it, as with the reset button", "/reset"),
    Route(
        method="POST",
        path=ONE + "/move",
        name="vm.move",
        summary="Move it to another node, live if possible",
        handler=moved,
        access="modify_workloads",
        status=202,
        body=MoveRequest,
        answer=VmView,
        conditional=True,
    ),
    _with_snapshot("snapshot", "Take a snapshot"),
    _with_snapshot("restore", "Restore a snapshot; the machine is stopped for that"),
    _change(
        "drop_snapshot",
        "Delete a snapshot",
        "/snapshots/{name}",
        method="DELETE",
        handler=_snapshot_verb("drop_snapshot"),
    ),
    Route(
        method="GET",
        path=ONE + "/why",
        name="vm.why",
        is_long=True,
        summary="Why it is on its node, or on none: node by node",
        handler=explained,
        access=Access.PROJECT,
        answer=Why,
    ),
)
