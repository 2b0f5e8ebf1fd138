"""`hostler slice artifacts`, `list`, `logs`: commands that only read."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import PAGE, show_all, with_client
from hostler.entry.cli.show import moment
from hostler.errors import HostlerError, Invalid, NotFound, Unavailable, Uncertain
from hostler.kit.plural import counted
from hostler.model.deployment import SliceState

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.slice_api import ArtifactView, SliceInstanceView, SliceView


ARTIFACTS = ("ARTIFACT", "SIZE", "PUBLISHED", "SHA256", "NEEDS")
INSTANCES = ("ARTIFACT", "INSTANCE", "NODE", "STATE", "SINCE", "RESTARTS", "WHY")


@click.command()
@click.argument("base", required=False)
@show.output_option
@with_client
async def artifacts(client: Client, *, base: str | None, output: str) -> None:
    """List the published artifacts: all, or the versions of BASE, which is group:name."""
    found = [
        view
        async for view in client.artifacts.list(limit=PAGE)
        if base is None or view.artifact.rpartition(":")[0] == base
    ]
    none = f"no artifacts{f' of {base}' if base else ''}; publish one: hostler slice push"
    show_all(found, output, ARTIFACTS, _artifact_row, none)


def _artifact_row(view: ArtifactView) -> list[str]:
    cells = [view.artifact, str(view.size), moment(view.published_at), view.sha256[:12], ", ".join(view.requires)]
    return [show.safe(cell) for cell in cells]


@click.command("list")
@click.argument("base", required=False)
@click.option("--node", help="Only instances on this node.")
@show.output_option
@with_client
async def list_(client: Client, *, base: str | None, node: str | None, output: str) -> None:
    """List slice instances and their nodes: all, or those of BASE, which is group:name."""
    found = [view async for view in client.blueprints.slices(limit=PAGE, node=node, artifact=base)]
    why = "" if found else await _why_none(client, base, node)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
    elif not found:
        note(why)
    else:
        rows = [(view, one) for view in found for one in view.instances]
        rows.sort(key=lambda row: (row[0].artifact, row[1].instance))
        show.Columns(*INSTANCES).rows([_row(view, one) for view, one in rows])


async def _why_none(client: Client, base: str | None, node: str | None) -> str:
    """Explain an empty list. NotFound: there is no such node."""
    if node is not None:
        node = (await client.nodes.get(node)).node
    on = "" if node is None else f" on {node}"
    if base is not None:
        wanted = base if base.count(":") < 2 else base.rpartition(":")[0]
        async for view in client.blueprints.list(limit=PAGE):
            if any(spec.base == wanted for spec in view.slices):
                return f"no instance of {base}{on}; see why: hostler blueprint status {view.name}"
        return f"no instance of {base}{on}: no blueprint has this slice; see hostler blueprint list"
    if node is not None:
        return f"no slices{on}; list all: hostler slice list"
    return "no slices; apply a blueprint: hostler blueprint apply FILE --name NAME"


def _row(view: SliceView, one: SliceInstanceView) -> list[str]:
    down = one.state is SliceState.ACTIVE and not one.ready
    state = f"{one.state.value}, restarting" if down else one.state.value
    cells = (view.artifact, str(one.instance), view.node, state, moment(one.since), str(one.restarts or ""), one.why)
    return [show.safe(cell) for cell in cells]


MOST = 20
"""Instances that are shown at once."""
FOLLOW_EVERY = 1.0
"""Seconds between two requests for the log of one instance, while it prints."""
MORE_FOR_EACH = 0.25
"""Additional seconds for each other instance: a request may cost two writes to the store, for its ticket."""
QUIET_EVERY = 3.0
"""Seconds between two requests while an instance prints nothing."""
SLOWER = 1.5
LOOK_EVERY = 5.0
"""Seconds between two searches for new instances."""
LONGEST_BEGUN = 64 * 1024
"""Longest part of an unfinished line that is held back, in characters."""
BEGINNING = "0.0"
"""A log position before all output."""
Id: TypeAlias = tuple[str, int, str]


@click.command()
@click.argument("artifact")
@click.option("--node", help="Only instances that are, or were, on this node.")
@click.option("--instance", type=click.IntRange(1), metavar="N", help="Only the instance with this number.")
@click.option(
    "-n", "--lines", type=click.IntRange(0, 10_000), default=100, show_default=True, help="Last lines of each instance."
)
@click.option("-f", "--follow", is_flag=True, help="Keep running, and show new output and new instances, until Ctrl-C.")
@with_client
async def logs(
    client: Client, *, artifact: str, node: str | None, instance: int | None, lines: int, follow: bool
) -> None:
    """Show the output of the instances of ARTIFACT: group:name:version, or group:name for all versions.

    The log of an instance continues across its restarts. If there is no instance, the output of one that failed is
    shown. With several instances, each line starts with the instance and its node. On a terminal, unprintable
    characters are escaped.

    \b
    hostler slice logs shop:prices
    hostler slice logs shop:prices --instance 2 --lines 20 --follow
    """
    wanted = LogFilter(artifact, node, instance)
    sources = await wanted.found(client)
    if len(sources) > MOST:
        raise Invalid(f"{wanted.artifact}: {_too_many(len(sources))}")
    if sources:
        await _first(client, sources, lines)
    else:
        sources = [await _last(client, wanted, lines)]
    if follow:
        await _follow(client, wanted, sources)


class LogFilter:
    """Selects instances."""

    def __init__(self, artifact: str, node: str | None, instance: int | None) -> None:
        self.artifact, self.node, self.instance = artifact, node, instance

    async def found(self, client: Client) -> list[Source]:
        """Return the selected instances that exist now."""
        return [
            Source(view.artifact, one.instance, view.node)
            async for view in client.blueprints.slices(limit=PAGE, node=self.node, artifact=self.artifact)
            for one in view.instances
            if self.instance in (None, one.instance)
        ]


class Source:
    """The log of one instance, and how far it was shown."""

    def __init__(self, artifact: str, instance: int, node: str, after: str = BEGINNING) -> None:
        self.artifact, self.instance, self.node = artifact, instance, node
        self._after, self._begun, self._silent = after, "", False

    @property
    def id(self) -> Id:
        """Return the identity, which no two instances share."""
        return self.artifact, self.instance, self.node

    @property
    def label(self) -> str:
        return show.safe(f"{self.artifact}#{self.instance} on {self.node}")

    @property
    def has_begun(self) -> bool:
        """Return whether an unfinished line is held back."""
        return bool(self._begun)

    async def first(self, client: Client, lines: int) -> str | HostlerError:
        """Return its last lines, or the error."""
        try:
            log = await client.blueprints.log(self.artifact, node=self.node, instance=self.instance, lines=lines)
        except HostlerError as error:
            return error
        self._after = log.after
        return log.text

    async def more(self, client: Client) -> str:
        """Return the new lines. An unfinished line is held back until the next request."""
        try:
            log = await client.blueprints.log(self.artifact, node=self.node, instance=self.instance, after=self._after)
        except NotFound:
            return ""
        except (Unavailable, Uncertain) as error:
            if not self._silent:
                note(f"{self.label}: {show.safe(str(error))}; retrying")
            self._silent = True
            return ""
        self._silent, self._after = False, log.after
        if log.skipped:
            note(
                f"{self.label}: {counted(log.skipped, 'byte is', 'bytes are')} left out; it prints faster than is shown"
            )
        text = self._begun + log.text
        if not log.text or len(text) > LONGEST_BEGUN:
            self._begun = ""
            return text
        whole, newline, self._begun = text.rpartition("\n")
        return whole + newline


def _too_many(there: int) -> str:
    return f"{there} instances exist, at most {MOST} are shown at once; select with --instance or --node"


async def _last(client: Client, wanted: LogFilter, lines: int) -> Source:
    """Show the last output of an instance that no longer exists. NotFound: none is known."""
    log = await client.blueprints.log(wanted.artifact, node=wanted.node, instance=wanted.instance, lines=lines)
    source = Source(log.artifact, log.instance, log.node, log.after)
    note(f"{source.label}: no longer exists; this is its last output")
    _show(log.text, "")
    return source


async def _first(client: Client, sources: list[Source], lines: int) -> None:
    """Show the last lines of all instances, or the error of each that failed. Raise if all failed."""
    alone = len(sources) == 1
    found = await asyncio.gather(*(source.first(client, lines) for source in sources))
    errors = [one for one in found if isinstance(one, HostlerError) and not isinstance(one, NotFound)]
    if len(errors) == len(found):  # NotFound does not count: the instance may be just being created
        raise errors[0]
    for source, text in zip(sources, found, strict=True):
        if isinstance(text, HostlerError):
            note(f"{source.label}: {show.safe(str(text))}")
        elif text or not lines:
            _show(text, "" if alone else source.label)
        else:
            note(f"{source.label}: no output yet; see its state: hostler slice list {source.artifact}")


class Followed:
    """The logs that are followed: of existing instances, and of ended ones until no more output arrives."""

    def __init__(self, wanted: LogFilter, sources: list[Source]) -> None:
        self._wanted = wanted
        self._known = {source.id: source for source in sources}
        self._gone = set[Id]()
        """Instances that did not exist at the last search, and have had no output since."""
        self._is_full = False
        self.each, self.has_labels = list(sources), len(sources) > 1

    def look(self, there: list[Source]) -> None:
        """Update the followed logs from the existing instances. A log that comes back continues where it was."""
        ids = {source.id for source in there}
        self.each = [source for source in self.each if source.id in ids or source.id not in self._gone]
        asked = {source.id for source in self.each}
        self._gone = asked - ids
        for found in (source for source in there if source.id not in asked):
            if len(self.each) < MOST:
                note(f"{found.label}: {'back' if found.id in self._known else 'new'}")
                self.each.append(self._known.setdefault(found.id, found))
                self.has_labels = True
        if len(there) > MOST and not self._is_full:
            note(f"{self._wanted.artifact}: {_too_many(len(there))}; the others follow when there is room")
        self._is_full = len(there) > MOST

    async def more(self, client: Client) -> bool:
        """Show the new output of each log; return whether there was any."""
        texts = await asyncio.gather(*(source.more(client) for source in self.each))
        for source, text in zip(self.each, texts, strict=True):
            if text or source.has_begun:
                self._gone.discard(source.id)
            _show(text, source.label if self.has_labels else "")
        return any(texts)


async def _follow(client: Client, wanted: LogFilter, sources: list[Source]) -> None:
    followed = Followed(wanted, sources)
    pause, since, came = 0.0, 0.0, True
    while True:
        pause = _pause(len(followed.each), came, pause)
        await asyncio.sleep(pause)
        since += pause
        if since >= LOOK_EVERY:
            since = 0.0
            with suppress(Unavailable, Uncertain):  # the request for the log reports the same error
                followed.look(await wanted.found(client))
        came = await followed.more(client)


def _pause(followed: int, came: bool, before: float) -> float:
    """Return the seconds until the next requests: more for many logs, and growing while there is no output."""
    least = FOLLOW_EVERY + MORE_FOR_EACH * max(0, followed - 1)
    return least if came else max(least, min(before * SLOWER, QUIET_EVERY))


def _show(text: str, label: str) -> None:
    """Print line by line. On a terminal, escape control characters."""
    if not text:
        return
    is_terminal = sys.stdout.isatty()
    for line in text.removesuffix("\n").split("\n"):
        shown = show.safe(line.removesuffix("\r").expandtabs(8)) if is_terminal else line
        click.echo(f"{label} | {shown}" if label else shown, color=True)  # a file or a pipe gets the original text
