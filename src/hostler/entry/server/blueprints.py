"""Routes of blueprints, and of their slices and endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.slices import logs
from hostler.entry.server.response import written
from hostler.entry.server.route import AFTER, LIMIT, STALE, Access, Answer, Asked, Parameter, Route
from hostler.errors import Invalid
from hostler.model.blueprint_api import (
    BlueprintCalls,
    BlueprintDocument,
    BlueprintFile,
    BlueprintHistory,
    BlueprintPage,
    BlueprintPlan,
    BlueprintRead,
    BlueprintRollback,
    BlueprintStatus,
    BlueprintView,
    EndpointPage,
    RevisionView,
    RolloutPromotion,
    RolloutSelection,
    RolloutVerb,
    SliceLog,
    SlicePage,
)
from hostler.model.deployment import Blueprint

if TYPE_CHECKING:
    from hostler.engine.deployments.service import BlueprintService
    from hostler.entry.server.route import Handler

BLUEPRINTS = "/v1/blueprints"
ONE = BLUEPRINTS + "/{blueprint}"
NODE = Parameter("node", "Only on this node.")
ARTIFACT = Parameter(
    "artifact", "Only of this artifact (group:name:version), or of all versions of a slice (group:name).", example="a:b"
)

SINCE = Parameter("since", "Only seconds from this instant on.", pattern=r"^[0-9]{1,12}(\.[0-9]{1,6})?$", example="0")
INSTANCE = Parameter("instance", "Only of the instance with this number.", "integer", minimum=1, maximum=2**53)
LOG_NODE = Parameter("node", "Only of an instance that is or was on this node.")
LINES = Parameter("lines", "The number of last lines.", "integer", minimum=0, maximum=10_000, default=100)
LOG_AFTER = Parameter(
    "after",
    "Instead of `lines`: the output after an earlier answer, given by its `after`.",
    pattern=r"^[0-9.]{1,40}$",
    example="0.0",
)


def _service(asked: Asked) -> BlueprintService:
    return asked.services.blueprints


def _wanted(asked: Asked) -> Blueprint:
    body: BlueprintDocument = asked.body
    return Blueprint(slices=body.slices)


async def listed(asked: Asked) -> Answer:
    page = await _service(asked).list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    return Answer(page)


async def shown(asked: Asked) -> Answer:
    return Answer(await _service(asked).get(asked.caller, asked.parts["blueprint"], stale=asked.stale))


async def status(asked: Asked) -> Answer:
    return Answer(await _service(asked).status(asked.caller, asked.parts["blueprint"], stale=asked.stale))


async def calls(asked: Asked) -> Answer:
    service, name = _service(asked), asked.parts["blueprint"]
    status = await service.status(asked.caller, name, stale=True)
    bases = [one.base for one in status.slices]
    if asked.services.watch is None:
        now = asked.services.clock.wall()
        return Answer(BlueprintCalls(name=status.name, now=now, kept=0, slices=()))
    since = float(asked.query["since"] or 0)
    return Answer(await asked.services.watch.calls(status.name, bases, after=since))


async def read(asked: Asked) -> Answer:
    body: BlueprintFile = asked.body
    return Answer(await _service(asked).read(asked.caller, body.text, body.file))


async def history(asked: Asked) -> Answer:
    page = await _service(asked).history(asked.caller, asked.parts["blueprint"], limit=asked.limit, after=asked.after)
    return Answer(page)


async def revision(asked: Asked) -> Answer:
    number = asked.parts["number"]
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise Invalid(f"number {number[:80]!r}: must be a whole number; take one from the blueprint's history")
    return Answer(await _service(asked).revision(asked.caller, asked.parts["blueprint"], int(number)))


async def planned(asked: Asked) -> Answer:
    return Answer(await _service(asked).plan(asked.caller, asked.parts["blueprint"], _wanted(asked)))


async def applied(asked: Asked) -> Answer:
    name = asked.parts["blueprint"]
    done = await _service(asked).apply(asked.request, name, _wanted(asked))
    return written(done, location=f"{BLUEPRINTS}/{done.value.name}" if done.status == 201 else None)


async def rolled_back(asked: Asked) -> Answer:
    body: BlueprintRollback | None = asked.body
    to = 0 if body is None else body.to
    done = await _service(asked).rollback(asked.request, asked.parts["blueprint"], to)
    return written(done, location=f"{BLUEPRINTS}/{done.value.name}" if done.status == 201 else None)


def _ordered(verb: RolloutVerb) -> Handler:
    async def order(asked: Asked) -> Answer:
        body: RolloutSelection = asked.body or RolloutPromotion()
        far = {"everything": body.all, "force": body.force} if isinstance(body, RolloutPromotion) else {}
        return written(await _service(asked).order(asked.request, asked.parts["blueprint"], verb, body, **far))

    return order


def _order(verb: RolloutVerb, summary: str, about: str) -> Route:
    """Return the route of a command for rollouts in progress."""
    return Route(
        method="POST",
        path=f"{ONE}/{verb.value}",
        name=f"blueprint.{verb.value}",
        summary=summary,
        handler=_ordered(verb),
        access=Access.DEPLOYERS,
        body=RolloutPromotion if verb is RolloutVerb.PROMOTE else RolloutSelection,
        body_optional=True,
        answer=BlueprintStatus,
        about=f"{about} 409: it is not possible now, or the rollout has changed since `seen`.",
    )


async def deleted(asked: Asked) -> Answer:
    return written(await _service(asked).delete(asked.request, asked.parts["blueprint"]))


async def slices(asked: Asked) -> Answer:
    page = await _service(asked).slices(
        asked.caller,
        node=asked.query["node"],
        artifact=asked.query["artifact"],
        limit=asked.limit,
        after=asked.after,
    )
    return Answer(page)


async def log(asked: Asked) -> Answer:
    query = asked.query
    node, artifact, instance = await _service(asked).log_place(
        asked.caller, asked.parts["artifact"], node=query["node"], instance=query["instance"]
    )
    after = query["after"] or ""
    found = await logs.ask(asked.services.peers, node, artifact, instance, after)
    return Answer(
        SliceLog(
            node=node,
            artifact=artifact,
            instance=found.instance,
            text=logs.told(found, None if after else query["lines"]),
            after=found.after,
            skipped=found.skipped,
        )
    )


async def endpoints(asked: Asked) -> Answer:
    page = await _service(asked).endpoints(
        asked.caller, artifact=asked.query["artifact"], limit=asked.limit, after=asked.after
    )
    return Answer(page)


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=BLUEPRINTS,
        name="blueprint.list",
        summary="All blueprints, in order of their names",
        handler=listed,
        access=Access.LOGGED_IN,
        answer=BlueprintPage,
        query=(LIMIT, AFTER, STALE),
    ),
    Route(
        method="GET",
        path=ONE,
        name="blueprint.get",
        summary="A blueprint: its spec and a one-word status",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=BlueprintView,
        query=(STALE,),
    ),
    Route(
        method="GET",
        path=ONE + "/status",
        name="blueprint.status",
        summary="The status of a blueprint by slice: versions, states, nodes, and why something waits or failed",
        handler=status,
        access=Access.LOGGED_IN,
        answer=BlueprintStatus,
        query=(STALE,),
        about="Also for a deleted blueprint, until the last of its slices is gone.",
    ),
    Route(
        method="GET",
        path=ONE + "/calls",
        name="blueprint.calls",
        summary="Call measurements of its slices in the last minutes, by version and second",
        handler=calls,
        access=Access.LOGGED_IN,
        answer=BlueprintCalls,
        query=(SINCE,),
        about="Collected from the routers on demand; nothing is stored. Empty in a simulation.",
    ),
    Route(
        method="GET",
        path=ONE + "/history",
        name="blueprint.history",
        summary="Applied revisions, newest first",
        handler=history,
        access=Access.LOGGED_IN,
        answer=BlueprintHistory,
        query=(LIMIT, AFTER),
        about="Also for a deleted blueprint.",
    ),
    Route(
        method="GET",
        path=ONE + "/history/{number}",
        name="blueprint.revision",
        summary="One revision of a blueprint, complete",
        handler=revision,
        access=Access.LOGGED_IN,
        answer=RevisionView,
    ),
    Route(
        method="POST",
        path="/v1/blueprint-files",
        name="blueprint.read",
        summary="Parse a blueprint file, JSON or TOML: its content, and its errors with path and line",
        handler=read,
        access=Access.DEPLOYERS,
        body=BlueprintFile,
        answer=BlueprintRead,
        idempotent=False,
        about="Nothing is written. The returned content can be planned and applied if `faults` is empty.",
    ),
    Route(
        method="POST",
        path=ONE + "/plan",
        name="blueprint.plan",
        summary="What an apply would load, unload and move, and where; the blueprint need not exist yet",
        handler=planned,
        access=Access.DEPLOYERS,
        body=BlueprintDocument,
        answer=BlueprintPlan,
        idempotent=False,
        about="Nothing is written. Nodes are those that would be chosen now. `refused` lists the reasons against it.",
    ),
    Route(
        method="PUT",
        path=ONE,
        name="blueprint.apply",
        summary="Create or change a blueprint; the same content again changes nothing",
        handler=applied,
        access=Access.DEPLOYERS,
        also=(201,),
        body=BlueprintDocument,
        answer=BlueprintView,
        conditional=True,
        about="All or nothing. 201: it is new. 404: an artifact is not in the repository. 409: a slice belongs to"
        " another blueprint, or one that is left out is needed by another. A failed version is tried again.",
    ),
    Route(
        method="POST",
        path=ONE + "/rollback",
        name="blueprint.rollback",
        summary="Restore an earlier revision: the last that differs, or the revision `to`",
        handler=rolled_back,
        access=Access.DEPLOYERS,
        also=(201,),
        body=BlueprintRollback,
        body_optional=True,
        answer=BlueprintView,
        conditional=True,
        about="It is an apply that always uses the rolling strategy. 201: the blueprint had been deleted.",
    ),
    _order(
        RolloutVerb.PROMOTE,
        "Promote rollouts in progress to the next stage now, or to completion",
        "The leader executes it without waiting for the stage's time and approval. While the measurements exceed the"
        " limits of the gate it refuses, and `refused` says why, unless `force` is set. `promote` in `ordered`: it is"
        " not executed yet.",
    ),
    _order(
        RolloutVerb.PAUSE,
        "Pause rollouts in progress",
        "No share of the calls grows, and no old instance is replaced. A gate that fails still rolls the new version"
        " back.",
    ),
    _order(RolloutVerb.RESUME, "Resume paused rollouts", "They continue where they were paused."),
    _order(
        RolloutVerb.APPROVE,
        "Approve the current stage of rollouts whose strategy requires manual approval",
        "The stage ends after its time, if its gate passes.",
    ),
    _order(
        RolloutVerb.ABORT,
        "Abort rollouts in progress: roll the new version back to the previous one",
        "The blueprint does not change, and its slice is marked failed; an apply tries again.",
    ),
    Route(
        method="DELETE",
        path=ONE,
        name="blueprint.delete",
        summary="Delete a blueprint and its slices; they are gone once its status is not found",
        handler=deleted,
        access=Access.DEPLOYERS,
        status=202,
        answer=BlueprintView,
        conditional=True,
        about="Its history stays. 409: a slice of it is needed by another blueprint.",
    ),
    Route(
        method="GET",
        path="/v1/slices",
        name="slice.list",
        summary="Slices on the nodes, in order of node and artifact",
        handler=slices,
        access=Access.LOGGED_IN,
        answer=SlicePage,
        query=(NODE, ARTIFACT, LIMIT, AFTER),
    ),
    Route(
        method="GET",
        path="/v1/slices/{artifact}/log",
        name="slice.log",
        costly=True,
        summary="The last output of an instance of a slice, across restarts",
        handler=log,
        access=Access.DEPLOYERS,
        answer=SliceLog,
        query=(LOG_NODE, INSTANCE, LINES, LOG_AFTER),
        about="`artifact` is group:name:version, or group:name for any version. Of several instances, an unhealthy one"
        " is preferred, else the first; if none is left, the last one that failed. At most 256 KiB, and 4096"
        " characters per line. 503: the node is unreachable.",
    ),
    Route(
        method="GET",
        path="/v1/endpoints",
        name="endpoint.list",
        summary="Where methods of slices can be called, in order of artifact, method and instance",
        handler=endpoints,
        access=Access.LOGGED_IN,
        answer=EndpointPage,
        query=(ARTIFACT, LIMIT, AFTER),
    ),
)
