"""Routes of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server.response import written
from hostler.entry.server.route import AFTER, LIMIT, STALE, Access, Answer, Asked, Parameter, Route
from hostler.model.api import BrakeView, Drain, NodePage, NodeView

if TYPE_CHECKING:
    from hostler.entry.server.route import Handler, Right

NODES = "/v1/nodes"
ONE = NODES + "/{node}"


async def listed(asked: Asked) -> Answer:
    page = await asked.services.nodes.list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    return Answer(page)


async def shown(asked: Asked) -> Answer:
    return Answer(await asked.services.nodes.get(asked.caller, asked.parts["node"], stale=asked.stale))


async def drained(asked: Asked) -> Answer:
    return written(await asked.services.nodes.drain(asked.request, asked.parts["node"], asked.body or Drain()))


async def activated(asked: Asked) -> Answer:
    return written(await asked.services.nodes.activate(asked.request, asked.parts["node"]))


async def confirmed_off(asked: Asked) -> Answer:
    return written(await asked.services.nodes.confirm_off(asked.request, asked.parts["node"]))


async def forgotten(asked: Asked) -> Answer:
    retained = asked.query["forget_retained"]
    return written(await asked.services.nodes.forget(asked.request, asked.parts["node"], forget_retained=retained))


async def brake_shown(asked: Asked) -> Answer:
    return Answer(await asked.services.nodes.brake(asked.caller))


async def brake_released(asked: Asked) -> Answer:
    return written(await asked.services.nodes.release_brake(asked.request))


def _change(verb: str, summary: str, handler: Handler, right: Right) -> Route:
    return Route(
        method="POST",
        path=f"{ONE}/{verb}",
        name=f"node.{verb.replace('-', '_')}",
        summary=summary,
        handler=handler,
        access=right,
        body=Drain if verb == "drain" else None,
        body_optional=True,
        answer=NodeView,
        conditional=True,
    )


BRAKE = "/v1/brake"
FORGET_RETAINED = Parameter(
    "forget_retained",
    "Delete the records of its retained machines too; their disks stay in the node's folder.",
    "boolean",
    default=False,
)
ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=BRAKE,
        name="brake.get",
        summary="The brake on mass failure: whether it holds, for which nodes, and what they have in common",
        about="While it holds, no node is switched off and no machine is taken from an unreachable node.",
        handler=brake_shown,
        access=Access.LOGGED_IN,
        answer=BrakeView,
    ),
    Route(
        method="POST",
        path=f"{BRAKE}/release",
        name="brake.release",
        summary="Release the brake: its nodes are fenced one at a time",
        handler=brake_released,
        access="modify_inventory",
        answer=BrakeView,
        conditional=True,
    ),
    Route(
        method="GET",
        path=NODES,
        name="node.list",
        summary="All nodes",
        handler=listed,
        access=Access.LOGGED_IN,
        answer=NodePage,
        query=(LIMIT, AFTER, STALE),
    ),
    Route(
        method="GET",
        path=ONE,
        name="node.get",
        summary="A node and its allocation",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=NodeView,
        query=(STALE,),
    ),
    _change("drain", "Drain a node: its machines are moved or stopped, one by one", drained, "modify_inventory"),
    _change("activate", "Put a drained node back in service", activated, "modify_inventory"),
    _change(
        "confirm-off",
        "Confirm that an unreachable node is off: its machines are started elsewhere",
        confirmed_off,
        "perform_repairs",
    ),
    Route(
        method="DELETE",
        path=ONE,
        name="node.forget",
        summary="Delete the record of a node that is decommissioned, or unreachable and empty",
        about="A node with retained machines is refused unless `forget_retained` is true.",
        handler=forgotten,
        access="modify_inventory",
        answer=NodeView,
        query=(FORGET_RETAINED,),
        conditional=True,
    ),
)
