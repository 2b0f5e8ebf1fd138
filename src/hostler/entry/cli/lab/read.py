"""`hostler lab list`, `show`, `watch`, `events`, `catalogue`: commands that only read; and the text of labs."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.options import (
    all_of,
    chosen_server,
    complete,
    open_client,
    read,
    server_options,
    show_all,
    with_client,
)
from hostler.entry.cli.show import moment, natural, size, span
from hostler.entry.cli.vm.wait import PhaseProgress
from hostler.errors import NotFound, Unavailable
from hostler.kit.plural import counted
from hostler.model.lab import LabPhase, lab_project

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.lab import LabNews
    from hostler.model.lab_api import LabOffer, LabView


def described(view: LabView) -> str:
    """Describe the state of the lab in a few words."""
    words = [f"lab {view.lab_id} {view.phase.value}"]
    if view.phase is LabPhase.WAITING and view.position is not None:
        words.append(f"position {view.position}")
    elif view.available:
        port = "" if view.port == 22 else f" -p {view.port}"
        words.append(f"ssh{port} {view.ssh_user}@{view.address}" if view.address else "available")
    if view.again is not None:
        words.append(f"lab {view.again} follows")
    return ", ".join(words) + (f" ({view.detail})" if view.detail and not view.available else "")


def left(view: LabView) -> str:
    """Return the remaining life of the lab."""
    if view.expires_at is None:
        return ""
    rest = view.expires_at - time.time()
    return span(rest) if rest > 0 else "expired"


def news_line(news: LabNews) -> str:
    """Format an event of a lab on one line."""
    lab = "" if news.lab_id is None else f" lab {news.lab_id}"
    return f"{moment(news.at)}  {news.event.value}{lab}{f': {news.reason}' if news.reason else ''}"


async def until(
    client: Client, user: str, *, gone: bool, lab_id: int | None, within: float, generation: int | None = None
) -> LabView | None:
    """Wait until the lab is available, or with `gone` until it is gone (None). NotYet: not in time, or it ended."""
    last = "not seen yet"
    with PhaseProgress(user) as telling:

        def changed(view: LabView) -> None:
            nonlocal last
            last = described(view)
            telling.tell(last)

        try:
            return await client.labs.wait(
                user,
                available=not gone,
                gone=gone,
                lab_id=lab_id,
                generation=generation,
                within=within,
                on_change=changed,
            )
        except NotFound as error:
            raise NotYet(f"{error}, or see what happened to it: hostler lab events {user}") from None
        except Unavailable:
            what = "not gone" if gone else "not available"
            raise NotYet(
                f"lab of {user}: {what} after {span(within)} ({last}); work continues: hostler lab watch {user}"
            ) from None


LOOK_EVERY = 1.0
HEADS = ("USER", "LAB", "PHASE", "AVAILABLE", "LEFT", "ADDRESS", "DETAIL")


@click.command("list")
@click.option("--watch", "watching", is_flag=True, help="Keep running, and show each change.")
@click.option("--limit", type=click.IntRange(min=1), help="The largest number of labs to list.")
@show.output_option
@server_options
def list_(watching: bool, limit: int | None, output: str) -> None:
    """List all labs that you can see."""
    if watching and limit is not None:
        raise click.UsageError("--watch shows all labs; leave out --limit")
    server = chosen_server()
    complete(_watch(server, output) if watching else _list(server, limit, output))


async def _list(server: Server, limit: int | None, output: str) -> None:
    async with open_client(server) as client:
        found = [view async for view in all_of(client, client.labs.list, limit)]
    found.sort(key=lambda view: natural(view.user))
    show_all(found, output, HEADS, _row, "no labs; start one: hostler lab start USER LAB")


def _row(view: LabView, phase: str = "") -> list[str]:
    waits = f" ({view.position})" if view.position is not None else ""
    cells = [view.user, str(view.lab_id), phase or f"{view.phase.value}{waits}", "yes" if view.available else "no"]
    cells += [left(view), _place(view), view.detail]
    return [show.safe(cell) for cell in cells]


def _place(view: LabView) -> str:
    if not view.address:
        return ""
    host = f"[{view.address}]" if ":" in view.address and view.port != 22 else view.address
    return host if view.port == 22 else f"{host}:{view.port}"


async def _watch(server: Server, output: str) -> None:
    """Print each lab, then each change. Polls, so that nothing is missed while the store is unreachable."""
    known: dict[str, LabView] = {}
    table = show.Columns(*HEADS)
    async with open_client(server) as client:
        while True:
            try:
                found = {view.user: view async for view in all_of(client, client.labs.list)}
            except Unavailable as error:
                await _again(error)
                continue
            for user, view in found.items():
                if known.get(user) != view:
                    _tell(view, "", output, table)
            for user in known.keys() - found.keys():
                _tell(known[user], "gone", output, table)
            known = found
            sys.stdout.flush()
            await asyncio.sleep(LOOK_EVERY)


async def _again(error: Unavailable) -> None:
    note(f"{error}; retrying")
    await asyncio.sleep(LOOK_EVERY * 3)


def _tell(view: LabView, phase: str, output: str, table: show.Columns) -> None:
    plain = msgspec.to_builtins(view) | ({"phase": phase} if phase else {})
    if output != "table":
        click.echo(show.document(plain, output), nl=False)
    else:
        table.rows([_row(view, phase)])


@click.command("show")
@click.argument("user")
@show.output_option
@server_options
def show_(user: str, output: str) -> None:
    """Show the lab of USER."""
    complete(_show(chosen_server(), user, output))


async def _show(server: Server, user: str, output: str) -> None:
    async with open_client(server) as client:
        view = await read(client, lambda stale: client.labs.get(user, stale=stale))
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
    else:
        show.pairs(_rows(view))


def _rows(view: LabView) -> list[tuple[str, str]]:
    waits = f", position {view.position}" if view.position is not None else ""
    found = [
        ("USER", view.user),
        ("LAB", f"{view.lab_id}{f' ({view.title})' if view.title else ''}"),
        ("PHASE", f"{view.phase.value}{waits}{f': {view.detail}' if view.detail else ''}"),
        ("AVAILABLE", "yes" if view.available else "no"),
        ("LOGIN", f"{view.ssh_user} at {_place(view)}" if view.address else view.ssh_user),
        ("MACHINE", f"labs/{lab_project(view.user)} {view.vm}" if view.vm else ""),
        ("PROVIDER", " ".join(text for text in (view.server_id, view.cloud_status) if text)),
        ("REQUESTED", moment(view.requested_at)),
        ("EXPIRES", f"{moment(view.expires_at)} ({left(view)})" if view.expires_at is not None else ""),
        ("GRACE", span(view.grace) if view.grace else ""),
        ("NEXT LAB", "" if view.again is None else f"lab {view.again}"),
        ("REVISION", str(view.revision)),
    ]
    return [(name, show.safe(text)) for name, text in found if text]


@click.command()
@click.argument("user")
@click.option("--count", type=click.IntRange(min=1), help="Only the newest ones.")
@show.output_option
@with_client
async def events(client: Client, *, user: str, count: int | None, output: str) -> None:
    """Show the latest events of the labs of USER, as the student sees them."""
    items = (await client.labs.news(user)).items
    items = items[-count:] if count is not None else items
    if output != "table":
        show.emit(msgspec.to_builtins(items), output)
        return
    for news in items:
        click.echo(show.safe(news_line(news)))


@click.command()
@click.argument("user")
@click.option("--follow", is_flag=True, help="Continue after the lab is available, until it is gone.")
@show.output_option
@with_client
async def watch(client: Client, *, user: str, follow: bool, output: str) -> None:
    """Follow the events and phases of the lab of USER until it is available or gone."""
    watched = _Watched(output)
    while True:
        try:
            view: LabView | None = await client.labs.get(user)
        except NotFound:
            view = None
        except Unavailable as error:
            await _again(error)
            continue
        try:
            news = (await client.labs.news(user)).items
        except Unavailable as error:
            await _again(error)
            continue
        watched.news(news)
        watched.lab(user, view)
        if view is None or (view.available and not follow):
            return
        await asyncio.sleep(LOOK_EVERY / 2)


class _Watched:
    """What was already shown of one user's lab."""

    def __init__(self, output: str) -> None:
        self._output, self._number, self._said = output, 0, ""

    def news(self, items: tuple[LabNews, ...]) -> None:
        for news in items:
            if news.number > self._number:
                self._number = news.number
                self._show(news_line(news), msgspec.to_builtins(news))

    def lab(self, user: str, view: LabView | None) -> None:
        said = "no lab" if view is None else described(view)
        if said != self._said:
            self._said = said
            self._show(f"{user}: {said}", {"user": user, "lab": msgspec.to_builtins(view)})

    def _show(self, line: str, plain: Any) -> None:
        show.tell(line, plain, self._output)


@click.command()
@show.output_option
@with_client
async def catalogue(client: Client, *, output: str) -> None:
    """List the lab templates, with the number of running, waiting and warm labs."""
    found = await client.labs.offers()
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    heads = ("LAB", "TITLE", "IMAGE", "SIZE", "LIFE", "RUNNING", "WAITING", "WARM", "PROVIDER")
    show.Columns(*heads).rows([_offer(offer) for offer in found.items])
    for offer in found.items:
        lab = "every lab" if offer.lab_id is None else f"lab {offer.lab_id}"
        for problem in offer.problems:
            note(show.safe(f"{lab}: {problem}"))
    if found.at_once is not None:
        click.echo(f"in total {found.running} of {found.at_once} run, {found.waiting} wait")


def _offer(offer: LabOffer) -> list[str]:
    template = offer.template
    most = "" if template.at_once is None else f"/{template.at_once}"
    warm = f"{offer.warm}/{template.warm}" if template.warm else str(offer.warm or "")
    cells = [
        *("any" if offer.lab_id is None else str(offer.lab_id), template.title, template.image or "(default)"),
        f"{counted(template.cpus, 'cpu')}, {size(template.memory_mib)}",
        *(span(template.life), f"{offer.running}{most}", str(offer.waiting), warm, template.provider or "any"),
    ]
    return [show.safe(cell) for cell in cells]
