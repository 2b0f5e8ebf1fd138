"""`hostler store copy`, `backup`, `restore`, `activate`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_store, complete, open_chosen, redacted, store_option
from hostler.entry.cli.progress import Ticker, ask
from hostler.errors import Invalid
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.transfer.import_keys import Outcome, Progress
    from hostler.ports.store import Store

_LEASED = "Also copy keys with a lease, as permanent keys; except those of running processes."


@click.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option("--prefix", default="", help="Only keys that start with this.")
@click.option("--overwrite", is_flag=True, help="Write into a store that has keys; keys that are not in FROM stay.")
@click.option("--with-leased", is_flag=True, help=_LEASED)
@click.option(
    "--keep-source",
    is_flag=True,
    help="Keep FROM in service. TO is then for reading only, until `hostler store activate`.",
)
def copy(  # noqa: PLR0917
    source: str, target: str, prefix: str, overwrite: bool, with_leased: bool, keep_source: bool
) -> None:
    """Copy the store FROM into the store TO (two URLs), as of one revision, and verify the copy.

    TO must be empty (under --prefix) unless --overwrite is given. To resume an interrupted copy, run the same command
    again: it continues, and ends with the then current content of FROM. Until the copy is complete, TO contains a key
    that marks it as incomplete. Versions and history are not copied.

    The control plane on FROM moves to TO: stop every process on FROM first. Afterwards up, replicas and agents refuse
    to start on FROM, and nodes obey only TO. To go back, see `hostler store activate`.
    """
    if source == target:
        raise Invalid(f"{redacted(source)}: source and target are the same store; name two")
    complete(_copy(source, target, prefix, overwrite=overwrite, with_leased=with_leased, keep_source=keep_source))


async def _copy(
    source: str, target: str, prefix: str, *, overwrite: bool, with_leased: bool, keep_source: bool
) -> None:
    from hostler.engine.transfer.copy import copy as copy_store

    async with open_chosen(source, create=False) as one, open_chosen(target, create=True) as other:
        with Ticker() as ticker:
            done = await copy_store(
                one,
                other,
                (redacted(source), redacted(target)),
                prefix=prefix,
                overwrite=overwrite,
                with_leased=with_leased,
                keep_source=keep_source,
                report=_reporter(ticker),
            )
    _tell(done.outcome, f"revision {done.snapshot.revision} of {redacted(source)}")
    if done.cluster is not None:
        click.echo(f"  {redacted(target)} is now in service (epoch {done.cluster.epoch})")
        click.echo(f"  {redacted(source)} is out of service: nothing starts on it; keep it until the new one is proven")
        _tell_revisions(go_on=done.revisions_go_on)
    elif keep_source:
        click.echo(f"  {redacted(source)} stays in service; nothing starts on {redacted(target)}")
    _tell_leased(done.snapshot.leased, with_leased=with_leased)


def _tell_revisions(*, go_on: bool) -> None:
    if not go_on:
        note(
            "note: this engine starts counting revisions again; clients that kept a revision (ETag, If-Match, a watch)"
            " must read again before they write"
        )


def _reporter(ticker: Ticker) -> Callable[[Progress], None]:
    def report(progress: Progress) -> None:
        line = f"{progress.phase}: {counted(progress.compared, 'key')}"
        if progress.phase == "copying":
            line += f", {progress.written:,} written, {progress.written_bytes / 1e6:,.1f} MB"
        ticker.tell(line)

    return report


def _tell(outcome: Outcome, source: str) -> None:
    if outcome.resumed:
        note("resumed an interrupted transfer")
    click.echo(f"{counted(outcome.keys, 'key equals', 'keys equal')} {source}, verified on both sides")
    click.echo(f"  written {outcome.written:,}, unchanged {outcome.unchanged:,}, removed {outcome.removed:,}")
    if outcome.left_alone:
        click.echo(f"  only in the target, not touched {outcome.left_alone:,}")
    click.echo(f"  sha256 {outcome.sha256}")


def _tell_leased(leased: int, *, with_leased: bool) -> None:
    if leased and with_leased:
        note(f"note: {counted(leased, 'key was', 'keys were')} attached to a lease; the copies have none and stay")
    elif leased:
        were = counted(leased, "key is attached to a lease and was", "keys are attached to a lease and were")
        note(f"note: {were} left out; --with-leased copies them as permanent keys")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--prefix", default="", help="Only keys that start with this.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@click.option("--with-leased", is_flag=True, help=_LEASED)
@store_option
def backup(file: Path, prefix: str, force: bool, with_leased: bool, store_url: str | None) -> None:
    """Write the store into FILE, as of one revision; compressed by gzip if FILE ends in .gz.

    FILE appears complete or not at all. Only its owner can read it. It contains records, not the disks of machines.
    """
    complete(_backup(chosen_store(store_url), file, prefix, force=force, with_leased=with_leased))


async def _backup(url: str, file: Path, prefix: str, *, force: bool, with_leased: bool) -> None:
    async with open_chosen(url, create=False) as store:
        await _save(store, url, file, prefix, force=force, with_leased=with_leased)


async def _save(store: Store, url: str, file: Path, prefix: str, *, force: bool, with_leased: bool) -> None:
    from hostler.engine.transfer.copy import source_of
    from hostler.entry.backup import write_backup

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
@click.option("--force", is_flag=True, help="Write into a store that has keys; keys that are not in FILE stay.")
@click.option("--replace", is_flag=True, help="Replace the content of the store, after saving it to --save-to.")
@click.option(
    "--save-to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to which --replace saves the old content.  [default: FILE.before-restore-TIME.gz, next to FILE]",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@store_option
def restore(  # noqa: PLR0917
    file: Path, prefix: str, force: bool, replace: bool, save_to: Path | None, yes: bool, store_url: str | None
) -> None:
    """Write the backup FILE into the store, which must be empty unless --replace or --force is given.

    FILE is verified completely before anything is written. To resume an interrupted restore, run the command again.

    Stop every process on the store first, and start them afterwards. New fences are above all earlier ones, the store
    starts a new epoch, and its nodes are awaited. FILE contains records, not the disks of machines.
    """
    if force and replace:
        raise click.UsageError("--force and --replace exclude each other")
    url = chosen_store(store_url)
    if replace:
        ask(
            f"Replace everything in {redacted(url)} with {file}? The current content is saved to a file first.",
            yes=yes,
            otherwise="only list the keys: hostler store list",
        )
        save_to = save_to or file.with_name(
            f"{file.name}.before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.gz"
        )
    complete(_restore(url, file, prefix, force=force, save_to=save_to if replace else None))


async def _restore(url: str, file: Path, prefix: str, *, force: bool, save_to: Path | None) -> None:
    from hostler.engine.transfer.import_keys import MARKER
    from hostler.engine.transfer.restore import restore as restore_store
    from hostler.entry.backup import Backup

    found = Backup(file, prefix)
    async with open_chosen(url, create=True) as store:
        # The rest of an interrupted restore is not worth saving; the first run has saved the original content.
        if save_to is not None and await store.get(MARKER) is None:
            await _save(store, url, save_to, "", force=False, with_leased=False)
        with Ticker() as ticker:
            done = await restore_store(
                store,
                found,
                prefix,
                merge=force,
                replace=save_to is not None,
                name=redacted(url),
                report=_reporter(ticker),
            )
    _tell(done.outcome, str(file))
    if done.cluster is not None:
        click.echo(f"  epoch {done.cluster.epoch}; the next leader has a fence above {done.fence:,}")
        _tell_revisions(go_on=done.revisions_go_on)


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@store_option
def activate(yes: bool, store_url: str | None) -> None:
    """Put this store into service as the newest of its control plane.

    Use it for a store that was copied or moved away, if the other store is given up: its later changes are lost. Also
    use it after etcd was restored from an etcd snapshot. Stop every process on both stores first. The store starts a
    new epoch, its fences continue far above the highest it knows, and its nodes are awaited.
    """
    url = chosen_store(store_url)
    ask(
        f"Put {redacted(url)} into service? Nodes will obey it, and no older copy of it. Every process on a store that"
        " took over from it must be stopped.",
        yes=yes,
    )
    complete(_activate(url))


async def _activate(url: str) -> None:
    from hostler.engine.transfer.epoch import activate as activate_store

    async with open_chosen(url, create=False) as store:
        begun, mark = await activate_store(store, redacted(url))
    if mark is not None and mark.to:
        click.echo(f"{redacted(url)}: removed the mark that {mark.to} took over")
    click.echo(
        f"{redacted(url)}: in service, epoch {begun.cluster.epoch}; the next leader has a fence above {begun.fence:,}"
    )
