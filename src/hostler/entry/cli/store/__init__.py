"""`hostler store`: direct access to a store."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.options import store_option

_READ = "hostler.entry.cli.store.read"
_WRITE = "hostler.entry.cli.store.write"
_TRANSFER = "hostler.entry.cli.store.transfer"
_REPAIR = "hostler.entry.cli.store.write"

COMMANDS = {
    "get": (_READ, "get", "Show one key."),
    "list": (_READ, "list_", "List the keys under a prefix."),
    "watch": (_READ, "watch", "Show changes as they happen."),
    "status": (_READ, "status", "Show the status of the store."),
    "check": (_READ, "check", "Read everything and report damage."),
    "put": (_WRITE, "put", "Set a key."),
    "delete": (_WRITE, "delete", "Delete a key, or all keys under a prefix."),
    "repair": (_REPAIR, "repair", "Make room in a full etcd."),
    "compact": (_WRITE, "compact", "Discard old history."),
    "copy": (_TRANSFER, "copy", "Copy one store into another, verified."),
    "backup": (_TRANSFER, "backup", "Write a store into a file."),
    "restore": (_TRANSFER, "restore", "Write a backup into a store."),
    "activate": (_TRANSFER, "activate", "Put a store into service, after a copy or restore."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
@store_option
def store(store_url: str | None) -> None:
    """Read, write, watch, copy and back up a store.

    The store is --store, else HOSTLER_STORE, else the one in the settings; the default is the embedded store in your
    state folder. Keep passwords in a file: etcd://HOST:PORT?user=NAME&password_file=PATH.
    """
