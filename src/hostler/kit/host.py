"""This host: which names lead to it, the name of its user, and Unix sockets whose paths are too long."""

from __future__ import annotations

import getpass
import ipaddress
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what "every address" means to a local caller


def is_loopback(host: str) -> bool:
    """Return whether data sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def have_a_name() -> None:
    """Ensure that the user has a name: asyncssh needs one, and the user of a service or container may have none."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"


LEAVE_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Arguments for `start_unix_server`, which since Python 3.13 looks for the socket's file, to delete it at the end.

Our addresses lead through descriptors that are closed by then, or that belong to another process: there is no such
file, and asyncio refuses to serve the socket.
"""
LONGEST = 100
"""Bytes that fit into a socket address everywhere: Linux has room for 107, macOS for 103."""
_DESCRIPTORS = "/proc/self/fd"
_SHORT = "/tmp"  # noqa: S108 - the path of `tempfile` is too long on macOS; mkdtemp makes a folder of our own in it


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """Yield a path of a socket in `folder` that fits into a socket address, and is valid until the context ends.

    It leads through a descriptor of the folder; on hosts without `/proc`, through a temporary link if it is too long.
    """
    descriptor = os.open(folder, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        through = f"{_DESCRIPTORS}/{descriptor}"
        if _is_folder(through):
            yield f"{through}/{name}"
            return
    finally:
        os.close(descriptor)
    path = folder.absolute() / name
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    import tempfile  # slow to import, and workers of slices import this module

    with tempfile.TemporaryDirectory(prefix="hostler-", dir=_SHORT) as own:
        link = Path(own) / "folder"
        link.symlink_to(folder.absolute())
        yield str(link / name)


def _is_folder(path: str) -> bool:
    try:
        return os.path.isdir(path)
    except OSError:  # a sandbox denies access
        return False
