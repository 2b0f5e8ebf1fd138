"""`hostler invoke`."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli.options import chosen_server, complete, open_client, server_options
from hostler.entry.cli.show import Duration

if TYPE_CHECKING:
    from hostler.entry.cli.options import Server

MAX_WITHIN = 3600.0


@click.command()
@click.argument("artifact")
@click.argument("method")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--json", "given", metavar="JSON", help="All arguments as one JSON object; @FILE reads a file, - stdin.")
@click.option("--within", type=Duration(), default=30.0, show_default="30s", help="Time limit of the call, at most 1h.")
@click.option("--stream", is_flag=True, help="Print one JSON value per line, also if the method does not stream.")
@server_options
def invoke(
    *, artifact: str, method: str, arguments: tuple[str, ...], given: str | None, within: float, stream: bool
) -> None:
    """Call a METHOD of a slice.

    ARTIFACT is group:name, which selects a version by traffic weight, or group:name:version. A VALUE that is valid JSON
    is parsed (3, true, [1,2]); any other VALUE is text. Quote text that looks like JSON: n='"3"'. The results of a
    streaming method are printed as they arrive, one per line.
    """
    if within > MAX_WITHIN:
        raise click.BadParameter(f"{within:g} s: at most one hour", param_hint="--within")
    complete(_invoke(chosen_server(), artifact, method, _arguments(arguments, given), within, stream=stream))


async def _invoke(
    server: Server, artifact: str, method: str, arguments: dict[str, Any], within: float, *, stream: bool
) -> None:
    async with (
        open_client(server) as client,
        aclosing(client.answers(artifact, method, arguments, within=within)) as answers,
    ):
        async for value, streams in answers:
            text = msgspec.json.encode(value)
            click.echo(text if streams or stream else msgspec.json.format(text, indent=2))


def _arguments(pairs: tuple[str, ...], given: str | None) -> dict[str, Any]:
    if given is not None:
        if pairs:
            raise click.UsageError("give NAME=VALUE or --json, not both")
        return _object(given)
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r}: write NAME=VALUE")
        if name in found:
            raise click.BadParameter(f"{name}: given twice")
        try:
            found[name] = msgspec.json.decode(text.encode())
        except (msgspec.DecodeError, UnicodeError):
            found[name] = text
    return found


def _object(given: str) -> dict[str, Any]:
    try:
        if given == "-":
            given = sys.stdin.read()
        elif given.startswith("@"):
            given = Path(given[1:]).read_text(encoding="utf-8")
        return msgspec.json.decode(given.encode(), type=dict[str, Any])
    except OSError as error:
        raise click.BadParameter(f"{given[1:]}: cannot be read: {error.strerror}", param_hint="--json") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise click.BadParameter(f"not a JSON object: {error}", param_hint="--json") from None
