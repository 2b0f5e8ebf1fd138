"""`hostler blueprint apply`, `plan`, `validate`, `rollback`, `delete`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.blueprint.read import SIGNS, described, plan_lines, plan_sum, until
from hostler.entry.cli.options import chosen_server, complete, open_client, server_options
from hostler.entry.cli.progress import ask_if_seen, can_ask, yes_option
from hostler.entry.cli.vm.wait import wait_options
from hostler.errors import Conflict, Invalid, NotFound
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.blueprint_api import BlueprintPlan, BlueprintStatus
    from hostler.model.deployment import Blueprint

STDIN = "standard input"
file_argument = click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
name_option = click.option("--name", metavar="NAME", help="The name of the blueprint, instead of the one in the file.")


@click.command()
@file_argument
@name_option
@click.option("--plan", "plan_only", is_flag=True, help="Show what would change, and change nothing.")
@yes_option
@wait_options
@show.output_option
@server_options
def apply(*, file: Path, name: str | None, plan_only: bool, yes: bool, within: float | None, output: str) -> None:
    """Apply the blueprint in FILE (TOML or JSON; - is standard input). The file, its name or --name names it.

    The instances to load, unload and move are shown first; at a terminal you are asked to confirm. The file is applied
    completely or not at all. Applying the same file again changes nothing.
    """
    name, blueprint = _read_named(file, name)
    server = chosen_server()
    if plan_only:
        complete(_plan(server, name, blueprint, output))
    else:
        complete(_apply(server, name, blueprint, yes=yes, within=within, output=output))


@click.command()
@file_argument
@name_option
@show.output_option
@server_options
def plan(file: Path, name: str | None, output: str) -> None:
    """Show what applying FILE would load, unload and move, and where. Nothing is changed."""
    complete(_plan(chosen_server(), *_read_named(file, name), output))


@click.command()
@file_argument
def validate(file: Path) -> None:
    """Check the blueprint in FILE without a server."""
    from hostler.engine.deployments.blueprint_file import outside

    name, blueprint = _read(file)
    instances = sum(spec.instances for spec in blueprint.slices)
    slices = counted(len(blueprint.slices), "slice")
    click.echo(show.safe(f"{_name_of(file)}: {name or 'valid'}, {slices}, {counted(instances, 'instance')}"))
    for base, place in outside(blueprint).items():
        click.echo(show.safe(f"  note: {place}: {base} is not here; another blueprint must have it"), err=True)


def _name_of(file: Path) -> str:
    return STDIN if str(file) == "-" else str(file)


def _read(file: Path) -> tuple[str, Blueprint]:
    """Return the name (empty if the file has none) and the blueprint. Print each mistake, then raise Invalid."""
    from hostler.engine.deployments.blueprint_file import LARGEST_FILE, read_blueprint

    try:
        with click.open_file(str(file), "rb") as opened:
            text = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise Invalid(f"{file}: cannot be read: {error.strerror}; name another file") from None
    try:
        found = read_blueprint(text, _name_of(file))
    except Invalid as error:
        lines = str(error).splitlines()
        if len(lines) == 1:
            raise
        for line in lines:
            click.echo(show.safe(line), err=True)
        raise Invalid(f"{_name_of(file)}: {len(lines)} mistakes; correct them, see docs/deployments.md") from None
    for warning in found.warnings:
        click.echo(show.safe(f"{_name_of(file)}: warning: {warning}"), err=True)
    return found.name, found.blueprint


def _read_named(file: Path, name: str | None) -> tuple[str, Blueprint]:
    from hostler.engine.deployments.blueprint_file import check_name

    said, blueprint = _read(file)
    name = name or said or ("" if str(file) == "-" else file.stem)
    if not name:
        raise click.UsageError('standard input has no name; give one there (name = "…"), or with --name')
    return check_name(name), blueprint


async def _plan(server: Server, name: str, blueprint: Blueprint, output: str) -> None:
    async with open_client(server) as client:
        found = await client.blueprints.plan(name, blueprint)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    _tell(found, to_stderr=False)
    _refuse(found)


def _tell(plan: BlueprintPlan, *, to_stderr: bool) -> None:
    if not plan.changes and not plan.refused:
        click.echo(show.safe(f"{plan.name}: nothing to do, it matches the file"), err=to_stderr)
    else:
        for what, line in plan_lines(plan):
            mark, colour = SIGNS[what]
            inner = line.startswith(" ")
            click.secho(show.safe(line if inner else f"{mark} {line}"), fg=None if inner else colour, err=to_stderr)
    for note in plan.notes:
        click.echo(show.safe(f"  note: {note}"), err=True)
    if plan.changes:
        click.echo(show.safe(f"{plan.name}: {plan_sum(plan)}"), err=to_stderr)


def _refuse(plan: BlueprintPlan) -> None:
    for line in plan.refused:
        click.echo(show.safe(f"! {line}"), err=True)
    if plan.refused:
        raise Conflict(f"blueprint {plan.name}: cannot be applied, nothing was changed; correct the lines above")


async def _apply(
    server: Server, name: str, blueprint: Blueprint, *, yes: bool, within: float | None, output: str
) -> None:
    async with open_client(server) as client:
        found = await client.blueprints.plan(name, blueprint)
        _tell(found, to_stderr=output != "table")
        _refuse(found)
        if found.changes:
            ask_if_seen("Apply it?", yes=yes)
        view: Any = await client.blueprints.apply(name, blueprint, if_match=found.revision)
        if within is not None:
            view = await until(client, name, gone=False, within=within)
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
    elif within is not None:
        click.echo(show.safe(f"{name}: {described(view)}"))
    elif found.changes:
        click.echo(show.safe(f"{name}: applied as number {view.number}; follow it: hostler blueprint status {name}"))


@click.command()
@click.argument("name")
@click.option("--to", type=click.IntRange(min=1), help="The revision to return to.  [default: the last that differs]")
@yes_option
@wait_options
@show.output_option
@server_options
def rollback(*, name: str, to: int | None, yes: bool, within: float | None, output: str) -> None:
    """Roll the blueprint NAME back to an earlier revision (see `hostler blueprint history`).

    At a terminal the changes are shown, and you are asked to confirm. The rollback is rolled out at once, regardless of
    the strategy. A deleted blueprint can be rolled back, too.
    """
    asking = not yes and can_ask()
    complete(_rollback(chosen_server(), name, to or 0, asking=asking, within=within, output=output))


async def _rollback(server: Server, name: str, to: int, *, asking: bool, within: float | None, output: str) -> None:
    async with open_client(server) as client:
        if_match = None
        if asking:
            to, target = await _revision_of(client, name, to)
            found = await client.blueprints.plan(name, target)
            _tell(found, to_stderr=output != "table")
            _refuse(found)
            ask_if_seen(f"Roll back to number {to}?", yes=False)
            if_match = found.revision or None
        view = await client.blueprints.rollback(name, to, if_match=if_match)
        status = None if within is None else await until(client, name, gone=False, within=within)
    if output != "table":
        show.emit(msgspec.to_builtins(view if status is None else status), output)
        return
    said = f"rolled back, as number {view.number}" if status is None else described(status)
    click.echo(show.safe(f"{view.name}: {said}"))


async def _revision_of(client: Client, name: str, to: int) -> tuple[int, Blueprint]:
    """Return the revision that a rollback would restore: its number, and its content."""
    from hostler.model.deployment import Blueprint

    if to:
        return to, Blueprint(slices=(await client.blueprints.revision(name, to)).slices)
    try:
        now = (await client.blueprints.get(name)).slices
    except NotFound:
        now = ()
    async for one in client.blueprints.history(name):
        said = (await client.blueprints.revision(name, one.number)).slices
        if said != now:
            return one.number, Blueprint(slices=said)
    raise NotFound(f"blueprint {name}: no revision differs from the current one; nothing to roll back to")


@click.command()
@click.argument("name")
@yes_option
@wait_options
@show.output_option
@server_options
def delete(name: str, yes: bool, within: float | None, output: str) -> None:
    """Delete the blueprint NAME: its slices finish their calls and end. `rollback` restores it.

    A blueprint whose slices another blueprint needs is not deleted.
    """
    ask_if_seen(f"Delete {show.safe(name)}, and stop its slices?", yes=yes)
    complete(_delete(chosen_server(), name, within, output))


async def _delete(server: Server, name: str, within: float | None, output: str) -> None:
    status: BlueprintStatus | None = None
    async with open_client(server) as client:
        view = await client.blueprints.delete(name)
        if within is not None:
            status = await until(client, name, gone=True, within=within)
    if output != "table":
        show.emit(msgspec.to_builtins(view if within is None else status), output)
    else:
        click.echo(show.safe(f"{view.name}: {'deleted; its slices end' if within is None else 'gone'}"))
