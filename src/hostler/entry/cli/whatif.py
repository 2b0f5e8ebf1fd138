"""`hostler whatif`: copy a live control plane into the simulator, and inject faults there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.engine.controllers.brake import SHARE
from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_store, complete, open_chosen
from hostler.entry.cli.progress import Ticker
from hostler.entry.cli.show import Duration, span
from hostler.errors import Invalid
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from hostler.sim.fault import Fault
    from hostler.sim.whatif import Affected, Answer, Copied

SHOWN = 200
"""The largest number of machines that a table shows; `-o json` has them all."""


@click.command()
@click.option("--from-store", "store_url", metavar="URL", help="The store to copy. It is not changed.")
@click.option(
    "--drain", multiple=True, metavar="NAME", help="Drain a node, a blade (r1/b3), a rack, a zone or a region."
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="KIND[:ON][,NAME=VALUE…]",
    help="Inject a fault: power:r1/pdu1, blade_crash:r1/b3, store_unavailable,for=300, partition,names=r1+r2, …",
)
@click.option("--within", type=Duration(), default="2h", show_default=True, help="Virtual time to simulate.")
@click.option("--boot-time", type=Duration(), default="30s", show_default=True, help="Boot time of a machine.")
@click.option(
    "--brake-share",
    type=click.FloatRange(0, 1),
    default=SHARE,
    show_default="a third",
    help="Fence no node when more than this share becomes unreachable together.",
)
@click.option("--power", is_flag=True, help="The control plane can switch unreachable nodes off and confirm it.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="The seed for all randomness.")
@show.output_option
def whatif(
    *, store_url: str | None, drain: tuple[str, ...], faults: tuple[str, ...], output: str, **options: Any
) -> None:
    """Predict what would happen if nodes were drained or something failed, without changing anything.

    The command copies the records of the store into a simulated datacenter, with the same machines on the same nodes
    under the same controllers. It runs the drains and faults there, and shows the outcome for each machine.
    """
    from hostler.sim.whatif import Question, ask

    question = Question(drain=drain, faults=tuple(fault(text) for text in faults), **options)
    if not drain and not faults:
        raise Invalid("whatif: nothing to simulate; give --drain or --fault")
    with Ticker() as ticker:
        copy: Copied = complete(_copy_store(chosen_store(store_url), ticker))
        answer = ask(copy, question, tell=ticker.tell)
    if output != "table":
        show.emit(msgspec.to_builtins(answer), output)
        return
    _show_answer(answer)


async def _copy_store(url: str, ticker: Ticker) -> Copied:
    from hostler.sim.whatif import copy_records

    async with open_chosen(url, create=False) as store:
        return await copy_records(store, lambda family, count: ticker.tell(f"{count} of {family}"))


def fault(text: str) -> Fault:
    """Parse a fault such as `power:r1/pdu1,for=60`. Invalid: the text is not a fault."""
    from hostler.sim.fault import fault_of

    head, *numbers = text.split(",")
    kind, _, on = head.partition(":")
    fields: dict[str, Any] = {"fault": kind.strip(), **({"on": on.strip()} if on else {})}
    for number in numbers:
        name, equals, value = number.partition("=")
        if not equals:
            raise Invalid(f"fault {text!r}: {number!r} is not NAME=VALUE")
        if name.strip() == "names":
            fields["names"] = value.split("+")
            continue
        try:
            fields[name.strip()] = float(value)
        except ValueError:
            fields[name.strip()] = value.strip()
    return fault_of(fields)


def _show_answer(answer: Answer) -> None:
    fates: dict[str, int] = {}
    for machine in answer.affected:
        fates[machine.fate] = fates.get(machine.fate, 0) + 1
    if answer.affected:
        show.Columns("MACHINE", "FATE", "FROM", "TO", "AWAY", "WHY").rows(
            [_row(machine) for machine in answer.affected[:SHOWN]]
        )
        click.echo()
    if len(answer.affected) > SHOWN:
        click.echo(f"… and {len(answer.affected) - SHOWN} more; -o json shows them all")
    moves = [(fate, move) for fate in answer.slices for move in fate.moves]
    if answer.slices:
        show.Columns("SLICE", "FROM", "TO", "WHY").rows(
            [
                (show.safe(move.artifact), move.before, move.after or "-", show.safe(move.why) or "-")
                for _, move in moves[:SHOWN]
            ]
        )
        if len(moves) > SHOWN:
            click.echo(f"… and {len(moves) - SHOWN} more; -o json shows them all")
        for fate in answer.slices:
            click.echo(
                f"{fate.slice}: {fate.ready} serve now, {fate.least} at the lowest point, {fate.after} in the end"
                f" (of {fate.instances})"
            )
        click.echo()
    told = ", ".join(f"{count} {fate}" for fate, count in fates.items()) or "no machine would move"
    end = f"over after {span(answer.took)}" if answer.settled else f"not finished after {span(answer.took)}"
    click.echo(f"{told}; {answer.unaffected} unaffected; {end}")
    if answer.waiting:
        click.echo(f"{answer.waiting} had no node, or did not run, at the start")
    if answer.silent:
        note(f"unreachable at the start, so nothing is placed there: {', '.join(answer.silent)}")
    if answer.left_out:
        note(f"left out, because their racks are in the inventory and they are not: {', '.join(answer.left_out)}")
    if answer.unreadable:
        unread = counted(answer.unreadable, "record could not be read and was", "records could not be read and were")
        note(f"{unread} left out; hostler doctor names them")


def _row(machine: Affected) -> tuple[str, ...]:
    away = span(machine.away) if machine.away else "-"
    return (
        show.safe(machine.name),
        machine.fate,
        machine.before or "-",
        machine.after or "-",
        away,
        show.safe(machine.why) or "-",
    )
