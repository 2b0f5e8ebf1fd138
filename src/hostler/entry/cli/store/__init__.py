"""`hostler store`: everything a person does with a store by hand."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.store_option import store_option

_READ = "hostler.entry.cli.store.read"
_WRITE = "hostler.entry.cli.store.write"
_TRANSFER = "hostler.entry.cli.store.transfer"
_REPAIR = "hostler.entry.cli.store.repair"

COMMANDS = {
    "get": (_READ, "get", "Show one key."),
    "list": (_READ, "list_", "Show the keys under a prefix."),
    "watch": (_READ, "watch", "Show changes as they happen."),
    "status": (_READ, "status", "Show how the store is."),
    "check": (_READ, "check", "Read everything and tell what is damaged."),
    "put": (_WRITE, "put", "Set a key."),
    "delete": (_WRITE, "delete", "Delete a key, or all under a prefix."),
    "repair": (_REPAIR, "repair", "Make room in an etcd that is full."),
    "compact": (_WRITE, "compact", "Forget old history."),
    "copy": (_TRANSFER, "copy", "Copy one store into another, verified."),
    "backup": (_TRANSFER, "backup", "Write a store into a file."),
    "restore": (_TRANSFER, "restore", "Write a backup into a store."),
    "activate": (_TRANSFER, "activate", "Make a store the one in service, after a copy or restore."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
@store_option
def store(store_url: str | None) -> None:
    """Read, write, watch, copy and back up a store.

    The store is named by --store, else by HOSTLER_STORE, else by the settings; without any of these it is the embedded
    one in your state folder. Put passwords into a file and name that: etcd://HOST:PORT?user=NAME&password_file=PATH.
    """
