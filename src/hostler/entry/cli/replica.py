"""`hostler replica`."""

from __future__ import annotations

import socket
from typing import Any

import click

from hostler.entry.cli.elections import opened_storage
from hostler.entry.cli.failure import tell
from hostler.entry.cli.plane_options import plane_options
from hostler.entry.cli.store_option import chosen, complete

MAX_ADDRESS = 255


def _address(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    host, _colon, port = text.rpartition(":")
    fits = len(text) <= MAX_ADDRESS and text.isprintable() and " " not in text
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or not fits:
        raise click.BadParameter(f"{text!r} is not HOST:PORT")
    return text


@click.command()
@plane_options
@click.option("--ttl", metavar="SECONDS", hidden=True, help="Deprecated alias of --leadership-ttl.")
@click.option("--replicas", metavar="N", help="How many replicas may hold a key at once. The holder of key 1 leads.")
@click.option(
    "--acquisition-timeout", metavar="SECONDS", help="End with code 1 if no key is free after this time (default 120)."
)
@click.option("--wait", is_flag=True, help="Wait for a free key without a limit: same as --acquisition-timeout 0.")
@click.option("--address", callback=_address, metavar="HOST:PORT", help="The address where others reach this replica.")
@click.option("--demonstration", is_flag=True, hidden=True, help="Run only the elections, with a fenced counter.")
def replica(
    *, ttl: str | None, address: str | None, demonstration: bool, wait: bool, accept_cluster: bool, **flags: Any
) -> None:
    """Run one replica of the control plane until Ctrl-C or SIGTERM: its API and, while it leads, its controllers.

    Start several replicas on one store, for example --store etcd://HOST:PORT. Every replica serves reads and writes;
    only the leader runs controllers. `hostler leader` shows the leader and the standby replicas. Start a standby
    replica with --wait.

    Exit code 0: the replica was asked to stop. Exit code 1: no key was free in time, the replica lost its leadership,
    or a component failed. Start it again then; a supervisor like systemd does that.
    """
    from hostler.ports.store import check_ttl
    from hostler.settings import load

    flags["leadership_ttl"] = flags["leadership_ttl"] or ttl
    if wait:
        if flags["acquisition_timeout"] is not None:
            raise click.UsageError("--wait and --acquisition-timeout: give one of them")
        flags["acquisition_timeout"] = "0"
    settings = load(flags)
    check_ttl(settings.leadership_ttl)
    if demonstration:
        code = _demonstrate(flags["store"], address, settings.leadership_ttl, settings.replicas)
    else:
        import sys

        from hostler.entry.replica import run
        from hostler.entry.server.logs import configure

        configure(settings.log_level, sys.stderr, settings.log_format)
        code = complete(run(settings, address, tell, accept_cluster=accept_cluster))
    click.get_current_context().exit(code)


def _demonstrate(store_url: str | None, address: str | None, ttl: float, replicas: int) -> int:
    from hostler.entry.campaign import CampaignConfig
    from hostler.entry.replica import demonstrate

    async def run() -> int:
        async with opened_storage(chosen(store_url), create=True) as storage:
            return await demonstrate(
                storage, CampaignConfig(address=address or socket.gethostname(), ttl=ttl, replicas=replicas), tell
            )

    return complete(run())
