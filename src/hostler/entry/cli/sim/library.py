"""`hostler sim list` and `hostler sim show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.errors import Invalid
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from hostler.sim.scenario.scenario import Scenario


def open_scenario(what: str) -> Scenario:
    """Return the scenario of that name, or in that file. Invalid: it has mistakes, which were printed before."""
    from hostler.sim.scenario import library

    try:
        return library.find(what)
    except Invalid as error:
        lines = str(error).splitlines()
        for line in lines:
            note(line)
        mistakes = counted(len(lines), "mistake")
        raise Invalid(f"{what}: {mistakes}; correct it, see docs/simulation.md") from None


@click.command()
@show.output_option
def list_(output: str) -> None:
    """List the scenarios that come with Hostler: what each tests, and what should happen."""
    from hostler.sim.scenario import library

    found = [library.find(name) for name in library.names()]
    if output != "table":
        fields = ("name", "about", "length", "seed", "replicas")
        show.emit([{field: getattr(scenario, field) for field in fields} for scenario in found], output)
        return
    table = show.Columns("NAME", "LENGTH", "BLADES", "ABOUT")
    table.rows(
        [
            (scenario.name, f"{scenario.length:g} s", str(sum(1 for _ in scenario.inventory.nodes())), scenario.about)
            for scenario in found
        ]
    )


@click.command()
@click.argument("scenario", metavar="FILE|NAME")
@show.output_option
def show_(scenario: str, output: str) -> None:
    """Show the file of a scenario, as a starting point for your own. With -o json, show the parsed document."""
    from hostler.sim.scenario import library

    if output == "json":
        show.emit(open_scenario(scenario).document, output)
    else:
        click.echo(library.text_of(scenario), nl=False)
