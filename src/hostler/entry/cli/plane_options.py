"""Flags that `up`, `replica` and `agent` share. The settings parse their values, like those of hostler.toml."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DATA = ("--data", "DIR", "The folder for all state, sockets and logs.  [env: HOSTLER_DATA]")
STORE = (
    "--store",
    "URL",
    "The store. Default: the embedded store in the data folder.  [env: HOSTLER_STORE]",
)
LISTEN = (
    "--listen",
    "HOST:PORT",
    "The address of the API. Default: 127.0.0.1:7070.  [env: HOSTLER_LISTEN]",
)
AGENT_LISTEN = (
    "--agent-listen",
    "HOST:PORT",
    "The address where agents serve the control plane. Default: 127.0.0.1:0.  [env: HOSTLER_AGENT_LISTEN]",
)
CERT = ("--tls-cert", "FILE", "The server's certificate.  [env: HOSTLER_TLS_CERT]")
KEY = ("--tls-key", "FILE", "The private key of the certificate.  [env: HOSTLER_TLS_KEY]")
LEADERSHIP = ("--leadership-ttl", "SECONDS", "Replace a leader that has not renewed for this long. Default: 20.")
NODE_TTL = ("--node-ttl", "SECONDS", "A node without a heartbeat for this long is unreachable. Default: 15.")
FENCING = ("--fencing-time", "SECONDS", "Time for fenced machines of an unreachable node to stop. Default: 30.")
REDIS = (
    "--redis",
    "URL",
    "Take lab requests from this Redis: redis://HOST:PORT.  [env: HOSTLER_REDIS, REDIS_CONNECTION_STRING]",
)
LABS = ("--labs", "FILE", "The lab catalogue: labs.toml.  [env: HOSTLER_LABS]")
LEVEL = ("--log-level", "LEVEL", "debug, info, warning or error.")
FORMAT = ("--log-format", "FORMAT", "json or text.")


def flags(options: Sequence[tuple[str, str, str]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add each flag as a text option; the settings check the value."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, metavar, about in reversed(options):
            command = click.option(name, metavar=metavar, help=about)(command)
        return command

    return decorated


def insecure_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--insecure", is_flag=True, default=None, help="Serve a public address without TLS: tokens are readable there."
    )(command)


class _MachinesOption(click.Option):
    """The option names the installed drivers. They are looked for when its help is shown, not at every start."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from hostler.settings.driver import machine_kinds

        *others, last = machine_kinds()
        self.help = f"The machine driver: {', '.join(others)} or {last}. Details: hostler config drivers."
        return super().get_help_record(ctx)


def machines_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--machines", metavar="KIND", cls=_MachinesOption, help="The machine driver.")(command)


def accept_cluster_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--accept-cluster",
        is_flag=True,
        help="Obey the control plane of this store even if this data folder obeyed a newer or another one. Use it once:"
        " do not put it into a unit file.",
    )(command)


def plane_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of a process that serves the API."""
    common = (DATA, STORE, LISTEN, CERT, KEY, LEADERSHIP, NODE_TTL, FENCING, REDIS, LABS, LEVEL, FORMAT)
    return flags(common)(insecure_option(accept_cluster_option(command)))


def called() -> str:
    """Return how this program was called, so that printed commands can be copied."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return "python -m hostler"
    return "hostler" if shutil.which("hostler") else min(os.path.relpath(program), os.path.abspath(program), key=len)
