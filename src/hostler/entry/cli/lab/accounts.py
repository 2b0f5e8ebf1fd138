"""`hostler lab accounts`: create an account for every student of a class, and a list of their passwords."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostler.entry.cli import show
from hostler.entry.cli.options import chosen_server, complete, open_client, server_options
from hostler.errors import Invalid, NotFound, Refused, Unavailable
from hostler.kit.plural import counted
from hostler.model.access import Role
from hostler.model.access_api import UserCreate
from hostler.model.lab import ORG, lab_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.client import Client
    from hostler.entry.cli.options import Server

LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
"""Characters that are hard to confuse: no 0 and o, no 1, i and l, no capitals."""
GROUPS, GROUP = 3, 4


def new_password() -> str:
    """Return a password with 59 random bits, such as `k7mp-2hxr-wq9d`."""
    return "-".join("".join(secrets.choice(LETTERS) for _ in range(GROUP)) for _ in range(GROUPS))


class PasswordList:
    """A file of lines `NAME PASSWORD`. Lines are only added; existing lines are never changed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        text = path.read_text(encoding="utf-8")
        self._broken = bool(text) and not text.endswith("\n")
        self._known = dict(line.rsplit(maxsplit=1) for line in text.splitlines() if len(line.split()) > 1)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[PasswordList]:
        """Open the list, locked for this process. A new file is readable only by its owner."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Invalid(f"passwords {path}: {(error.strerror or str(error)).lower()}; choose another file") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Unavailable(
                    f"passwords {path}: locked by another hostler lab accounts; wait until that has ended"
                ) from None
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    def get(self, name: str) -> str | None:
        """Return the password that the list has for this name."""
        return self._known.get(name)

    def add(self, name: str, password: str) -> int:
        """Add a line, which is on disk on return; return the previous size of the file."""
        before = os.fstat(self._descriptor).st_size
        line = f"{name} {password}\n".encode()
        os.write(self._descriptor, b"\n" + line if self._broken else line)
        os.fsync(self._descriptor)
        self._broken, self._known[name] = False, password
        return before

    def take_back(self, name: str, size: int) -> None:
        """Remove the line that was just added, because the server refused the account."""
        os.ftruncate(self._descriptor, size)
        del self._known[name]


@click.command()
@click.argument("names", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--passwords",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The file to which the passwords of new accounts are added, one line NAME PASSWORD each.",
)
@server_options
def accounts(names: Path, passwords: Path) -> None:
    """Create an account for every student in NAMES, a file with one name on each line.

    Each account may use the lab of that name and nothing else. Run the command again after adding names: existing
    accounts and their passwords do not change.

    \b
    hostler lab accounts class.txt --passwords passwords.txt
    """
    try:
        text = names.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Invalid(f"names {names}: the file is not UTF-8; save it as UTF-8") from None
    wanted = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not wanted:
        raise Invalid(f"names {names}: the file is empty; write one name on each line")
    with PasswordList.open(passwords) as known:
        complete(_accounts(chosen_server(), wanted, known, passwords))


async def _accounts(server: Server, names: list[str], known: PasswordList, path: Path) -> None:
    async with open_client(server) as client:
        created, unknown = await create_accounts(client, names, known)
    there = len(names) - len(created)
    click.echo(f"{counted(len(created), 'account')} created, {there} existed")
    if created:
        click.echo(f"passwords of the new accounts: {path}")
    for name in unknown:
        click.echo(
            f"{show.safe(name)}: has an account, and its password is not in {path}"
            f"; set a new one: hostler user update {show.safe(name)} --password",
            err=True,
        )


async def create_accounts(client: Client, names: list[str], known: PasswordList) -> tuple[list[str], list[str]]:
    """Create the missing accounts; return them, and the existing ones whose password is not in the list.

    A password is in the list before its account exists. If the process ends in between, the next run reuses it.
    """
    created, unknown = [], []
    for name in names:
        try:
            await client.users.get(name)
        except NotFound:
            pass
        else:
            if known.get(name) is None:
                unknown.append(name)
            continue
        password, size = known.get(name), None
        if password is None:
            password = new_password()
            size = known.add(name, password)
        request = UserCreate(
            name=name, password=password, role=Role.VIEWER, memberships=(f"{ORG}/{lab_project(name)}",)
        )
        try:
            request.encode()
            await client.users.create(request)
        except Refused:
            if size is not None:
                known.take_back(name, size)
            raise
        created.append(name)
    return created, unknown
