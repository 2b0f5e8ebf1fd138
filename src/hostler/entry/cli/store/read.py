"""`hostler store get`, `list`, `watch`, `status`, `check`: commands that only read."""

from __future__ import annotations

import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from hostler.engine.transfer.scan import pages
from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_store, complete, open_chosen, redacted, store_option
from hostler.errors import Damaged, Lagged, NotFound
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from hostler.ports.store import Event, Page, Store


@click.command()
@click.argument("key")
@click.option("--revision", type=click.IntRange(min=1), help="The value at this revision.")
@click.option("--raw", is_flag=True, help="Print only the value, unchanged.")
@show.output_option
@store_option
def get(key: str, revision: int | None, raw: bool, output: str, store_url: str | None) -> None:
    """Show KEY: its value, its revisions and its lease."""
    complete(_get(chosen_store(store_url), key, revision, raw=raw, output=output))


async def _get(url: str, key: str, revision: int | None, *, raw: bool, output: str) -> None:
    async with open_chosen(url, create=False) as store:
        kv = await store.get(key, revision=revision)
    if kv is None:
        when = "" if revision is None else f" at revision {revision}"
        raise NotFound(f"{key}: no such key{when}; list the keys: hostler store list")
    if raw:
        click.echo(kv.value, nl=False)
    elif output != "table":
        show.emit(show.plain_key_value(kv), output)
    else:
        rows = [
            ("KEY", show.safe(kv.key)),
            ("VALUE", show.value_block(kv.value)),
            ("REVISION", f"{kv.mod_revision} (created {kv.create_revision}, version {kv.version})"),
        ]
        show.pairs(rows if kv.lease is None else [*rows, ("LEASE", str(kv.lease))])


@click.command("list")
@click.argument("prefix", default="")
@click.option("--keys-only", is_flag=True, help="Keys without values.")
@click.option("--revision", type=click.IntRange(min=1), help="The keys at this revision.")
@click.option("--limit", type=click.IntRange(min=1), help="The largest number of keys to list.")
@show.output_option
@store_option
def list_(  # noqa: PLR0917
    prefix: str,
    keys_only: bool,
    revision: int | None,
    limit: int | None,
    output: str,
    store_url: str | None,
) -> None:
    """List the keys that start with PREFIX (default: all), in order, as of one revision."""
    complete(_list(chosen_store(store_url), prefix, revision, limit, keys_only=keys_only, output=output))


async def _list(
    url: str, prefix: str, revision: int | None, limit: int | None, *, keys_only: bool, output: str
) -> None:
    async with open_chosen(url, create=False) as store:
        found = pages(store, prefix, revision=revision, limit=limit, keys_only=keys_only)
        if output == "table":
            await _list_table(found, keys_only=keys_only)
        else:
            await _list_plain(found, output, keys_only=keys_only)


async def _list_table(found: AsyncIterator[Page], *, keys_only: bool) -> None:
    heads = ("REVISION", "VERSION", "KEY") if keys_only else ("REVISION", "VERSION", "KEY", "VALUE")
    table = show.Columns(*heads)
    count = 0
    async for page in found:
        rows = [[str(kv.mod_revision), str(kv.version), show.safe(kv.key)] for kv in page.items]
        if not keys_only:
            for row, kv in zip(rows, page.items):
                row.append(show.value_line(kv.value))
        count += len(rows)
        if rows:
            table.rows(rows)
        revision = page.revision
    note(f"{counted(count, 'key')} at revision {revision}")


async def _list_plain(found: AsyncIterator[Page], output: str, *, keys_only: bool) -> None:
    """Write the document while reading: a store may be larger than the memory."""
    opening = True
    async for page in found:
        if opening:
            revision = f"revision: {page.revision}\nitems:" if output == "yaml" else f'{{"revision":{page.revision},'
            click.echo(revision + ("" if output == "yaml" else '"items":['), nl=False)
        for kv in page.items:
            shown = show.plain_key_value(kv, keys_only=keys_only)
            if output == "yaml":
                click.echo(("\n" if opening else "") + show.yaml_text([shown]), nl=False)
            else:
                click.echo(("\n" if opening else ",\n") + show.as_json(shown), nl=False)
            opening = False
        if opening and not page.more:
            click.echo(" []" if output == "yaml" else "")
    if output == "json":
        click.echo("" if opening else "\n", nl=False)
        click.echo("]}")


@click.command()
@click.argument("prefix", default="")
@click.option("--from-revision", type=click.IntRange(min=1), help="Start with the changes of this revision.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many changes.")
@show.output_option
@store_option
def watch(prefix: str, from_revision: int | None, count: int | None, output: str, store_url: str | None) -> None:
    """Show changes of keys that start with PREFIX as they happen, each once and in order, until Ctrl-C."""
    complete(_watch(chosen_store(store_url), prefix, from_revision, count, output))


async def _watch(url: str, prefix: str, start: int | None, count: int | None, output: str) -> None:
    async with open_chosen(url, create=False) as store, aclosing(_changes(store, prefix, start)) as changes:
        shown = 0
        async for event in changes:
            click.echo(_event_text(event, output), nl=False)
            sys.stdout.flush()
            shown += 1
            if shown == count:
                return


async def _changes(store: Store, prefix: str, start: int | None) -> AsyncGenerator[Event, None]:
    """Yield every event. If the watch ended because it was read too slowly, start again without a gap."""
    while True:
        try:
            async with store.watch(prefix, start_revision=start) as events:
                since = "" if start is None else f" from revision {start}"
                note(f"watching {prefix or 'every key'}{since}; Ctrl-C ends it")
                async for event in events:
                    yield event
        except Lagged as lag:
            start = lag.revision
            note("note: changes arrived faster than they could be shown; none is lost")


def _event_text(event: Event, output: str) -> str:
    if output != "table":
        return show.document(show.plain_event(event), output)
    line = f"{event.kv.mod_revision:<8} {event.type.upper():<6}  {show.safe(event.kv.key)}"
    return f"{line}  {show.value_line(event.kv.value)}\n" if event.type == "put" else f"{line}\n"


@click.command()
@show.output_option
@store_option
def status(output: str, store_url: str | None) -> None:
    """Show the status of the store: engine, revision, history, size."""
    complete(_status(chosen_store(store_url), output))


async def _status(url: str, output: str) -> None:
    async with open_chosen(url, create=False) as store:
        found = await store.status()
    plain: dict[str, Any] = {
        "store": redacted(url),
        "engine": found.engine,
        "version": found.version,
        "revision": found.revision,
        "compact_revision": found.compact_revision,
        "size_bytes": found.size_bytes,
        "quota_bytes": found.quota_bytes,
        "in_use_bytes": found.in_use_bytes,
        "alarms": list(found.alarms),
        "details": found.details,
    }
    if output != "table":
        show.emit(plain, output)
        return
    rows = [
        ("STORE", plain["store"]),
        ("ENGINE", f"{found.engine} {found.version}"),
        ("REVISION", f"{found.revision:,} (history from {found.compact_revision or 1:,})"),
        ("SIZE", f"{found.size_bytes:,} bytes"),
    ]
    if found.quota_bytes is not None:
        rows.append(("QUOTA", f"{found.quota_bytes:,} bytes, {found.fraction:.0%} full"))
    if found.alarms:
        rows.append(("ALARMS", ", ".join(found.alarms)))
    show.pairs(rows + [(name.upper(), show.safe(text)) for name, text in found.details.items()])


@click.command()
@store_option
def check(store_url: str | None) -> None:
    """Read the whole store and report damage; exit code 8 if there is any."""
    complete(_check(chosen_store(store_url)))


async def _check(url: str) -> None:
    async with open_chosen(url, create=False) as store:
        # Some engines can check their files below the keys. For the others, read every key.
        look = getattr(store, "check", None)
        problems: list[str] = [] if look is None else await look()
        keys = sum([len(page.items) async for page in pages(store, "")]) if not problems else 0
    for problem in problems:
        click.echo(show.safe(problem))
    if problems:
        found = counted(len(problems), "problem")
        raise Damaged(f"store {redacted(url)}: {found}; stop writing to it and restore a backup")
    click.echo(f"{redacted(url)}: no damage, {counted(keys, 'key')} read")
