"""`hostler sim serve`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli.failure import one_line
from hostler.entry.cli.options import complete
from hostler.entry.cli.plane_options import CERT, FORMAT, KEY, LEVEL, LISTEN, called, flags, insecure_option
from hostler.model.sim_api import RATES, Mode

if TYPE_CHECKING:
    from hostler.entry.sim_service import Resumed
    from hostler.entry.up import Ready
    from hostler.settings import Settings


@click.command()
@click.argument("scenario", metavar="[FILE|NAME]", required=False)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help="manual: time advances only by steps. measured (default): it follows the clock. no_wait: it jumps to the next"
    " event. With --resume the default is the saved mode.",
)
@click.option(
    "--rate",
    type=click.FloatRange(*RATES),
    help="Virtual seconds per real second. Default: 1. For no_wait it is a maximum, by default 3600.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="The seed for all randomness.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for the token and the log. Default: a temporary folder, removed at the end.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Save the simulation to this file: every 10 seconds if something happened, and at the end.",
)
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Continue from a file that --save or `hostler sim save` wrote, instead of a scenario.",
)
@flags((LISTEN, CERT, KEY, LEVEL, FORMAT))
@insecure_option
def serve(
    *,
    scenario: str | None,
    mode: str | None,
    rate: float | None,
    seed: int | None,
    data: Path | None,
    save: Path | None,
    resume: Path | None,
    **given: Any,
) -> None:
    """Serve the datacenter of a scenario, with the whole API, until Ctrl-C.

    The scenario is a file, or a name from `hostler sim list`. Its timeline happens as time advances. Every other
    command works on the simulation: give it the same --data, or HOSTLER_DATA. Its state is lost at the end, unless
    --save names a file; --resume continues from such a file.
    """
    from hostler.entry.sim_service import check_save, resumed_from, story_of
    from hostler.settings import load

    if (scenario is None) == (resume is None):
        raise click.UsageError("give a scenario (hostler sim list shows some), or --resume FILE")
    if resume is not None and seed is not None:
        raise click.UsageError("--seed: a resumed simulation keeps its original seed")
    if resume is not None:
        resumed, story = resumed_from(resume)
        header = resumed.saved.header
        begin = Mode(mode) if mode else header.mode
        rate = header.rate if rate is None and begin is header.mode else rate
    else:
        resumed, story = None, story_of(scenario or "", seed)
        begin = Mode(mode) if mode else Mode.MEASURED
    if save is not None:
        check_save(save, resumed)
    folder = data or Path(tempfile.mkdtemp(prefix="hostler-sim-"))
    try:
        settings = load({**given, "data": str(folder)})
        code = complete(_run(settings, story, begin, rate, resumed=resumed, save=save))
    finally:
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
    click.get_current_context().exit(code)


async def _run(
    settings: Settings, story: Any, mode: Mode, rate: float | None, *, resumed: Resumed | None, save: Path | None
) -> int:
    from hostler.entry.sim_service import SimReports, SimService

    def ready(now: Ready) -> None:
        _ready(now, story.name, mode)

    reports = SimReports(_tell, _warn, ready)
    service = SimService(settings, story, pace=(mode, rate), reports=reports, resumed=resumed, save=save)
    return await service.run()


def _tell(text: str) -> None:
    click.echo(one_line(text))


def _warn(text: str) -> None:
    click.echo(f"simulation: {one_line(text)}", err=True)


def _ready(now: Ready, name: str, mode: Mode) -> None:
    me, where = called(), now.folder.path
    click.echo(f"ready {now.url}")
    click.echo(f"web {now.url}/ (sign in: {me} web --data {where})")
    click.echo(f"\n{name}, {mode.value}; login: admin, with the token in {now.folder.token_file}")
    click.echo("\ntry, in another terminal:\n")
    click.echo(f"  export HOSTLER_DATA={where}")
    click.echo(f"  {me} sim status")
    click.echo(f"  {me} sim step 30s" if mode is Mode.MANUAL else f"  {me} sim mode manual")
    click.echo(f"  {me} node list")
    click.echo(f"\nAPI docs: {now.url}/docs   log: {now.folder.log_file}   end: Ctrl-C")
