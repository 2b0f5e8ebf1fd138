"""`hostler replica`."""

from __future__ import annotations

import socket
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hostler.entry.cli.elections import opened_storage, storage_option
from hostler.entry.cli.failure import one_line
from hostler.entry.cli.target import chosen, complete

if TYPE_CHECKING:
    from hostler.entry.replica import Plan

MAX_ADDRESS = 255


def _address(_: click.Context, __: click.Parameter, text: str | None) -> str:
    """HOST:PORT, or the name of this machine."""
    if text is None:
        return socket.gethostname()
    host, _colon, port = text.rpartition(":")
    fits = len(text) <= MAX_ADDRESS and text.isprintable() and " " not in text
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or not fits:
        raise click.BadParameter(f"{text!r} is no HOST:PORT")
    return text


@click.command()
@storage_option
@click.option(
    "--ttl",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    default=20.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a leader that falls silent still counts as one.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1, max=1000),
    default=1,
    show_default=True,
    metavar="N",
    help="How many replicas hold a key at once; the holder of key 1 leads.",
)
@click.option("--address", callback=_address, metavar="HOST:PORT", help="Where others find this replica.")
@click.pass_context
def replica(ctx: click.Context, store_url: str | None, ttl: float, replicas: int, address: str) -> None:
    """Run one replica until Ctrl-C or SIGTERM: it waits for its turn, leads, and hands over when it stops.

    Start several on one store; `hostler leader` shows who leads and who stands by. While it leads it counts in the
    store, under its fence, so that you can see takeovers: `hostler store watch /hostler/v1/`.

    It ends with code 0 when it was asked to stop, and with 1 when it lost its leadership or a service failed: start it
    again then (a supervisor such as systemd does that).
    """
    from hostler.entry.replica import Plan
    from hostler.ports.store import check_ttl

    plan = Plan(address=address, ttl=check_ttl(ttl), replicas=replicas)  # not a number passes the range, too
    code = complete(_run(chosen(store_url), plan))
    ctx.exit(code)


async def _run(url: str, plan: Plan) -> int:
    from hostler.entry.replica import run

    async with opened_storage(url, create=True) as storage:
        return await run(storage, plan, _tell)


def _tell(text: str) -> None:
    click.echo(f"{datetime.now().astimezone():%H:%M:%S} {one_line(text)}")
