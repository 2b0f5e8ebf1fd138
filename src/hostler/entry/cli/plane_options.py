"""The flags that `up`, `replica` and `agent` share. Their values are read by the settings, like those of a file."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DATA = ("--data", "DIR", "The folder of all state, sockets and logs.  [env: HOSTLER_DATA]")
STORE = (
    "--store",
    "URL",
    "The store; the embedded one in the data folder unless told otherwise.  [env: HOSTLER_STORE]",
)
LISTEN = (
    "--listen",
    "HOST:PORT",
    "Where to serve the API; 127.0.0.1:7070 unless told otherwise.  [env: HOSTLER_LISTEN]",
)
AGENT_LISTEN = (
    "--agent-listen",
    "HOST:PORT",
    "Where agents serve other processes of their control plane; 127.0.0.1:0.  [env: HOSTLER_AGENT_LISTEN]",
)
CERT = ("--tls-cert", "FILE", "The server's certificate.  [env: HOSTLER_TLS_CERT]")
KEY = ("--tls-key", "FILE", "The key of the certificate.  [env: HOSTLER_TLS_KEY]")
LEADERSHIP = ("--leadership-ttl", "SECONDS", "After which a silent leader is replaced; 20.")
NODE_TTL = ("--node-ttl", "SECONDS", "After which a silent node counts as silent; 15.")
FENCING = ("--fencing-time", "SECONDS", "By which fenced machines of a silent node have stopped; 30.")
REDIS = (
    "--redis",
    "URL",
    "Take labs from this Redis: redis://HOST:PORT.  [env: HOSTLER_REDIS, REDIS_CONNECTION_STRING]",
)
LABS = ("--labs", "FILE", "Which labs there are: labs.toml.  [env: HOSTLER_LABS]")
LEVEL = ("--log-level", "LEVEL", "debug, info, warning or error.")
FORMAT = ("--log-format", "FORMAT", "json or text.")


def flags(options: Sequence[tuple[str, str, str]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Each as a text option; the settings check what is in it."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, metavar, about in reversed(options):
            command = click.option(name, metavar=metavar, help=about)(command)
        return command

    return decorated


def insecure_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--insecure`."""
    return click.option(
        "--insecure", is_flag=True, default=None, help="Serve a public address without TLS: tokens can be read there."
    )(command)


def accept_cluster_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--accept-cluster`."""
    return click.option(
        "--accept-cluster",
        is_flag=True,
        help="Obey the control plane of this store, although this data folder obeyed a newer or another one. Once:"
        " do not put it into a unit file.",
    )(command)


def plane_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Everything about a process with a door."""
    common = (DATA, STORE, LISTEN, CERT, KEY, LEADERSHIP, NODE_TTL, FENCING, REDIS, LABS, LEVEL, FORMAT)
    return flags(common)(insecure_option(accept_cluster_option(command)))


def called() -> str:
    """How this program was called, so that what is printed can be typed."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return "python -m hostler"
    return "hostler" if shutil.which("hostler") else min(os.path.relpath(program), os.path.abspath(program), key=len)
