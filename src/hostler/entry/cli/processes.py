"""`hostler replica`, `hostler agent` and `hostler lab worker`: one process each."""

from __future__ import annotations

import socket
from datetime import datetime
from typing import Any

import click

from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import one_line, tell
from hostler.entry.cli.options import chosen_store, complete
from hostler.entry.cli.plane_options import (
    AGENT_LISTEN,
    CERT,
    DATA,
    FENCING,
    FORMAT,
    KEY,
    LABS,
    LEVEL,
    NODE_TTL,
    REDIS,
    STORE,
    accept_cluster_option,
    flags,
    insecure_option,
    machines_option,
    plane_options,
)
from hostler.entry.cli.show import accelerators
from hostler.model.vm import hardware_labels

MAX_ADDRESS = 255


def _check_address(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
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
@click.option(
    "--address", callback=_check_address, metavar="HOST:PORT", help="The address where others reach this replica."
)
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
    from hostler.entry.cli.leader import opened_storage
    from hostler.entry.replica import demonstrate

    async def run() -> int:
        async with opened_storage(chosen_store(store_url), create=True) as storage:
            return await demonstrate(
                storage, CampaignConfig(address=address or socket.gethostname(), ttl=ttl, replicas=replicas), tell
            )

    return complete(run())


@click.command()
@click.option("--node", metavar="NAME", help="The name of the node: {rack}-{blade}.  [env: HOSTLER_NODE]")
@click.option("--rack", metavar="NAME", help="The rack of the node.")
@click.option("-l", "--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of the node.")
@click.option("--accelerator", multiple=True, metavar="KIND=N", help="The node has N accelerators of this kind.")
@click.option("--volume", multiple=True, metavar="NAME", help="The node has a volume of this name.")
@machines_option
@flags((STORE, DATA, AGENT_LISTEN, CERT, KEY, NODE_TTL, FENCING, LEVEL, FORMAT))
@insecure_option
@accept_cluster_option
def agent(
    labels: tuple[str, ...],
    *,
    accelerator: tuple[str, ...],
    volume: tuple[str, ...],
    accept_cluster: bool,
    **given: Any,
) -> None:
    """Run the agent of one node until Ctrl-C or SIGTERM. Its machines keep running after it ends.

    The agent carries out the commands of the leader. --store names the store that the replicas use, for example
    etcd://HOST:PORT. The agent keeps its machines in DATA/machines/NODE.
    """
    import sys

    from hostler.entry.agent import run
    from hostler.entry.server.logs import configure
    from hostler.settings import load

    has = hardware_labels("", accelerators(accelerator), volume)
    if has:
        labels = (*labels, *(f"{name}={value}" for name, value in has.items()))
    settings = load({**given, "labels": labels or None})
    configure(settings.log_level, sys.stderr, settings.log_format)
    code = complete(run(settings, tell, accept_cluster=accept_cluster))
    click.get_current_context().exit(code)


COMMANDS = {"worker": (__name__, "worker", "Take lab requests from Redis.")}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def labs() -> None:
    """Run a lab worker: the former name of `hostler lab worker`."""


@click.command()
@flags((REDIS, STORE, DATA, LABS, LEVEL, FORMAT))
def worker(**given: Any) -> None:
    """Take lab requests from Redis and write them to the store, until Ctrl-C or SIGTERM.

    hostler up and hostler replica do the same if they have a --redis; additional workers add throughput, also on other
    machines. --store names the store that the replicas use, for example etcd://HOST:PORT. Prints `ready` when it takes
    requests.
    """
    import sys

    from hostler.entry.lab_worker import run
    from hostler.entry.server.logs import configure
    from hostler.settings import load

    settings = load(given)
    configure(settings.log_level, sys.stderr, settings.log_format)
    click.get_current_context().exit(complete(run(settings, _tell)))


def _tell(text: str) -> None:
    line = text if text == "ready" else f"{datetime.now().astimezone():%H:%M:%S} {one_line(text)}"
    click.echo(line)
