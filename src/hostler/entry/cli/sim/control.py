"""Commands for a running simulation: `status`, `mode`, `step`, `save`, `log`, `fault`, `lift`, `switch`, `repair`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.options import chosen_server, complete, open_client, server_options, with_client
from hostler.entry.cli.show import Duration, moment, span
from hostler.errors import Conflict, Refused
from hostler.kit.plural import counted
from hostler.model.sim_api import MOST_EVENTS, MOST_SECONDS, RATES, FaultInject, HardwareCommand, HardwareVerb, Mode

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.sim_api import ProposalPage, SimLogEntry, SimView


LOOK_EVERY = 0.2
FOLLOW_EVERY = 0.5


@click.command()
@show.output_option
@with_client
async def status(client: Client, *, output: str) -> None:
    """Show the time, what is faulty, and the proposed repairs."""
    view = await client.sim.get()
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
        return
    leader = next((replica.name for replica in view.replicas if replica.leads), "none")
    running = sum(replica.runs for replica in view.replicas)
    rows = [
        ("SCENARIO", f"{view.name}, seed {view.seed}"),
        ("TIME", f"{instant(view.now)}   ({moment(view.wall)})"),
        ("MODE", f"{pace_text(view)}, epoch {view.epoch}"),
        ("NEXT", _next(view)),
        ("LEADER", f"{leader}; {running} of {counted(len(view.replicas), 'replica runs', 'replicas run')}"),
        ("TIMELINE", f"{view.timeline} to come" if view.timeline else ""),
        ("REPAIRS", "automatic where commands suffice" if view.auto_repair else "by hand"),
        ("RACKS", "\n".join(f"{rack.name}: {rack.working} of {_blades(rack.blades)}" for rack in view.racks)),
        ("FAULTY", "\n".join(f"{each.component}: {each.state}" for rack in view.racks for each in rack.amiss)),
        ("FAULTS", "\n".join(f"{fault.id}: {fault.text}" for fault in view.faults)),
        ("PROPOSED", "\n".join(f"{each.id}: {each.text} ({each.reason})" for each in view.proposals)),
        ("FAILURES", "\n".join(view.failures)),
    ]
    show.pairs([(name, "\n".join(map(show.safe, text.split("\n")))) for name, text in rows if text])


def _blades(number: int) -> str:
    return counted(number, "blade works", "blades work")


def instant(at: float) -> str:
    """Format the virtual time since the start."""
    return f"{at:.3f} s" if at < 60 else f"{at:.3f} s = {span(at)}"


def pace_text(view: SimView) -> str:
    """Describe the mode and rate of time."""
    if view.mode is Mode.MANUAL:
        waiting = f"; {counted(len(view.steps), 'step')} running" if view.steps else ""
        return f"manual{waiting}"
    most = "at most " if view.mode is Mode.NO_WAIT else ""
    return f"{view.mode.value}, {most}{view.rate:g} seconds a second"


def _next(view: SimView) -> str:
    if view.next_at is None:
        return "nothing is due"
    return f"something is due {f'in {view.next_at - view.now:.3f} s' if view.next_at > view.now else 'now'}"


@click.command()
@click.argument("mode", type=click.Choice([mode.value for mode in Mode]))
@click.option("--rate", type=click.FloatRange(*RATES), help="Virtual seconds per real second; a maximum for no_wait.")
@server_options
def mode(mode: str, rate: float | None) -> None:
    """Stop time (manual), run it at a rate (measured), or jump to the next due event (no_wait)."""
    complete(_mode(chosen_server(), Mode(mode), rate))


async def _mode(server: Server, mode: Mode, rate: float | None) -> None:
    async with open_client(server) as client:
        view = await client.sim.get()
        view = await client.sim.set_mode(mode, rate=rate, epoch=view.epoch)
    click.echo(f"{pace_text(view)}, from {instant(view.now)} on")


@click.command()
@click.argument("duration", type=Duration(), required=False)
@click.option(
    "--events", type=click.IntRange(1, MOST_EVENTS), metavar="N", help="Advance by N instants that have events."
)
@server_options
def step(duration: float | None, events: int | None) -> None:
    """Advance the time by DURATION (30, 30s, 5m, 1h), in mode manual. Default: by one event."""
    if duration is not None and events is not None:
        raise click.UsageError("give a duration or --events, not both")
    if duration is not None and duration > MOST_SECONDS:
        raise click.BadParameter(f"at most {span(MOST_SECONDS)} at once; step again")
    if duration is None and events is None:
        events = 1
    complete(_step(chosen_server(), duration, events))


async def _step(server: Server, seconds: float | None, events: int | None) -> None:
    async with open_client(server) as client:
        before = await client.sim.get()
        done = await client.sim.step(seconds, events=events, epoch=before.epoch)
        now = done.now if done.done else await _wait_for_step(client, done.id, done.epoch)
        news = await _news(client, before.log)
    for entry in news:
        click.echo(line(entry))
    click.echo(f"{instant(now)}, {now - before.now:g} s later")


async def _wait_for_step(client: Client, id_: int, epoch: int) -> float:
    """Wait until the step is done and return the instant. Conflict: the step was dropped."""
    while True:
        view = await client.sim.get()
        if view.epoch != epoch:
            raise Conflict(f"step: the mode was changed to {view.mode.value} at {view.now:g} s, before it was done")
        if all(step.id != id_ for step in view.steps):
            return view.now
        await asyncio.sleep(LOOK_EVERY)


async def _news(client: Client, after: int, most: int = 50) -> list[SimLogEntry]:
    """Return the newest log entries after `after`, at most `most`; print how many are left out."""
    page = await client.sim.log(after=after, limit=most, last=True)
    if page.items and page.items[0].number > after + 1:
        before = counted(page.items[0].number - after - 1, "entry", "entries")
        click.echo(f"… {before} before; hostler sim log shows all")
    return list(page.items)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace an existing saved simulation.")
@server_options
def save(file: Path, overwrite: bool) -> None:
    """Save the simulation to FILE; `hostler sim serve --resume FILE` continues from it.

    The file contains every write to the simulated control plane. Only its owner can read it.
    """
    from hostler.sim.journal import load, read
    from hostler.sim.journal import save as save_file

    if file.exists() or file.is_symlink():
        if not overwrite:
            raise Refused(f"{file}: it exists; name another file, or give --overwrite")
        load(file)  # overwrite only a file that is a saved simulation
    data = complete(_state(chosen_server())).encode()
    header = read(data, "the answer").header
    save_file(file, data)
    click.echo(f"{file}: saved at {instant(header.place.at)}")


async def _state(server: Server) -> str:
    async with open_client(server) as client:
        return (await client.sim.state()).file


@click.command()
@click.option("-n", "--lines", type=click.IntRange(1, 1000), default=50, show_default=True, help="Newest entries.")
@click.option("-f", "--follow", is_flag=True, help="Keep running, and show new entries.")
@show.output_option
@server_options
def log(lines: int, follow: bool, output: str) -> None:
    """Show the log of the simulation, oldest entry first."""
    if follow and output != "table":
        raise click.UsageError("--follow works only with the table; leave out -o")
    complete(_log(chosen_server(), lines, follow, output))


async def _log(server: Server, lines: int, follow: bool, output: str) -> None:
    async with open_client(server) as client:
        page = await client.sim.log(limit=lines, last=True)
        if output != "table":
            show.emit(msgspec.to_builtins(page.items), output)
            return
        last = page.total
        for entry in page.items:
            click.echo(line(entry))
        while follow:
            await asyncio.sleep(FOLLOW_EVERY)
            page = await client.sim.log(after=last, limit=1000)
            for entry in page.items:
                click.echo(line(entry))
                last = entry.number


def line(entry: SimLogEntry) -> str:
    """Format an entry of the log for people."""
    cause = f"   ← {entry.cause}" if entry.cause else ""
    told = f"{entry.component}: {entry.text}" if entry.text else entry.component
    return show.safe(f"{entry.at:12.3f}  {entry.what:<9} {told}{cause}")


NUMBERS = tuple(
    name for name in FaultInject.__struct_fields__ if name not in ("unknown", "fault", "on", "for_", "names")
)

TEXTS = ("artifact", "step")


def _known() -> dict[str, Any]:
    from hostler.sim.fault import FAULTS

    return dict(FAULTS)


@click.command()
@click.argument("fault", required=False)
@click.argument("on", required=False, default="")
@click.option("--for", "for_", type=Duration(), help="Duration of the fault. Default: until it is lifted.")
@click.option("--set", "numbers", metavar="NAME=VALUE", multiple=True, help="A parameter: --set chance=0.5.")
@click.option("--with", "names", metavar="COMPONENT", multiple=True, help="Also cut off by a partition; repeatable.")
@server_options
def fault(fault: str | None, on: str, for_: float | None, numbers: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Inject FAULT into the component ON: power r1/pdu1, network r1/b3, leader_paused, …

    Without FAULT, list all kinds of faults.
    """
    if fault is None:
        for name, kind in _known().items():
            where = f"on a {' or '.join(place for place in kind.place if place != 'all')}" if kind.place else ""
            click.echo(f"{click.style(name, bold=True):<28} {' '.join((kind.__doc__ or '').split())} {where}")
        return
    fields = {"fault": fault, "on": on} | ({} if for_ is None else {"for": for_}) | _numbers(numbers)
    if names:
        fields["names"] = list(names)
    complete(_inject(chosen_server(), FaultInject.decode(msgspec.json.encode(fields), strict=True)))


def _numbers(pairs: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in NUMBERS:
            raise click.BadParameter(f"{pair!r}: write --set NAME=VALUE; names are {', '.join(NUMBERS)}")
        try:
            found[name] = text if name in TEXTS else msgspec.json.decode(text.encode())
        except msgspec.DecodeError:
            raise click.BadParameter(f"{pair!r}: {text!r} is not a number, true or false") from None
    return found


async def _inject(server: Server, wanted: FaultInject) -> None:
    async with open_client(server) as client:
        found = await client.sim.inject(wanted)
    click.echo(f"{found.id}: {show.safe(found.text)}")


@click.command()
@click.argument("ids", metavar="ID…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Lift all active faults.")
@server_options
def lift(ids: tuple[str, ...], everything: bool) -> None:
    """Lift faults by their ids (see `hostler sim status`)."""
    if bool(ids) == everything:
        raise click.UsageError("give ids, or --all")
    complete(_lift(chosen_server(), ids))


async def _lift(server: Server, ids: tuple[str, ...]) -> None:
    async with open_client(server) as client:
        for id_ in ids or [fault.id for fault in (await client.sim.get()).faults]:
            found = await client.sim.lift(id_)
            click.echo(f"{found.id}: lifted ({show.safe(found.text)})")


@click.command()
@click.argument("command", type=click.Choice([verb.value.replace("_", "-") for verb in HardwareVerb]))
@click.argument("on")
@click.option("--guard", type=float, help="Instant of the state you decided from, in seconds. Default: now.")
@with_client
async def switch(client: Client, *, command: str, on: str, guard: float | None) -> None:
    """Switch the component ON on or off: power-off r1/b3, power-on r1/pdu1:3, disconnect r1/tor1:3, stop r1/b3.

    With --guard the command is refused if the component has changed since that instant.
    """
    verb = HardwareVerb(command.replace("-", "_"))
    decided_at = (await client.sim.get()).now if guard is None else guard
    done = await client.sim.command(HardwareCommand(command=verb, on=on, guard=decided_at))
    for line in done.changes:
        click.echo(show.safe(line))
    if not done.changes:
        click.echo(f"{show.safe(done.on)}: nothing to do, already in that state")
    elif not done.followed:
        raise Conflict(f"{done.on}: the command had no effect; see the lines above, and: hostler sim repair")


@click.command()
@click.argument("ids", metavar="[ID]…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All proposed repairs, also those that ask for a human.")
@click.option(
    "--auto/--by-hand", "automatic", default=None, help="Perform repairs automatically where commands suffice, or not."
)
@show.output_option
@server_options
def repair(ids: tuple[str, ...], everything: bool, automatic: bool | None, output: str) -> None:
    """Perform the repairs ID…; without an ID, show the proposed repairs and their reasons."""
    if ids and everything:
        raise click.UsageError("give ids or --all, not both")
    complete(_repair(chosen_server(), ids, everything, automatic, output))


async def _repair(server: Server, ids: tuple[str, ...], everything: bool, automatic: bool | None, output: str) -> None:
    async with open_client(server) as client:
        page = await client.sim.proposals() if automatic is None else await client.sim.auto_repair(automatic)
        chosen = [each.id for each in page.items] if everything else ids
        for id_ in chosen:
            done = await client.sim.repair(id_)
            click.echo(f"done: {show.safe(done.text.removeprefix('ask a human: '))}")
    if not chosen:
        _show(page, output)


def _show(page: ProposalPage, output: str) -> None:
    if output != "table":
        show.emit(msgspec.to_builtins(page), output)
        return
    how = "automatic repair is on, where commands suffice" if page.automatic else "automatic repair is off"
    click.echo(f"{how}; {len(page.items) or 'nothing'} proposed", err=True)
    if page.items:
        rows = [[each.id, each.text, each.reason] for each in page.items]
        show.Columns("ID", "WHAT TO DO", "BECAUSE").rows([[show.safe(cell) for cell in row] for row in rows])
