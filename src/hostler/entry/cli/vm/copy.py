"""`hostler vm cp`: copy files and folders to or from a machine, as a tar stream over SSH."""

from __future__ import annotations

import asyncio
import os
import posixpath
import shlex
from pathlib import Path
from typing import IO, TYPE_CHECKING

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_server, complete, open_client, project_options, server_options
from hostler.entry.cli.progress import Ticker
from hostler.entry.cli.vm.ssh import identity_options, write_all
from hostler.errors import HostlerError, NotFound, Refused
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    import asyncssh

    from hostler.entry.cli.options import Server

CHUNK = 256 * 1024
_KIND = "if [ -d {0} ]; then echo folder; elif [ -e {0} ]; then echo file; else echo none; fi"


@click.command()
@click.argument("source")
@click.argument("target")
@identity_options
@project_options
@server_options
def cp(*, source: str, target: str, user: str | None, identities: tuple[Path, ...], org: str, project: str) -> None:
    """Copy a file, or a folder with its content. SOURCE or TARGET is VM:PATH; an empty PATH is the home folder.

    As with cp, SOURCE is copied into TARGET if TARGET is a folder, otherwise to that name. Data from a machine is
    written only below TARGET.

    \b
    hostler vm cp site/ web:/srv
    hostler vm cp web:/var/log/messages .
    """
    come_from, go_to = _split(source), _split(target)
    copying, place = Copying(user, identities), (org, project)
    if come_from is not None and go_to is None:
        click.echo(complete(copying.fetch(chosen_server(), place, *come_from, Path(target))))
    elif go_to is not None and come_from is None:
        click.echo(complete(copying.send(chosen_server(), place, *go_to, Local(Path(source)))))
    else:
        raise click.UsageError("one argument must be VM:PATH, the other a local path (./a:b for a name with a colon)")


def _split(text: str) -> tuple[str, str] | None:
    """Split into machine and path; None: it is a local path."""
    vm, colon, path = text.partition(":")
    if not colon or not vm or "/" in vm or vm.startswith("."):
        return None
    return vm, path.removeprefix("~/") or "." if path != "~" else "."


class Local:
    """A local file or folder. NotFound: it does not exist."""

    def __init__(self, path: Path) -> None:
        from hostler.entry.archive import size_of

        if not path.exists():
            raise NotFound(f"{path}: no such local file or folder; check the name")
        self.path, self.name, self.is_folder, self.size = path, path.resolve().name, path.is_dir(), size_of(path)


class Copying:
    """One copy operation, with its login."""

    def __init__(self, user: str | None, identities: tuple[Path, ...]) -> None:
        self._user, self._identities = user, identities
        self._done = 0

    async def send(self, server: Server, place: tuple[str, str], vm: str, path: str, source: Local) -> str:
        """Copy to the machine; return the line to print."""
        from hostler.entry.archive import pack
        from hostler.entry.ssh import logged_in

        async with open_client(server) as client:
            view = await client.vms.get(*place, vm)
            channel = client.vms.ssh(*place, view.id)
            async with logged_in(channel, view, user=self._user, identities=self._identities) as connection:
                folder, name = await _put_where(connection, path, source.name, of_folder=source.is_folder)
                with Ticker() as ticker:

                    def work(file: IO[bytes]) -> None:
                        pack(source.path, name, file, self._counting(ticker, source.size), note)

                    await _feed(connection, f"cd {_quote(folder)} && exec tar -xf -", work)
        return f"{show.safe(str(source.path))} → {show.safe(vm)}:{show.safe(posixpath.join(folder, name))}"

    async def fetch(self, server: Server, place: tuple[str, str], vm: str, path: str, target: Path) -> str:
        """Copy from the machine; return the line to print."""
        from hostler.entry.archive import unpack
        from hostler.entry.ssh import logged_in

        async with open_client(server) as client:
            view = await client.vms.get(*place, vm)
            channel = client.vms.ssh(*place, view.id)
            async with logged_in(channel, view, user=self._user, identities=self._identities) as connection:
                kind = await _kind(connection, path)
                if kind not in ("folder", "file"):
                    raise NotFound(f"{vm}:{path}: no such file or folder; check the name")
                into, only = _get_where(target, path, of_folder=kind == "folder")
                if kind == "folder":
                    into.mkdir(exist_ok=True)
                    line = f"cd {_quote(path)} && exec tar -cf - ."
                else:
                    folder, name = posixpath.split(path.rstrip("/"))
                    line = f"cd {_quote(folder or '.')} && exec tar -chf - {shlex.quote('./' + name)}"
                with Ticker() as ticker:
                    files = await _take_output(
                        connection, line, lambda file: unpack(file, into, self._counting(ticker, None), only=only)
                    )
        shown = into if only is None else into / only
        what = f"{counted(files, 'file')}, {_bytes(self._done)}"
        return f"{show.safe(vm)}:{show.safe(path)} → {show.safe(str(shown))} ({what})"

    def _counting(self, ticker: Ticker, total: int | None) -> Callable[[int], None]:
        def more(size: int) -> None:
            self._done += size
            ticker.tell(f"{_bytes(self._done)}{f' of {_bytes(total)}' if total else ''}")

        return more


async def _put_where(
    connection: asyncssh.SSHClientConnection, path: str, name: str, *, of_folder: bool
) -> tuple[str, str]:
    """Return the remote folder, and the name in it."""
    kind = await _kind(connection, path)
    if kind == "folder":
        return path, name
    if kind != "none" and of_folder:
        raise Refused(f"{path}: is a file in the machine, and a folder cannot replace it; choose another target")
    folder, last = posixpath.split(path.rstrip("/"))
    if path.endswith("/") or last in ("", ".", ".."):
        raise NotFound(f"{path}: no such folder in the machine; create it first")
    if await _kind(connection, folder or ".") != "folder":
        raise NotFound(f"{folder}: no such folder in the machine; create it first")
    return folder or ".", last


def _get_where(target: Path, path: str, *, of_folder: bool) -> tuple[Path, str | None]:
    """Return the local folder to unpack into, and the file name if a single file is copied."""
    name = posixpath.basename(posixpath.normpath(path))
    named = name not in ("", ".", "..")
    if target.is_dir():
        if of_folder:
            return (target / name if named else target), None
        return target, name
    if not target.parent.is_dir() or str(target).endswith("/"):
        raise NotFound(f"{target.parent}: no such local folder; create it first")
    if of_folder and target.exists():
        raise Refused(f"{target}: is a file, and a folder cannot replace it; choose another target")
    return (target, None) if of_folder else (target.parent, target.name)


async def _kind(connection: asyncssh.SSHClientConnection, path: str) -> str:
    ran = await connection.run(_KIND.format(_quote(path)))
    return str(ran.stdout or "").strip() or "none"


def _quote(path: str) -> str:
    """Quote a path for the remote shell, so that it is never taken for an option."""
    return shlex.quote(path if path.startswith("/") else f"./{path}")


async def _feed(connection: asyncssh.SSHClientConnection, line: str, work: Callable[[IO[bytes]], None]) -> None:
    """Run `line` remotely with the output of `work` as its input."""
    process = await connection.create_process(line, encoding=None)
    read, write = os.pipe()
    working = asyncio.create_task(asyncio.to_thread(_run_copy, write, "wb", work), name="cp: packing")
    try:
        try:
            while data := await asyncio.to_thread(os.read, read, CHUNK):
                process.stdin.write(data)
                await process.stdin.drain()
            process.stdin.write_eof()
        except (BrokenPipeError, ConnectionError):
            pass  # the remote command ended early; `_checked` reports why
        finally:
            os.close(read)
        error = await _first_error(working)
        await _check_result(process, error)
    finally:
        await asyncio.gather(working, return_exceptions=True)
        process.close()


async def _take_output(connection: asyncssh.SSHClientConnection, line: str, work: Callable[[IO[bytes]], int]) -> int:
    """Run `line` remotely and pass its output to `work`."""
    process = await connection.create_process(line, encoding=None)
    read, write = os.pipe()
    working = asyncio.create_task(asyncio.to_thread(_run_copy, read, "rb", work), name="cp: unpacking")
    try:
        process.stdin.write_eof()
        try:
            while data := await process.stdout.read(CHUNK):
                await asyncio.to_thread(write_all, write, data)
        except BrokenPipeError:
            process.close()  # unpacking has refused the data; its error is raised below
        finally:
            os.close(write)
        error = await _first_error(working)
        if error is not None and isinstance(error, HostlerError):
            raise error
        await _check_result(process, error)
        return working.result()
    finally:
        await asyncio.gather(working, return_exceptions=True)
        process.close()


def _run_copy(descriptor: int, mode: str, work: Callable[[IO[bytes]], int | None]) -> int:
    with os.fdopen(descriptor, mode) as file:
        return work(file) or 0


async def _first_error(task: asyncio.Task[int]) -> BaseException | None:
    await asyncio.wait((task,))
    return task.exception()


async def _check_result(process: asyncssh.SSHClientProcess[bytes], error: BaseException | None) -> None:
    """Raise Refused with the message of the remote command if it failed; otherwise raise our own error, if any."""
    said = bytes(await process.stderr.read()).decode("utf-8", "replace").strip()
    await process.wait_closed()
    if process.exit_status not in (0, None):
        first = said.splitlines()[0] if said else f"code {process.exit_status}"
        raise Refused(f"the machine's tar failed: {first[:300]}; correct that, then copy again")
    if error is not None and not isinstance(error, BrokenPipeError):
        raise error


def _bytes(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024  # type: ignore[assignment]
    return f"{size:.1f} GiB"
