"""`hostler lab accounts`: an account for every student of a class, and a list of their passwords."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostler.entry.cli import show
from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.errors import Invalid, NotFound, Refused, Unavailable
from hostler.kit.plural import counted
from hostler.model.access import Role
from hostler.model.api import UserCreate
from hostler.model.lab import ORG, lab_project

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.client import Client
    from hostler.entry.cli.server_options import Server

LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"
"""What a person reads and types without a mistake: no 0 and o, no 1, i and l, no capitals."""
GROUPS, GROUP = 3, 4


def new_password() -> str:
    """59 random bits, as in `k7mp-2hxr-wq9d`."""
    return "-".join("".join(secrets.choice(LETTERS) for _ in range(GROUP)) for _ in range(GROUPS))


class PasswordList:
    """A file of lines `NAME PASSWORD`. Lines are added; none that is there is ever changed."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        text = path.read_text(encoding="utf-8")
        self._broken = bool(text) and not text.endswith("\n")
        self._known = dict(line.rsplit(maxsplit=1) for line in text.splitlines() if len(line.split()) > 1)

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Iterator[PasswordList]:
        """The list, for this process alone. A new file can be read by its owner only."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Invalid(f"passwords {path}: {(error.strerror or str(error)).lower()}; choose another file") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Unavailable(
                    f"passwords {path}: another hostler lab accounts writes it; wait until that has ended"
                ) from None
            yield cls(path, descriptor)
        finally:
            os.close(descriptor)

    def get(self, name: str) -> str | None:
        """Return the password that the list has for this name."""
        return self._known.get(name)

    def add(self, name: str, password: str) -> int:
        """Add a line, on disk when this returns; return the size that the file had before."""
        before = os.fstat(self._descriptor).st_size
        line = f"{name} {password}\n".encode()
        os.write(self._descriptor, b"\n" + line if self._broken else line)
        os.fsync(self._descriptor)
        self._broken, self._known[name] = False, password
        return before

    def take_back(self, name: str, size: int) -> None:
        """Remove the line that was just added for an account that was then refused."""
        os.ftruncate(self._descriptor, size)
        del self._known[name]


@click.command()
@click.argument("names", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--passwords",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the passwords of new accounts are added, one line NAME PASSWORD each.",
)
@server_options
def accounts(names: Path, passwords: Path) -> None:
    """Create an account for every student in NAMES, a file with one name on each line.

    Each account may use the lab of that name and nothing else. Run it again when names were added: accounts that exist
    already, and their passwords, stay as they are.

    \b
    hostler lab accounts class.txt --passwords passwords.txt
    """
    try:
        text = names.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Invalid(f"names {names}: the file is not UTF-8; save it as UTF-8") from None
    wanted = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not wanted:
        raise Invalid(f"names {names}: the file has no name in it; write one on each line")
    with PasswordList.opened(passwords) as known:
        complete(_accounts(chosen_server(), wanted, known, passwords))


async def _accounts(server: Server, names: list[str], known: PasswordList, path: Path) -> None:
    async with reached(server) as client:
        created, unknown = await create_accounts(client, names, known)
    there = len(names) - len(created)
    click.echo(f"{counted(len(created), 'account')} created, {there} there already")
    if created:
        click.echo(f"passwords of the new ones: {path}")
    for name in unknown:
        click.echo(
            f"{show.safe(name)}: has an account, and its password is not in {path}"
            f"; give it a new one: hostler user update {show.safe(name)} --password",
            err=True,
        )


async def create_accounts(client: Client, names: list[str], known: PasswordList) -> tuple[list[str], list[str]]:
    """Create the accounts that are missing; return those, and the existing ones whose password the list does not have.

    A password is in the list before its account exists. If this ends in between, the next run uses the same password.
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
