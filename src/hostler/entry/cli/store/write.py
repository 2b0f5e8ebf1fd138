"""`hostler store put`, `delete`, `compact`; and `repair`, which makes room in a full etcd."""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING

import click

from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_store, complete, open_chosen, redacted, store_option
from hostler.entry.cli.progress import ask, ask_if_seen, yes_option
from hostler.entry.cli.show import safe
from hostler.errors import Compacted, Conflict, Invalid, NotFound, Unavailable
from hostler.kit.plural import counted, sized
from hostler.ports.store import Get, ModRevision, Put, Version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import Comparison, KeyValue, Maintained, MemberStatus, Status, Store


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
    complete(_put(chosen_store(store_url), key, data, ttl, when))


async def _put(url: str, key: str, value: bytes, ttl: float | None, when: list[Comparison]) -> None:
    async with open_chosen(url, create=True) as store:
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
    url = chosen_store(store_url)
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
    async with open_chosen(url, create=False) as store:
        found = await store.delete(key)
    if not found:
        raise NotFound(f"{key}: no such key; nothing was deleted")
    click.echo(f"{safe(key)}: deleted")


async def _count(url: str, prefix: str) -> int:
    from hostler.engine.transfer.scan import pages

    async with open_chosen(url, create=False) as store:
        return sum([len(page.items) async for page in pages(store, prefix, keys_only=True)])


async def _delete_prefix(url: str, prefix: str) -> int:
    async with open_chosen(url, create=False) as store:
        return await store.delete_prefix(prefix)


@click.command()
@click.argument("revision", type=click.IntRange(min=1), required=False)
@click.option("--keep", type=click.IntRange(min=0), help=f"Keep this many revisions.  [default: {KEEP}]")
@store_option
def compact(revision: int | None, keep: int | None, store_url: str | None) -> None:
    """Discard the history of overwritten and deleted values before REVISION. Current values stay."""
    if revision is not None and keep is not None:
        raise click.UsageError("give a REVISION or --keep, not both")
    complete(_compact(chosen_store(store_url), revision, KEEP if keep is None else keep))


async def _compact(url: str, revision: int | None, keep: int) -> None:
    async with open_chosen(url, create=False) as store:
        if revision is None:
            status = await store.status()
            revision = status.revision - keep
            if revision <= max(status.compact_revision, 0):
                note(f"nothing to discard: the store has no history beyond its last {keep:,} revisions")
                return
        await store.compact(revision)
    click.echo(f"history before revision {revision} is discarded")


PROBE_TTL = 5.0


@click.command()
@click.option("--force", is_flag=True, help="Also if etcd has room.")
@yes_option
@store_option
def repair(force: bool, yes: bool, store_url: str | None) -> None:
    """Make room in a full etcd: discard its history, defragment every member, and clear the alarm.

    No record is deleted, but earlier states of records can no longer be read. The members are defragmented one after
    another, the leader of etcd last; a member does not answer during that, for about a second per GiB. Hostler
    processes need no restart. If etcd has room, nothing is done.
    """
    complete(_repair(chosen_store(store_url), force=force, yes=yes))


async def _repair(url: str, *, force: bool, yes: bool) -> None:
    from hostler.engine.overview import FILLING
    from hostler.keys.namespace import maintained_store

    async with open_chosen(url, create=False) as store:
        kept = maintained_store(store)
        if kept is None:
            engine = (await store.status()).engine
            note(f"{redacted(url)}: the engine {engine} frees space by itself; nothing to repair")
            return
        before = await store.status()
        room = f"{sized(before.size_bytes)}{_quota(before)}"
        if not force and before.fraction < FILLING and ("CORRUPT" in before.alarms or await _takes_writes(store)):
            _warn_of_damage(before)
            note(f"{redacted(url)}: etcd has room ({room}); nothing was changed")
            note("to discard its history and defragment it anyway: --force")
            return
        ask_if_seen(
            f"{redacted(url)} ({room}): discard the history before revision {before.revision:,}, and defragment"
            " every member? A member does not answer while it is defragmented.",
            yes=yes,
        )
        await _compact_at(store, before.revision)
        unreached = await _defragment(kept)
        await kept.disarm()
        await _check(store, unreached)
        after = await store.status()
    _warn_of_damage(after)
    now = f"{sized(after.size_bytes)}{_quota(after)}"
    click.echo(f"{redacted(url)}: accepts writes; {sized(before.size_bytes)} before, {now} now")


def _warn_of_damage(status: Status) -> None:
    if "CORRUPT" in status.alarms:
        note("etcd raises the alarm CORRUPT: the data of a member is damaged; replace it, repair cannot help")


def _quota(status: Status) -> str:
    return "" if status.quota_bytes is None else f" of {sized(status.quota_bytes)}"


async def _takes_writes(store: Store) -> bool:
    """Return whether a lease can be written. etcd may be full before its alarm is visible."""
    try:
        await (await store.grant(PROBE_TTL)).revoke()
    except Unavailable:
        return False
    return True


async def _compact_at(store: Store, revision: int) -> None:
    try:
        await store.compact(revision)
    except Compacted:
        return  # there is no older history
    click.echo(f"history before revision {revision:,} is discarded")


async def _defragment(kept: Maintained) -> Sequence[MemberStatus]:
    """Defragment the members; return those that do not answer."""
    members = await kept.members()
    for member in sorted((one for one in members if one.answers), key=lambda one: one.leads):
        await kept.defragment(member.name)
        click.echo(f"member {member.name}: defragmented, had {sized(member.size_bytes)}")
    unreached = [one for one in members if not one.answers]
    for member in unreached:
        note(f"member {member.name}: does not answer ({member.why}); not defragmented")
    return unreached


async def _check(store: Store, unreached: Sequence[MemberStatus]) -> None:
    """Unavailable: the store still accepts no writes."""
    try:
        await (await store.grant(PROBE_TTL)).revoke()
    except Unavailable as error:
        status = await store.status()
        said = str(error).partition("; ")[0]
        advice = (
            f"start {counted(len(unreached), 'member')} that did not answer and repair again"
            if unreached
            else "raise etcd's --quota-backend-bytes, or delete records, and repair again"
        )
        raise Unavailable(f"{said}; {sized(status.in_use_bytes or 0)} of it are records: {advice}") from None
