"""`hostler leader`, and the storage that commands about leadership use."""

from __future__ import annotations

import os
from contextlib import aclosing, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import (
    chosen_server,
    chosen_store,
    complete,
    local_path,
    open_client,
    redacted,
    server_options,
)
from hostler.entry.cli.show import span
from hostler.errors import HostlerError, Invalid, NotFound, Unavailable
from hostler.settings import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hostler.entry.cli.options import Server
    from hostler.entry.leader import Holder, LeaderScreen
    from hostler.model.control_api import ControlPlaneStatus, Overview, TakeoverView
    from hostler.model.replica import LeaderRecord, Takeover
    from hostler.ports.ttl import TtlStorage
    from hostler.settings import NamespaceOptions


def storage_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--store URL`: any storage that elections can use."""
    return click.option(
        "--store",
        "store_url",
        metavar="URL",
        help="A store (sqlite:///PATH, etcd://HOST:PORT, …), redis://, dynamodb:// or cassandra://.  "
        "[env: HOSTLER_STORE]",
    )(command)


@asynccontextmanager
async def opened_storage(url: str, *, create: bool) -> AsyncIterator[TtlStorage]:
    """Open the storage, in the namespace that the settings select.

    NotFound: the storage is a local file that does not exist, and `create` is False.
    """
    from hostler.settings import load
    from hostler.wiring import open_ttl_storage

    options = load().namespace
    storage = _open_namespace(url, options) if options.use_test_namespace else open_ttl_storage(url)
    path = local_path(url)
    if path is not None and not create and not path.exists():
        raise NotFound(f"store {redacted(url)}: no such file; the first replica creates it")
    try:
        async with storage as opened:
            yield opened
    except HostlerError as error:
        if path is None:  # a message about a local store names its file
            error.add_note(f"store {redacted(url)}")
        raise


@asynccontextmanager
async def _open_namespace(url: str, options: NamespaceOptions) -> AsyncIterator[TtlStorage]:
    from hostler.keys.namespace import enter
    from hostler.kit.clock import SystemClock
    from hostler.wiring import is_store, open_store, ttl_storage_on

    if not is_store(url):
        raise Invalid(f"UseTestNamespace: test namespaces need a store, not {redacted(url)}; remove the setting")
    async with open_store(url) as store:
        seen, _ = await enter(store, options, clock=SystemClock())
        yield ttl_storage_on(seen)


SHORT = 8
"""Characters of a holder's id that tables show."""


@click.command()
@click.option("--watch", "watching", is_flag=True, help="Keep running, and print each takeover as it happens.")
@click.option("--history", "past", is_flag=True, help="Show past leaders instead, newest first.")
@show.output_option
@storage_option
@server_options
def leader(*, watching: bool, past: bool, output: str, store_url: str | None) -> None:
    """Show the leader with its fence, age and remaining lease time, and the standby replicas.

    The command reads the store directly, so it works without a server. With --server or HOSTLER_SERVER, and no --store,
    it asks that server.
    """
    if watching and past:
        raise click.UsageError("--watch and --history cannot be combined: give one of them")
    given = click.get_current_context().meta
    named = given.get("hostler.server") or os.environ.get("HOSTLER_SERVER")
    if named and store_url is None and not watching:
        complete(_ask_history(chosen_server(), output) if past else _ask(chosen_server(), output))
        return
    url = (
        store_url or load({"data": given.get("hostler.data")}).store
        if "hostler.data" in given
        else chosen_store(store_url)
    )
    complete(_watch(url, output) if watching else _show_history(url, output) if past else _show(url, output))


async def _ask(server: Server, output: str) -> None:
    """Show the leader as a server reports it."""
    from hostler.entry.leader import Holder, LeaderScreen, Waiting

    async with open_client(server) as client:
        seen = await client.control.overview()
    control = _known_leader(seen)
    leads, now = control.leader, seen.at
    holder = None
    if leads is not None:
        holder = Holder(
            key=1,
            address=leads.address,
            holder=leads.holder,
            fence=leads.fence,
            age_s=None if leads.since is None else max(0.0, now - leads.since),
            time_left_s=None if leads.ends_at is None else max(0.0, leads.ends_at - now),
        )
    waiting = tuple(
        Waiting(address=each.address, holder=each.holder, age_s=max(0.0, now - each.started_at))
        for each in control.replicas
        if not each.leads
    )
    _show_screen(LeaderScreen(leader=holder, others=(), standing_by=waiting), output)


async def _ask_history(server: Server, output: str) -> None:
    async with open_client(server) as client:
        seen = await client.control.overview()
    _past(_known_leader(seen).takeovers, output)


def _known_leader(seen: Overview) -> ControlPlaneStatus:
    if seen.control is None:
        raise Unavailable("store: does not answer the server, so the leader is unknown; check the store")
    return seen.control


async def _show_history(url: str, output: str) -> None:
    from hostler.entry.leader import history

    async with opened_storage(url, create=False) as storage:
        found = await history(storage)
    if found is None:
        note("this storage keeps no history")
    _past(found or (), output)


def _past(found: Sequence[Takeover | TakeoverView], output: str) -> None:
    import msgspec

    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    if not found:
        note("no leader is recorded")
        return
    rows = [
        [
            f"{datetime.fromtimestamp(one.at).astimezone():%Y-%m-%d %H:%M:%S}",
            str(one.fence),
            show.safe(one.address),
            one.holder[:SHORT],
            show.safe(_BEFORE[one.previous.value].format(f"{one.previous_address} ({one.previous_holder[:SHORT]})")),
        ]
        for one in found
    ]
    show.Columns("SINCE", "FENCE", "ADDRESS", "HOLDER", "BEFORE").rows(rows)


_BEFORE = {"none": "none recorded", "released": "{}, released", "silent": "{}, lease expired"}


async def _show(url: str, output: str) -> None:
    from hostler.entry.leader import look

    async with opened_storage(url, create=False) as storage:
        scene = await look(storage)
    _show_screen(scene, output)


def _show_screen(scene: LeaderScreen, output: str) -> None:
    import msgspec

    if output == "table":
        _table(scene)
    else:
        show.emit(msgspec.to_builtins(scene), output)


def _table(scene: LeaderScreen) -> None:
    rows = [_row("leads", scene.leader)] if scene.leader is not None else []
    rows += [_row(f"holds key {other.key}", other) for other in scene.others]
    rows += [
        ["standby", show.safe(w.address), w.holder[:SHORT], "", span(w.age_s), ""] for w in scene.standing_by or ()
    ]
    if rows:
        show.Columns("ROLE", "ADDRESS", "HOLDER", "FENCE", "AGE", "TIME LEFT").rows(rows)
    if scene.leader is None:
        note("no leader")
    if scene.standing_by is None:
        note("this storage does not list standby replicas")


def _row(role: str, holder: Holder) -> list[str]:
    left = "?" if holder.time_left_s is None else f"{holder.time_left_s:.1f} s"
    return [role, show.safe(holder.address), holder.holder[:SHORT], str(holder.fence), span(holder.age_s), left]


async def _watch(url: str, output: str) -> None:
    from hostler.entry.leader import takeovers

    async with opened_storage(url, create=False) as storage, aclosing(takeovers(storage, note)) as changes:
        async for record in changes:
            click.echo(_change(record, output), nl=False)


def _change(record: LeaderRecord | None, output: str) -> str:
    now = datetime.now().astimezone()
    plain: dict[str, Any] = {"at": now.isoformat(timespec="milliseconds"), "leader": None}
    if record is not None:
        plain["leader"] = {"address": record.address, "holder": record.holder, "fence": record.fence}
    if output != "table":
        return show.document(plain, output)
    if record is None:
        return f"{now:%H:%M:%S.%f}"[:-3] + " no leader\n"
    who = f"{show.safe(record.address)} leads with fence {record.fence} ({record.holder[:SHORT]})"
    return f"{now:%H:%M:%S.%f}"[:-3] + f" {who}\n"
