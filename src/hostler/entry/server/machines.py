"""Routes of virtual machines, retained machines, workloads and labs."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from msgspec import UNSET

from hostler.engine.vm_queries import VmQuery
from hostler.entry.server.problem import LAB_REFUSED, Refusal
from hostler.entry.server.response import body_of, likes_of
from hostler.entry.server.route import Answer, Asked, routes_of, write_answer
from hostler.errors import Invalid
from hostler.model.lab import LabEvent
from hostler.model.name import fold
from hostler.model.resources.machines import LabApi, RetainedApi, VmApi, WorkloadApi

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.request import Written
    from hostler.entry.server.route import Handler
    from hostler.model.lab_api import LabAnswer
    from hostler.model.vm_api import VmRowPage, VmView

_AS_IT_WAS = (LabEvent.ALREADY, LabEvent.STOPPED, LabEvent.EXTENDED, LabEvent.MESSAGE)
"""Events that are complete when they are answered; all others continue in the background."""


def labels_of(text: str | None) -> dict[str, str]:
    """Parse `a=b,c=d` into a dict. Invalid: it has another form."""
    found: dict[str, str] = {}
    for pair in text.split(",") if text else ():
        name, equals, value = pair.partition("=")
        if not name or not equals or name in found:
            raise Invalid(f"query labels = {text[:80]!r}: must be name=value,name=value, each name once")  # type: ignore[index]
        found[name] = value
    return found


async def list_vms(asked: Asked) -> Answer:
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
        return packed_page(asked, await vms.rows(asked.caller, query))
    return Answer(await vms.list(asked.caller, query))


def packed_page(asked: Asked, page: VmRowPage) -> Answer:
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


def _snapshot_verb(name: str) -> Handler:
    """Return the handler of a write about one snapshot, named in the body or in the path."""

    async def act(asked: Asked) -> Answer:
        parts = asked.parts
        verb: Callable[..., Awaitable[Written[VmView]]] = getattr(asked.services.vms, name)
        which = parts["name"] if asked.body is None else asked.body.name
        return write_answer(await verb(asked.request, parts["org"], parts["project"], parts["vm"], which))

    return act


async def apply_workload(asked: Asked) -> Answer:
    name, body = asked.parts["workload"], asked.body
    if fold(body.name) != fold(name):
        raise Invalid(f"workload {name}: the body names {body.name}; use the same name in path and body")
    done = await asked.services.workloads.apply(asked.request, body)
    return write_answer(done, location=f"/v1/workloads/{name}" if done.status == 201 else None)


async def start_lab(asked: Asked) -> Answer:
    user = asked.body.user
    done = await asked.services.labs.start(asked.request, user, asked.body.lab_id)
    return _lab_answer(user, done, location=f"/v1/labs/{user}")


async def stop_lab(asked: Asked) -> Answer:
    user = asked.parts["user"]
    return _lab_answer(user, await asked.services.labs.stop(asked.request, user, asked.query["labId"]))


async def extend_lab(asked: Asked) -> Answer:
    user, body = asked.parts["user"], asked.body
    lab_id = None if body.lab_id is UNSET else body.lab_id
    return _lab_answer(user, await asked.services.labs.extend(asked.request, user, body.minutes, lab_id))


async def send_message(asked: Asked) -> Answer:
    user = asked.parts["user"]
    return _lab_answer(user, await asked.services.labs.message(asked.request, user, asked.body.text))


def _lab_answer(user: str, done: Written[LabAnswer], *, location: str | None = None) -> Answer:
    """Return the answer. Refusal: the lab rules do not allow the request; the refusal is recorded for the user."""
    news = done.value.news
    if news.event in (LabEvent.REFUSED, LabEvent.IGNORED):
        raise Refusal(LAB_REFUSED, f"lab of {user}: {news.reason}")
    answer = write_answer(done, location=location)
    status = 200 if news.event in _AS_IT_WAS else 202
    return Answer(answer.value, answer.headers, status=status)


VM_ROUTES = routes_of(
    VmApi,
    "vms",
    list=list_vms,
    list_all=list_vms,
    images=images,
    snapshot=_snapshot_verb("snapshot"),
    restore=_snapshot_verb("restore"),
    drop_snapshot=_snapshot_verb("drop_snapshot"),
)
RETAINED_ROUTES = routes_of(RetainedApi, "retained")
WORKLOAD_ROUTES = routes_of(WorkloadApi, "workloads", apply=apply_workload)
LAB_ROUTES = routes_of(LabApi, "labs", start=start_lab, stop=stop_lab, extend=extend_lab, message=send_message)
