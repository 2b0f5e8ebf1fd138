"""`hostler blueprint status`, `promote`, `pause`, `resume`, `approve`, `abort`: upgrades in progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.blueprint.read import described, ready, states, step, version
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_server, complete, open_client, read, server_options
from hostler.entry.cli.progress import ask_if_seen, yes_option
from hostler.errors import Conflict, NotFound, Unavailable
from hostler.model.blueprint_api import RolloutVerb

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.blueprint_api import BlueprintStatus, SliceStatus, VersionStatus


LOOK_EVERY = 1.0
NAMED = 6
"""Nodes that a line names at most."""
HEADS = ("SLICE", "VERSION", "PHASE", "READY", "CALLS", "INSTANCES", "NODES")


@click.command()
@click.argument("name")
@click.option("--watch", "watching", is_flag=True, help="Keep running, and show each change, until it is gone.")
@show.output_option
@server_options
def status(name: str, watching: bool, output: str) -> None:
    """Show the progress of the blueprint NAME: its slices, their versions and nodes, and what they wait for."""
    server = chosen_server()
    complete(_watch(server, name, output) if watching else _status(server, name, output))


async def _status(server: Server, name: str, output: str) -> None:
    async with open_client(server) as client:
        found = await read(client, lambda stale: client.blueprints.status(name, stale=stale))
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    show.pairs([(head, show.safe(text)) for head, text in _rows(found)])
    click.echo()
    show.Columns(*HEADS).rows([[show.safe(cell) for cell in row] for one in found.slices for row in slice_rows(one)])
    for line in _details(found):
        click.echo(show.safe(line))
    failing = [one.base for one in found.slices if any(each.failures for each in one.versions)]
    if failing:
        note(f"see the output: hostler slice logs {show.safe(failing[0])}")


def _rows(found: BlueprintStatus) -> Iterator[tuple[str, str]]:
    yield "NAME", found.name
    if found.number:
        yield "NUMBER", str(found.number)
    yield "PHASE", f"{found.phase.value}{f': {found.detail}' if found.detail else ''}"
    yield "READY", ready(found.slices)


def slice_rows(one: SliceStatus) -> Iterator[list[str]]:
    """Yield a row for each version."""
    for at, each in enumerate(one.versions):
        first = at == 0
        desired = one.wished if each.artifact == one.artifact else 0
        yield [
            one.base if first else "",
            version(each.artifact),
            step(one) if first else "",
            f"{each.ready}/{desired}" if each.artifact == one.artifact else str(each.ready),
            "" if each.weight is None else f"{each.weight} %",
            states(each.states) or "none",
            _nodes(each),
        ]


def _nodes(each: VersionStatus) -> str:
    named = [f"{on.node}{f' × {on.instances}' if on.instances > 1 else ''}" for on in each.nodes[:NAMED]]
    more = len(each.nodes) - len(named) + each.more_nodes
    return f"{', '.join(named)}{f' and {more} more' if more else ''}"


def _details(found: BlueprintStatus) -> Iterator[str]:
    """Yield the details that do not fit into the table."""
    for one in found.slices:
        if one.detail:
            yield f"{one.base}: {one.detail}"
        for each in one.versions:
            if each.failures and each.why not in one.detail:
                given_up = ", given up" if each.given_up else ""
                yield f"{one.base} {version(each.artifact)}: failed {each.failures} in a row{given_up}: {each.why}"
        for alert in one.alerts:
            if alert.firing:
                yield alert.why
        for reason in one.reasons[:10]:
            yield f"{one.base}: not on {reason.subject}: {reason.why}"


async def _watch(server: Server, name: str, output: str) -> None:
    """Print the status, then each change. Polls, so that an outage misses nothing."""
    watched, found = _Watched(name, output), False
    async with open_client(server) as client:
        while True:
            try:
                now = await client.blueprints.status(name)
            except NotFound:
                if not found:
                    raise
                watched.show(f"{name}: gone", {"name": name, "phase": "gone"})
                return
            except Unavailable as error:
                note(f"{error}; retrying")
                await asyncio.sleep(LOOK_EVERY * 3)
                continue
            found = True
            watched.tell(now)
            await asyncio.sleep(LOOK_EVERY)


class _Watched:
    """What was already shown of one blueprint."""

    def __init__(self, name: str, output: str) -> None:
        self._name, self._output = name, output
        self._said, self._slices = "", dict[str, list[str]]()

    def tell(self, now: BlueprintStatus) -> None:
        if (said := described(now)) != self._said:
            self._said = said
            self.show(f"{self._name}: {said}", msgspec.to_builtins(now))
        lines = {one.base: _lines(one) for one in now.slices}
        for one in now.slices:
            if self._slices.get(one.base) != lines[one.base]:
                for line in lines[one.base]:
                    self.show(line, msgspec.to_builtins(one))
                    if self._output != "table":  # one document contains all lines
                        break
        for base in self._slices.keys() - lines.keys():
            self.show(f"{base}: gone", {"base": base, "phase": "gone"})
        self._slices = lines

    def show(self, line: str, plain: Any) -> None:
        show.tell(line, plain, self._output)


def _lines(one: SliceStatus) -> list[str]:
    found = []
    for each in one.versions:
        weight = "" if each.weight is None else f", {each.weight} % of the calls"
        said = f"{one.base} {version(each.artifact)}: {step(one)}, {each.ready} ready{weight}"
        found.append(f"{said}: {states(each.states) or 'none'}")
    if one.detail:
        found.append(f"{one.base}: {one.detail}")
    found += [alert.why for alert in one.alerts if alert.why]
    return found


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
    async with open_client(server) as client:
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
                click.echo(show.safe(f"{one.base} {version(one.artifact)}: {_rollout_text(verb, one)}"))
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


def _rollout_text(verb: RolloutVerb, one: SliceStatus) -> str:
    said = one.rollout
    if said is not None and said.ordered is not None:
        return f"{verb.value} is ordered; follow it: hostler blueprint status"
    if verb is RolloutVerb.APPROVE and said is not None and not said.awaits_approval and one.step is not None:
        return f"approved; {step(one)}{f': {said.why}' if said.why else ''}"
    return f"{step(one)}{f': {one.detail}' if one.detail else ''}"
