"""`hostler store put`, `delete`, `compact`."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

import click

from hostler.engine.transfer.scan import pages
from hostler.entry.cli.confirm import ask
from hostler.entry.cli.failure import note
from hostler.entry.cli.show import safe
from hostler.entry.cli.store_option import chosen, complete, opened, store_option
from hostler.errors import Conflict, Invalid, NotFound
from hostler.kit.plural import counted
from hostler.ports.store import Get, ModRevision, Put, Version

if TYPE_CHECKING:
    from hostler.ports.store import Comparison, KeyValue

KEEP = 1_000
"""Revisions of history that `compact` keeps by default."""


@click.command()
@click.argument("key")
@click.argument("value", required=False)
@click.option("--file", "-f", "file", type=click.File("rb"), help="Read the value from a file; - is standard input.")
@click.option("--lease", "ttl", type=float, metavar="SECONDS", help="Delete the key after this time.")
@click.option("--if-absent", is_flag=True, help="Only if the key does not exist.")
@click.option("--if-revision", type=click.IntRange(min=1), help="Only if the key still has this revision.")
@store_option
def put(  # noqa: PLR0917
    key: str,
    value: str | None,
    file: IO[bytes] | None,
    ttl: float | None,
    if_absent: bool,
    if_revision: int | None,
    store_url: str | None,
) -> None:
    """Set KEY to VALUE. If VALUE is -, it is read from standard input.

    --if-absent and --if-revision make it a compare-and-set: exit code 4 if the condition does not hold.
    """
    if (value is None) == (file is None):
        raise click.UsageError("give either a VALUE or a --file")
    if if_absent and if_revision is not None:
        raise click.UsageError("--if-absent and --if-revision exclude each other")
    if file is not None:
        data = file.read()
    elif value == "-":
        data = sys.stdin.buffer.read()
    else:
        data = (value or "").encode(errors="surrogateescape")
    when = []
    if if_absent:
        when = [Version(key) == 0]
    elif if_revision is not None:
        when = [ModRevision(key) == if_revision]
    complete(_put(chosen(store_url), key, data, ttl, when))


async def _put(url: str, key: str, value: bytes, ttl: float | None, when: list[Comparison]) -> None:
    async with opened(url, create=True) as store:
        lease = None if ttl is None else await store.grant(ttl)
        result = await store.txn(when, [Put(key, value, lease)], [Get(key)])
        if not result.succeeded and lease is not None:
            await lease.revoke()
    if not result.succeeded:
        raise _conflict(key, result.responses[0])  # type: ignore[arg-type]
    until = "" if lease is None else f", expires in {lease.ttl:g} s"
    click.echo(f"{safe(key)}: put in revision {result.revision}{until}")


def _conflict(key: str, there: KeyValue | None) -> Conflict:
    if there is None:
        return Conflict(f"{key}: no such key, nothing was written; read again and decide")
    return Conflict(f"{key}: is at revision {there.mod_revision}, nothing was written; read it and decide")


@click.command()
@click.argument("key")
@click.option("--prefix", is_flag=True, help="Delete every key that starts with KEY.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@store_option
def delete(key: str, prefix: bool, yes: bool, store_url: str | None) -> None:
    """Delete KEY; with --prefix, every key that starts with it, after a confirmation."""
    url = chosen(store_url)
    if not prefix:
        complete(_delete(url, key))
        return
    if not key:
        raise Invalid("delete --prefix: an empty prefix would delete the whole store; name a prefix")
    count = complete(_count(url, key))
    if count == 0:
        raise NotFound(f"{key}: no key starts with it; list the keys: hostler store list")
    keys = counted(count, "key that starts", "keys that start")
    ask(f"Delete {keys} with {safe(key)}?", yes=yes, otherwise="only list them: hostler store list")
    deleted = complete(_delete_prefix(url, key))
    click.echo(f"{safe(key)}: deleted {counted(deleted, 'key')}")


async def _delete(url: str, key: str) -> None:
    async with opened(url, create=False) as store:
        found = await store.delete(key)
    if not found:
        raise NotFound(f"{key}: no such key; nothing was deleted")
    click.echo(f"{safe(key)}: deleted")


async def _count(url: str, prefix: str) -> int:
    async with opened(url, create=False) as store:
        return sum([len(page.items) async for page in pages(store, prefix, keys_only=True)])


async def _delete_prefix(url: str, prefix: str) -> int:
    async with opened(url, create=False) as store:
        return await store.delete_prefix(prefix)


@click.command()
@click.argument("revision", type=click.IntRange(min=1), required=False)
@click.option("--keep", type=click.IntRange(min=0), help=f"Keep this many revisions.  [default: {KEEP}]")
@store_option
def compact(revision: int | None, keep: int | None, store_url: str | None) -> None:
    """Discard the history of overwritten and deleted values before REVISION. Current values stay."""
    if revision is not None and keep is not None:
        raise click.UsageError("give a REVISION or --keep, not both")
    complete(_compact(chosen(store_url), revision, KEEP if keep is None else keep))


async def _compact(url: str, revision: int | None, keep: int) -> None:
    async with opened(url, create=False) as store:
        if revision is None:
            status = await store.status()
            revision = status.revision - keep
            if revision <= max(status.compact_revision, 0):
                note(f"nothing to discard: the store has no history beyond its last {keep:,} revisions")
                return
        await store.compact(revision)
    click.echo(f"history before revision {revision} is discarded")
