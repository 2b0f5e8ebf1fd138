"""The routes of blueprints, and of the slices and endpoints that come of them."""

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
INSTANCE = Parameter("instance", "Of the instance with this number.", "integer", minimum=1, maximum=2**53)
LOG_NODE = Parameter("node", "Of an instance on this node, or of one that was there.")
LINES = Parameter("lines", "The last so many lines.", "integer", minimum=0, maximum=10_000, default=100)
LOG_AFTER = Parameter(
    "after",
    "In place of `lines`: what was printed after an earlier answer, its `after`.",
    pattern=r"^[0-9.]{1,40}$",
    example="0.0",
)


def _service(asked: Asked) -> BlueprintService:
    return asked.services.blueprints


def _wanted(asked: Asked) -> Blueprint:
    body: BlueprintDocument = asked.body
    return Blueprint(slices=body.slices)


async def listed(asked: Asked) -> Answer:
    """All of them."""
    page = await _service(asked).list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    return Answer(page)


async def shown(asked: Asked) -> Answer:
    """One."""
    return Answer(await _service(asked).get(asked.caller, asked.parts["blueprint"], stale=asked.stale))


async def status(asked: Asked) -> Answer:
    """How far one is."""
    return Answer(await _service(asked).status(asked.caller, asked.parts["blueprint"], stale=asked.stale))


async def calls(asked: Asked) -> Answer:
    """What was measured of its slices."""
    service, name = _service(asked), asked.parts["blueprint"]
    status = await service.status(asked.caller, name, stale=True)
    bases = [one.base for one in status.slices]
    if asked.services.watch is None:
        now = asked.services.clock.wall()
        return Answer(BlueprintCalls(name=status.name, now=now, kept=0, slices=()))
    since = float(asked.query["since"] or 0)
    return Answer(await asked.services.watch.calls(status.name, bases, after=since))


async def read(asked: Asked) -> Answer:
    """What a file holds."""
    body: BlueprintFile = asked.body
    return Answer(await _service(asked).read(asked.caller, body.text, body.file))


async def history(asked: Asked) -> Answer:
    """What was applied."""
    page = await _service(asked).history(asked.caller, asked.parts["blueprint"], limit=asked.limit, after=asked.after)
    return Answer(page)


async def revision(asked: Asked) -> Answer:
    """One that was applied."""
    number = asked.parts["number"]
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise Invalid(f"number {number[:80]!r}: must be a whole number; take one from the blueprint's history")
    return Answer(await _service(asked).revision(asked.caller, asked.parts["blueprint"], int(number)))


async def planned(asked: Asked) -> Answer:
    """What an apply would do."""
    return Answer(await _service(asked).plan(asked.caller, asked.parts["blueprint"], _wanted(asked)))


async def applied(asked: Asked) -> Answer:
    """As it shall be."""
    name = asked.parts["blueprint"]
    done = await _service(asked).apply(asked.request, name, _wanted(asked))
    return written(done, location=f"{BLUEPRINTS}/{done.value.name}" if done.status == 201 else None)


async def rolled_back(asked: Asked) -> Answer:
    """As it was."""
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
    """The route of an order for rollouts that are under way."""
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
        about=f"{about} 409: it is not possible now, or the rollout has gone on since it was `seen`.",
    )


async def deleted(asked: Asked) -> Answer:
    """To be gone."""
    return written(await _service(asked).delete(asked.request, asked.parts["blueprint"]))


async def slices(asked: Asked) -> Answer:
    """What there is on the nodes."""
    page = await _service(asked).slices(
        asked.caller,
        node=asked.query["node"],
        artifact=asked.query["artifact"],
        limit=asked.limit,
        after=asked.after,
    )
    return Answer(page)


async def log(asked: Asked) -> Answer:
    """What an instance printed last."""
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
    """Where methods can be called."""
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
        summary="A blueprint: what shall run, and how far that is in a word",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=BlueprintView,
        query=(STALE,),
    ),
    Route(
        method="GET",
        path=ONE + "/status",
        name="blueprint.status",
        summary="How far a blueprint is, slice by slice: versions, states, nodes, and why something waits or failed",
        handler=status,
        access=Access.LOGGED_IN,
        answer=BlueprintStatus,
        query=(STALE,),
        about="Also of one that was deleted, until the last of its slices is gone.",
    ),
    Route(
        method="GET",
        path=ONE + "/calls",
        name="blueprint.calls",
        summary="What was measured of the calls of its slices, by version and second, in the last minutes",
        handler=calls,
        access=Access.LOGGED_IN,
        answer=BlueprintCalls,
        query=(SINCE,),
        about="Asked of the routers while somebody looks; nothing is stored. Of a simulation there is nothing.",
    ),
    Route(
        method="GET",
        path=ONE + "/history",
        name="blueprint.history",
        summary="What was applied, newest first",
        handler=history,
        access=Access.LOGGED_IN,
        answer=BlueprintHistory,
        query=(LIMIT, AFTER),
        about="Of a blueprint that was deleted, too.",
    ),
    Route(
        method="GET",
        path=ONE + "/history/{number}",
        name="blueprint.revision",
        summary="One revision of a blueprint, with all that it said",
        handler=revision,
        access=Access.LOGGED_IN,
        answer=RevisionView,
    ),
    Route(
        method="POST",
        path="/v1/blueprint-files",
        name="blueprint.read",
        summary="Read a blueprint's file, JSON or TOML: what it says, and what is wrong with it, with place and line",
        handler=read,
        access=Access.DEPLOYERS,
        body=BlueprintFile,
        answer=BlueprintRead,
        idempotent=False,
        about="Nothing is written. What it says can be planned and applied as it is answered, once `faults` is empty.",
    ),
    Route(
        method="POST",
        path=ONE + "/plan",
        name="blueprint.plan",
        summary="What an apply would load, unload and move, and where; the blueprint need not be there yet",
        handler=planned,
        access=Access.DEPLOYERS,
        body=BlueprintDocument,
        answer=BlueprintPlan,
        idempotent=False,
        about="Nothing is written. Nodes are those that would be chosen now. `refused` has what stands against it.",
    ),
    Route(
        method="PUT",
        path=ONE,
        name="blueprint.apply",
        summary="Wish for a blueprint, or change it to this; one that is so already stays as it is",
        handler=applied,
        access=Access.DEPLOYERS,
        also=(201,),
        body=BlueprintDocument,
        answer=BlueprintView,
        conditional=True,
        about="All or nothing. 201: it is new. 404: an artifact is not in the repository. 409: a slice belongs to"
        " another blueprint, or one that is left out is needed by another. A version that was given up is tried again.",
    ),
    Route(
        method="POST",
        path=ONE + "/rollback",
        name="blueprint.rollback",
        summary="Bring back what was applied before: the last that differs, or the revision `to`",
        handler=rolled_back,
        access=Access.DEPLOYERS,
        also=(201,),
        body=BlueprintRollback,
        body_optional=True,
        answer=BlueprintView,
        conditional=True,
        about="It is an apply like any other, and goes by rolling whatever the strategy. 201: it had been deleted.",
    ),
    _order(
        RolloutVerb.PROMOTE,
        "Take rollouts that are under way to the next stage now, or to their end",
        "The leader carries it out: a stage's time and approval are not waited for. While what was measured exceeds the"
        " limits of the gate it refuses, and `refused` says why, unless there is `force`. `promote` in `ordered`: it is"
        " not carried out yet.",
    ),
    _order(
        RolloutVerb.PAUSE,
        "Hold rollouts that are under way where they are",
        "No share of the calls grows, and no old instance is replaced. A gate that fails takes the new version back all"
        " the same.",
    ),
    _order(RolloutVerb.RESUME, "Let rollouts that are paused go on", "They go on where they were."),
    _order(
        RolloutVerb.APPROVE,
        "Approve the present stage of rollouts whose strategy asks for manual approval",
        "The stage ends once its time is over and its gate is passed.",
    ),
    _order(
        RolloutVerb.ABORT,
        "Take the new version of rollouts that are under way back; the version before serves",
        "The blueprint stays as it is, and its slice is failed; an apply tries again.",
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
        summary="What there is of slices on the nodes, in order of node and artifact",
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
        summary="What an instance of a slice printed last, in all its lives",
        handler=log,
        access=Access.DEPLOYERS,
        answer=SliceLog,
        query=(LOG_NODE, INSTANCE, LINES, LOG_AFTER),
        about="`artifact` is group:name:version, or group:name for any version. Of several instances that which is not"
        " well, else the first; where none is left, what was printed last where one failed. At most 256 KiB, and 4096"
        " characters of a line. 503: the node cannot be reached.",
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
