"""`hostler store repair`: make room in a full etcd, so that it accepts writes again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hostler.engine.overview import FILLING
from hostler.entry.cli.confirm import ask_if_seen, yes_option
from hostler.entry.cli.failure import note
from hostler.entry.cli.store_option import chosen, complete, opened, redacted, store_option
from hostler.errors import Compacted, Unavailable
from hostler.keys.namespace import maintained_store
from hostler.kit.plural import counted, sized

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.ports.store import Maintained, MemberStatus, Status, Store

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
    complete(_repair(chosen(store_url), force=force, yes=yes))


async def _repair(url: str, *, force: bool, yes: bool) -> None:
    async with opened(url, create=False) as store:
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
        await _compact(store, before.revision)
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


async def _compact(store: Store, revision: int) -> None:
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
