"""Routes of blueprints, and of their slices and endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.slices import logs
from hostler.entry.server.route import Answer, Asked, routes_of, written
from hostler.errors import Invalid
from hostler.model.blueprint_api import (
    BlueprintDocument,
    BlueprintFile,
    BlueprintRollback,
    RolloutPromotion,
    RolloutSelection,
    RolloutVerb,
)
from hostler.model.deployment import Blueprint
from hostler.model.resources.deployments import BlueprintApi
from hostler.model.slice_api import BlueprintCalls, SliceLog

if TYPE_CHECKING:
    from hostler.engine.deployments.service import BlueprintService
    from hostler.entry.server.route import Handler


def _service(asked: Asked) -> BlueprintService:
    return asked.services.blueprints


def _wanted(asked: Asked) -> Blueprint:
    body: BlueprintDocument = asked.body
    return Blueprint(slices=body.slices)


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


async def revision(asked: Asked) -> Answer:
    number = asked.parts["number"]
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise Invalid(f"number {number[:80]!r}: must be a whole number; take one from the blueprint's history")
    return Answer(await _service(asked).revision(asked.caller, asked.parts["blueprint"], int(number)))


async def plan(asked: Asked) -> Answer:
    return Answer(await _service(asked).plan(asked.caller, asked.parts["blueprint"], _wanted(asked)))


async def apply(asked: Asked) -> Answer:
    name = asked.parts["blueprint"]
    done = await _service(asked).apply(asked.request, name, _wanted(asked))
    return written(done, location=f"/v1/blueprints/{done.value.name}" if done.status == 201 else None)


async def roll_back(asked: Asked) -> Answer:
    body: BlueprintRollback | None = asked.body
    to = 0 if body is None else body.to
    done = await _service(asked).rollback(asked.request, asked.parts["blueprint"], to)
    return written(done, location=f"/v1/blueprints/{done.value.name}" if done.status == 201 else None)


def _order(verb: RolloutVerb) -> Handler:
    async def order(asked: Asked) -> Answer:
        body: RolloutSelection = asked.body or RolloutPromotion()
        far = {"everything": body.all, "force": body.force} if isinstance(body, RolloutPromotion) else {}
        return written(await _service(asked).order(asked.request, asked.parts["blueprint"], verb, body, **far))

    return order


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


ROUTES = routes_of(
    BlueprintApi,
    "blueprints",
    calls=calls,
    read=read,
    revision=revision,
    plan=plan,
    apply=apply,
    rollback=roll_back,
    log=log,
    **{verb.value: _order(verb) for verb in RolloutVerb},
)
