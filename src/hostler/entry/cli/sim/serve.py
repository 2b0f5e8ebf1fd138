"""`hostler sim serve`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli.failure import one_line
from hostler.entry.cli.plane_options import CERT, FORMAT, KEY, LEVEL, LISTEN, called, flags, insecure_option
from hostler.entry.cli.target import complete
from hostler.model.sim_api import RATES, Mode

if TYPE_CHECKING:
    from hostler.entry.up import Ready
    from hostler.settings import Settings


@click.command()
@click.argument("scenario", metavar="FILE|NAME")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.MEASURED.value,
    show_default=True,
    help="manual: time stands still until it is stepped. measured: it goes by the clock. no_wait: it does not wait.",
)
@click.option(
    "--rate",
    type=click.FloatRange(*RATES),
    help="Virtual seconds for each real one: 1 unless told otherwise; of no_wait at most 3600.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Whatever is left to chance comes from it.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for the token and the log; otherwise a temporary one, which is removed at the end.",
)
@flags((LISTEN, CERT, KEY, LEVEL, FORMAT))
@insecure_option
def serve(*, scenario: str, mode: str, rate: float | None, seed: int | None, data: Path | None, **given: Any) -> None:
    """Serve the datacenter of a scenario, with the whole API, until Ctrl-C.

    The scenario is a file, or one of those that `hostler sim list` shows. Its timeline happens as time goes; without
    one nothing happens but what you do. Every other command works against it: give it the same --data, or
    HOSTLER_DATA. All of it is gone at the end.
    """
    from hostler.entry.sim_service import story_of
    from hostler.settings import load

    story = story_of(scenario, seed)
    folder = data or Path(tempfile.mkdtemp(prefix="hostler-sim-"))
    try:
        settings = load({**given, "data": str(folder)})
        code = complete(_run(settings, story, Mode(mode), rate))
    finally:
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)
    click.get_current_context().exit(code)


async def _run(settings: Settings, story: Any, mode: Mode, rate: float | None) -> int:
    from hostler.entry.sim_service import SimService

    def ready(now: Ready) -> None:
        _ready(now, story.name, mode)

    service = SimService(settings, story, mode=mode, rate=rate, tell=_tell, warn=_warn, ready=ready)
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
    click.echo(f"\nAPI for people: {now.url}/docs   log: {now.folder.log_file}   end: Ctrl-C")
