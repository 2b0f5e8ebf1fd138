"""`hostler demo`: a tour of the store in five scenes, each run live on the embedded engine."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from contextlib import AsyncExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from hostler.entry.cli.options import complete, path_url
from hostler.entry.cli.plane_options import called
from hostler.kit.plural import counted
from hostler.ports.store import Put, Version
from hostler.wiring import open_store

if TYPE_CHECKING:
    from hostler.ports.store import Event, Store

ROOT = "/labs/"


class Show:
    """Output of the tour: in colour on a terminal, as plain text elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console

        class Out(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError  # the command line has an exit code for it; Rich would end with 1

        self._console = Out(highlight=False, width=None if sys.stdout.isatty() else 100)
        self._scene = 0

    def scene(self, title: str, about: str) -> None:
        """Print the heading of the next scene."""
        self._scene += 1
        self._console.print(f"\n[bold]{self._scene}. {title}[/bold]", soft_wrap=True)
        self._console.print(about, style="dim", soft_wrap=True)

    def does(self, who: str, what: str) -> None:
        """Print an action of a participant."""
        self._line(who, what, "cyan")

    def sees(self, who: str, event: Event) -> None:
        """Print an event that a watcher received."""
        value = f" = {event.kv.value.decode()}" if event.type == "put" else ""
        self._line(who, f"sees {event.type} {event.kv.key}{value}  (revision {event.kv.mod_revision})", "green")

    def remark(self, what: str) -> None:
        """Print a conclusion."""
        self._console.print(f"  {'':<10} → {what}", style="bold yellow", markup=False, soft_wrap=True)

    def _line(self, who: str, what: str, style: str) -> None:
        self._console.print(f"  {who:<10} {what}", style=style, markup=False, soft_wrap=True)


async def perform(url: str, show: Show) -> None:
    """Run all scenes on the store at `url`; records of an earlier tour are deleted first."""
    async with open_store(url) as store:
        await store.delete_prefix(ROOT)
        await _put_and_watch(store, show)
        await _second_process(store, url, show)
        await _race(store, show)
        await _lease(store, show)
        await _history(store, show)


class _Watcher:
    """Reads a watch in a task and prints its events."""

    def __init__(self, store: Store, prefix: str, show: Show, name: str = "watcher") -> None:
        self._watch, self._show, self._name = store.watch(prefix), show, name
        self._seen: asyncio.Queue[Event] = asyncio.Queue()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._watch)
        task = asyncio.create_task(self._read())
        self._stack.callback(task.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _read(self) -> None:
        async for event in self._watch:
            self._show.sees(self._name, event)
            self._seen.put_nowait(event)

    async def event(self) -> Event:
        """Return the next event after it was printed."""
        return await asyncio.wait_for(self._seen.get(), 10)


async def _put_and_watch(store: Store, show: Show) -> None:
    show.scene("Put and watch", "One task writes. Another watches the prefix and receives each change in order.")
    async with _Watcher(store, ROOT, show) as watcher:
        for lab, state in (("ada", "wanted"), ("ben", "wanted"), ("ada", "running")):
            show.does("writer", f"put {ROOT}{lab} = {state}")
            await store.put(f"{ROOT}{lab}", state.encode())
            await watcher.event()
            await asyncio.sleep(0.3)


async def _second_process(store: Store, url: str, show: Show) -> None:
    show.scene("Another process", "The store is one file, and any process on this host can use it.")
    async with _Watcher(store, ROOT, show) as watcher:
        arguments = ("store", "put", "--store", url, f"{ROOT}cem", "wanted")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hostler", *arguments, stdout=asyncio.subprocess.DEVNULL
        )
        show.does(f"pid {process.pid}", f"hostler store put {ROOT}cem wanted")
        await watcher.event()
        await process.wait()
    show.remark(f"process {os.getpid()} received the event through the file, milliseconds later")


async def _race(store: Store, show: Show) -> None:
    show.scene("Transaction", "Two workers claim one lab. Each writes its name only if the key is absent. One wins.")
    key = f"{ROOT}ada/worker"

    async def take(worker: str) -> bool:
        result = await store.txn(when=[Version(key) == 0], then=[Put(key, worker.encode())])
        return result.succeeded

    workers = ("worker 1", "worker 2")
    for worker in workers:
        show.does(worker, f"if {key} is absent: put {key} = {worker}")
    off = random.sample(workers, 2)  # start in random order, so that either may win
    for worker, mine in zip(off, await asyncio.gather(*(take(worker) for worker in off))):
        show.does(worker, "won" if mine else "lost, and nothing was written")
    found = await store.get(key)
    show.remark(f"the store holds: {found.value.decode() if found else 'no worker'}")
    await asyncio.sleep(0.5)


async def _lease(store: Store, show: Show) -> None:
    show.scene("Lease", "A live node renews its lease. This one stops, and its key expires.")
    key = f"{ROOT}node-7/alive"
    async with _Watcher(store, key, show) as watcher:
        lease = await store.grant(3.0)
        show.does("node 7", f"put {key} = yes, with a lease of {lease.ttl:g} s")
        await store.put(key, b"yes", lease=lease)
        await watcher.event()
        while (left := await lease.remaining()) > 1.05:
            show.does("", f"{left:.0f} s left …")
            await asyncio.sleep(1.0)
        show.does("", f"{left:.0f} s left …")
        await watcher.event()
    show.remark("no process had to delete the key")


async def _history(store: Store, show: Show) -> None:
    show.scene("History", "Every change has a revision, and the past can be read until it is compacted.")
    now = await store.get(f"{ROOT}ada")
    if now is None:
        return
    before = await store.get(f"{ROOT}ada", revision=now.mod_revision - 1)
    show.does("reader", f"{ROOT}ada now            = {now.value.decode()}  (version {now.version})")
    if before is not None:
        at = f"at revision {now.mod_revision - 1}"
        show.does("reader", f"{ROOT}ada {at:<14} = {before.value.decode()}  (version {before.version})")
    page = await store.range(ROOT)
    keys = ", ".join(kv.key for kv in page.items)
    show.remark(f"{counted(len(page.items), 'key')} at revision {page.revision}: {keys}")


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the store in this folder.")
def demo(data: Path | None) -> None:
    """Show the store in action: put, watch, lease, transaction, history. Ten seconds, no input.

    Without --data the demo uses a temporary folder and deletes it afterwards.
    """
    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix="hostler-demo-") if data is None else nullcontext(str(data))
    with temporary as folder:
        url = path_url("sqlite", Path(folder) / "demo.db")
        complete(perform(url, Show()))
        _farewell(Path(folder), keep=data is not None)


def _farewell(folder: Path, *, keep: bool) -> None:
    me = called()
    place = str(folder.absolute()) if keep else "$HOME/hostler-demo"
    store = f"--store sqlite://{place}/demo.db"
    click.echo("\nYour turn:\n")
    click.echo(f"  {me} store put /labs/me hello {store}" if keep else f"  {me} demo --data ~/hostler-demo")
    click.echo(f"  {me} store list /labs/ {store}")
    click.echo(f"  {me} store watch /labs/ {store}")
    click.echo(f"\n`{me} --help` shows everything; docs/cli.md explains it.")
