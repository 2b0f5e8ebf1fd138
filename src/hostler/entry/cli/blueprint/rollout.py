"""`hostler blueprint promote`, `pause`, `resume`, `approve`, `abort`: control of running upgrades."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.blueprint.render import step, version
from hostler.entry.cli.confirm import ask_if_seen, yes_option
from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.errors import Conflict
from hostler.model.blueprint_api import RolloutVerb

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostler.client import Client
    from hostler.entry.cli.server_options import Server
    from hostler.model.blueprint_api import BlueprintStatus, SliceStatus

WITHIN = 10.0
"""Seconds to wait until the leader has carried out an order."""
_LOOK_EVERY = 0.2
slice_option = click.option("--slice", "slice_", metavar="GROUP:NAME", help="Only this slice.  [default: all]")


@click.command()
@click.argument("name")
@slice_option
@click.option("--all", "everything", is_flag=True, help="Promote to the end of the upgrade.")
@click.option("--force", is_flag=True, help="Promote even if the measurements exceed the limits of the gate.")
@yes_option
@show.output_option
@server_options
def promote(*, name: str, slice_: str | None, everything: bool, force: bool, yes: bool, output: str) -> None:
    """Promote the running upgrade of NAME to its next stage now, without waiting for its time or approval.

    A canary moves to its next stage. Blue-green first switches the calls; promoted again, it stops keeping the old
    instances. The command is refused while the measurements of the new version exceed the limits of the gate, unless
    --force is given.
    """
    if force:
        ask_if_seen(f"Promote {show.safe(name)} regardless of the gate?", yes=yes)
    server = chosen_server()
    complete(_order(server, name, RolloutVerb.PROMOTE, slice_, output, everything=everything, force=force))


@click.command()
@click.argument("name")
@slice_option
@show.output_option
@server_options
def pause(name: str, slice_: str | None, output: str) -> None:
    """Pause the upgrade of NAME: the share of calls does not grow, and no old instance is replaced.

    A new version that fails its gate, or does not stay up, is still taken back.
    """
    complete(_order(chosen_server(), name, RolloutVerb.PAUSE, slice_, output))


@click.command()
@click.argument("name")
@slice_option
@show.output_option
@server_options
def resume(name: str, slice_: str | None, output: str) -> None:
    """Resume the paused upgrade of NAME."""
    complete(_order(chosen_server(), name, RolloutVerb.RESUME, slice_, output))


@click.command()
@click.argument("name")
@slice_option
@show.output_option
@server_options
def approve(name: str, slice_: str | None, output: str) -> None:
    """Approve the current stage of the upgrade of NAME, if its strategy has `approval = "manual"`.

    The stage ends when its time is over and its gate is passed.
    """
    complete(_order(chosen_server(), name, RolloutVerb.APPROVE, slice_, output))


@click.command()
@click.argument("name")
@slice_option
@yes_option
@show.output_option
@server_options
def abort(name: str, slice_: str | None, yes: bool, output: str) -> None:
    """Abort the upgrade of NAME: the previous version serves again.

    The blueprint does not change: applying it again retries the upgrade. Use `rollback` to return to the previous
    blueprint.
    """
    ask_if_seen(f"Abort the upgrade of {show.safe(name)}?", yes=yes)
    complete(_order(chosen_server(), name, RolloutVerb.ABORT, slice_, output))


async def _order(
    server: Server,
    name: str,
    verb: RolloutVerb,
    slice_: str | None,
    output: str,
    *,
    everything: bool = False,
    force: bool = False,
) -> None:
    async with reached(server) as client:
        before = await client.blueprints.status(name)
        # Send the state that the order is based on, so that a rollout that has advanced is not taken a stage too far.
        seen = {
            one.base: one.rollout.changed_at
            for one in before.slices
            if one.rollout is not None and verb in one.rollout.actions and slice_ in (None, one.base)
        }
        blueprints = client.blueprints
        if verb is RolloutVerb.PROMOTE:
            found = await blueprints.promote(name, slice_, all=everything, force=force, seen=seen)
        else:
            do = {
                RolloutVerb.PAUSE: blueprints.pause,
                RolloutVerb.RESUME: blueprints.resume,
                RolloutVerb.APPROVE: blueprints.approve,
                RolloutVerb.ABORT: blueprints.abort,
            }[verb]
            found = await do(name, slice_, seen=seen)
        found = await _carried_out(client, name, found, seen)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
    else:
        for one in found.slices:
            if one.base in seen:
                click.echo(show.safe(f"{one.base} {version(one.artifact)}: {_told(verb, one)}"))
    refused = [one for one in found.slices if one.base in seen and one.rollout is not None and one.rollout.refused]
    if verb is RolloutVerb.PROMOTE and refused:
        said = refused[0].rollout
        raise Conflict(f"blueprint {name}: {refused[0].base}: {'' if said is None else said.refused} (--force)")


async def _carried_out(client: Client, name: str, found: BlueprintStatus, bases: Collection[str]) -> BlueprintStatus:
    """Return the status once the leader has carried out the order, or after `WITHIN` seconds."""
    loop = asyncio.get_running_loop()
    ends = loop.time() + WITHIN
    while loop.time() < ends:
        waiting = [one.rollout for one in found.slices if one.base in bases and one.rollout is not None]
        if not any(one.ordered for one in waiting):
            break
        await asyncio.sleep(_LOOK_EVERY)
        found = await client.blueprints.status(name)
    return found


def _told(verb: RolloutVerb, one: SliceStatus) -> str:
    said = one.rollout
    if said is not None and said.ordered is not None:
        return f"{verb.value} is ordered; follow it: hostler blueprint status"
    if verb is RolloutVerb.APPROVE and said is not None and not said.awaits_approval and one.step is not None:
        return f"approved; {step(one)}{f': {said.why}' if said.why else ''}"
    return f"{step(one)}{f': {one.detail}' if one.detail else ''}"
