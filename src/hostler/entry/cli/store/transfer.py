"""`hostler store copy`, `backup`, `restore`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostler.entry.cli.failure import note
from hostler.entry.cli.progress import Ticker
from hostler.entry.cli.target import chosen, complete, opened, redacted, store_option
from hostler.errors import Invalid
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.entry.transfer.fill import Outcome, Progress

_LEASED = "Also take keys that are attached to a lease, as keys that stay."


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--prefix", default="", help="Only keys that start with this.")
@click.option("--overwrite", is_flag=True, help="Write into a target that has keys; those not in FROM stay.")
@click.option("--with-leased", is_flag=True, help=_LEASED)
def copy(source: str, target: str, prefix: str, overwrite: bool, with_leased: bool) -> None:
    """Copy the store FROM into the store TO (two URLs), as of one revision, and verify it.

    TO must be empty (under --prefix) unless --overwrite is given. If it was interrupted, run the same command again:
    it goes on where it was, and ends with what FROM holds then. Until it is complete, TO holds a key that says so.
    Revisions, versions and history are TO's own.
    """
    if source == target:
        raise Invalid(f"{redacted(source)}: source and target are the same store; name two")
    complete(_copy(source, target, prefix, overwrite=overwrite, with_leased=with_leased))


async def _copy(source: str, target: str, prefix: str, *, overwrite: bool, with_leased: bool) -> None:
    from hostler.entry.transfer.copy import copy as copy_store

    async with opened(source, create=False) as one, opened(target, create=True) as other:
        with Ticker() as ticker:
            outcome, snapshot = await copy_store(
                one,
                other,
                redacted(source),
                prefix=prefix,
                overwrite=overwrite,
                with_leased=with_leased,
                report=_reporter(ticker),
            )
    _tell(outcome, f"revision {snapshot.revision} of {redacted(source)}")
    _tell_leased(snapshot.leased, with_leased=with_leased)


def _reporter(ticker: Ticker) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        line = f"{progress.phase}: {counted(progress.compared, 'key')}"
        if progress.phase == "copying":
            line += f", {progress.written:,} written, {progress.written_bytes / 1e6:,.1f} MB"
        ticker.tell(line)

    return report


def _tell(outcome: Outcome, source: str) -> None:
    if outcome.resumed:
        note("went on with an interrupted transfer")
    click.echo(f"{counted(outcome.keys, 'key equals', 'keys equal')} {source}, verified on both sides")
    click.echo(f"  written {outcome.written:,}, there already {outcome.unchanged:,}, removed {outcome.removed:,}")
    if outcome.left_alone:
        click.echo(f"  only in the target, left alone {outcome.left_alone:,}")
    click.echo(f"  sha256 {outcome.sha256}")


def _tell_leased(leased: int, *, with_leased: bool) -> None:
    if leased and with_leased:
        note(f"note: {counted(leased, 'key was', 'keys were')} attached to a lease; what is here stays until deleted")
    elif leased:
        were = counted(leased, "key is attached to a lease and was", "keys are attached to a lease and were")
        note(f"note: {were} left out; --with-leased takes them as plain keys")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--prefix", default="", help="Only keys that start with this.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option("--with-leased", is_flag=True, help=_LEASED)
@store_option
def backup(file: Path, prefix: str, force: bool, with_leased: bool, store_url: str | None) -> None:
    """Write the store into FILE, as of one revision; gzip if FILE ends in .gz.

    FILE appears whole or not at all, and only its owner can read it.
    """
    complete(_backup(chosen(store_url), file, prefix, force=force, with_leased=with_leased))


async def _backup(url: str, file: Path, prefix: str, *, force: bool, with_leased: bool) -> None:
    from hostler.entry.transfer.backup import write_backup
    from hostler.entry.transfer.copy import source_of

    async with opened(url, create=False) as store:
        source = await source_of(store, redacted(url), prefix, with_leased=with_leased)
        engine = (await store.status()).engine
        with Ticker() as ticker:
            trailer = await write_backup(
                file,
                source,
                prefix=prefix,
                engine=engine,
                force=force,
                report=lambda count: ticker.tell(f"writing: {counted(count, 'key')}"),
            )
    click.echo(f"{file}: {counted(trailer.keys, 'key')} as of revision {source.revision}")
    click.echo(f"  sha256 {trailer.sha256}")
    _tell_leased(source.leased, with_leased=with_leased)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--prefix", default="", help="Only keys that start with this; only these must be absent.")
@click.option("--force", is_flag=True, help="Write into a store that has keys; those not in FILE stay.")
@store_option
def restore(file: Path, prefix: str, force: bool, store_url: str | None) -> None:
    """Write the backup FILE into the store, which must be empty unless --force is given.

    FILE is checked from end to end before anything is written. If it was interrupted, run the same command again.
    """
    complete(_restore(chosen(store_url), file, prefix, force=force))


async def _restore(url: str, file: Path, prefix: str, *, force: bool) -> None:
    from hostler.entry.transfer.backup import Backup
    from hostler.entry.transfer.fill import fill

    found = Backup(file, prefix)
    async with opened(url, create=True) as store:
        with Ticker() as ticker:
            outcome = await fill(store, found, prefix, merge=force, report=_reporter(ticker))
    _tell(outcome, str(file))
