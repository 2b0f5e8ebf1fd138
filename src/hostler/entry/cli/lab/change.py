"""`hostler lab start`, `stop`, `extend`, `message`, `ssh`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.lab.read import described, until
from hostler.entry.cli.options import chosen_server, complete, open_client, server_options, with_client
from hostler.entry.cli.progress import ask_if_seen, yes_option
from hostler.entry.cli.show import moment
from hostler.entry.cli.vm.ssh import Login, Said, identity_options, run_there, run_to_its_code
from hostler.entry.cli.vm.wait import wait_options
from hostler.errors import Unavailable
from hostler.model.lab import ORG, LabEvent, lab_project
from hostler.settings import load
from hostler.settings.value import seconds_of

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.lab_api import LabAnswer, LabView


LAB_ID = click.IntRange(min=1, max=2**31 - 1)


class Minutes(click.ParamType[float]):
    """A number of minutes: `30` is 30 minutes; `30m` and `1h` are as written."""

    name = "minutes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            minutes = seconds_of(value) / (1 if str(value).strip()[-1:].isdigit() else 60)
        except ValueError:
            self.fail(f"{value!r} is not a duration; write 30 for minutes, or 45m, 2h, 1d", param, ctx)
        if not 0 < minutes <= 7 * 24 * 60:
            self.fail(f"{value!r}: must be above 0 and at most a week", param, ctx)
        return minutes


@click.command()
@click.argument("user")
@click.argument("lab", type=LAB_ID)
@wait_options
@show.output_option
@with_client
async def start(client: Client, *, user: str, lab: int, within: float | None, output: str) -> None:
    """Start lab LAB for USER. If it already runs, nothing changes. Stop a different lab of USER first.

    \b
    hostler lab start ada 5 --wait
    hostler lab ssh ada
    """
    answer = await client.labs.start(user, lab)
    view = answer.lab
    if within is not None:
        view = await until(client, user, gone=False, lab_id=lab, within=within)
    said = "requested" if answer.news.event is not LabEvent.ALREADY else "already there"
    _tell(user, answer, view, output, said if within is None else "")


@click.command()
@click.argument("user")
@click.option("--lab", type=LAB_ID, help="Only if the user has this lab.")
@yes_option
@wait_options
@show.output_option
@server_options
def stop(*, user: str, lab: int | None, yes: bool, within: float | None, output: str) -> None:
    """Stop the lab of USER and delete its machine with all data. Asks for confirmation at a terminal."""
    ask_if_seen(f"Stop the lab of {show.safe(user)}, and delete its machine with all data?", yes=yes)
    complete(_stop(chosen_server(), user, lab, within, output))


async def _stop(server: Server, user: str, lab: int | None, within: float | None, output: str) -> None:
    async with open_client(server) as client:
        answer = await client.labs.stop(user, lab)
        view = answer.lab
        if within is not None and view is not None:
            view = await until(client, user, gone=True, lab_id=None, within=within, generation=view.generation)
    _tell(user, answer, view, output, "gone" if view is None else "")


@click.command()
@click.argument("user")
@click.argument("minutes", type=Minutes())
@click.option("--lab", type=LAB_ID, help="Only if the user has this lab.")
@show.output_option
@with_client
async def extend(client: Client, *, user: str, minutes: float, lab: int | None, output: str) -> None:
    """Extend the life of the lab of USER by MINUTES: 30, or 30m, 2h, 1d."""
    answer = await client.labs.extend(user, minutes, lab)
    ends = "" if answer.lab is None else f"ends {moment(answer.lab.expires_at)}"
    _tell(user, answer, answer.lab, output, ends)


@click.command()
@click.argument("user")
@click.argument("text")
@show.output_option
@with_client
async def message(client: Client, *, user: str, text: str, output: str) -> None:
    """Send TEXT to USER, who has a lab: one line of at most 500 characters.

    The message is an event of the lab. The lab's page and its terminal show it.

    \b
    hostler lab message ada "Ten minutes left: save your work"
    """
    answer = await client.labs.message(user, text)
    _tell(user, answer, answer.lab, output, "sent")


def _tell(user: str, answer: LabAnswer, view: LabView | None, output: str, said: str) -> None:
    if output != "table":
        show.emit(msgspec.to_builtins(msgspec.structs.replace(answer, lab=view)), output)
        return
    words = [text for text in (said, "" if view is None else described(view)) if text]
    click.echo(f"{show.safe(user)}: {show.safe(', '.join(words))}")


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("owner", metavar="USER")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-t", "--terminal", is_flag=True, help="Give the command a terminal.")
@identity_options
@server_options
def ssh(
    *, owner: str, command: tuple[str, ...], terminal: bool, user: str | None, identities: tuple[Path, ...]
) -> None:
    """Log into the lab of USER, or run a COMMAND there and exit with its code.

    On the machine of hostler up, the key of the lab terminal is used. Elsewhere your own key is used, which labs.toml
    must list in ssh_keys.

    \b
    hostler lab ssh ada
    hostler lab ssh ada -- uname -a
    """
    said = Said.of(command, terminal=terminal)
    key = load({"data": click.get_current_context().meta.get("hostler.data")}).lab_key
    also = (key,) if os.access(key, os.R_OK) else ()
    run_to_its_code(_ssh(chosen_server(), owner, said, Login(user, identities, also)))


async def _ssh(server: Server, owner: str, said: Said, login: Login) -> int:
    again = f"hostler lab ssh {owner}"
    async with open_client(server) as client:
        lab = await client.labs.get(owner)
        if not lab.vm:
            raise Unavailable(f"lab of {owner}: no machine yet ({lab.phase.value}); see hostler lab watch {owner}")
        return await run_there(client, await client.vms.get(ORG, lab_project(owner), lab.vm), said, login, again)
