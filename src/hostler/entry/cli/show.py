"""Output for people and for programs: tables, documents, durations, sizes; and parsing of what users type.

A value is shown as text if it is UTF-8, otherwise as marked base64. On a terminal, stored text cannot move the cursor:
characters that are not printable are escaped.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hostler.settings.value import mebibytes_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostler.model.inventory import Capacity
    from hostler.ports.store import Event, KeyValue


# Quote words that some YAML readers take for a boolean, null or number, and everything that is not plainly a word.
_WORD = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.@+-]*")
_RESERVED = frozenset(["true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"])
# Unprintable by the rules of YAML, or a line break to some readers; JSON does not escape these.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def yaml_text(value: object) -> str:
    """Format the value as YAML, ending in a newline."""
    return "\n".join(_yaml_lines(value)) + "\n"


def _yaml_lines(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item, "  ")
    elif isinstance(value, list | tuple) and value:
        for item in value:
            first, *rest = _yaml_lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(head: str, item: object, indent: str) -> Iterator[str]:
    if isinstance(item, dict | list | tuple) and item:
        yield head
        yield from (indent + line for line in _yaml_lines(item))
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: object) -> str:
    if isinstance(value, str):
        if _WORD.fullmatch(value) and value.lower() not in _RESERVED:
            return value
        return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, ensure_ascii=False))
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if value == {}:
        return "{}"
    if value in ([], ()):
        return "[]"
    raise TypeError(f"{type(value).__name__} is not plain data")


FORMATS = ("table", "json", "yaml")
SHORT = 2_000
"""JSON values up to this many bytes are formatted over several lines when a single key is shown."""

output_option = click.option(
    "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True, help="The output format."
)


def plain_value(value: bytes) -> dict[str, str]:
    """Return the value and its encoding."""
    try:
        return {"value": value.decode(), "encoding": "text"}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "encoding": "base64"}


def plain_key_value(kv: KeyValue, *, keys_only: bool = False) -> dict[str, Any]:
    """Return a key-value as plain data."""
    shown: dict[str, Any] = {"key": kv.key}
    if not keys_only:
        shown |= plain_value(kv.value)
    shown |= {"create_revision": kv.create_revision, "mod_revision": kv.mod_revision, "version": kv.version}
    if kv.lease is not None:
        shown["lease"] = kv.lease
    return shown


def plain_event(event: Event) -> dict[str, Any]:
    """Return an event as plain data."""
    if event.type == "delete":
        shown: dict[str, Any] = {"type": "delete", "key": event.kv.key, "mod_revision": event.kv.mod_revision}
    else:
        shown = {"type": "put"} | plain_key_value(event.kv)
    if event.previous is not None:
        shown["previous"] = plain_value(event.previous.value) | {"mod_revision": event.previous.mod_revision}
    return shown


def as_json(data: object) -> str:
    """Format plain data as JSON on one line."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def safe(text: str) -> str:
    """Return the text on one line, with unprintable characters escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def value_line(value: bytes) -> str:
    """Format the value on one line."""
    shown = plain_value(value)
    if shown["encoding"] == "base64":
        return f"(base64) {shown['value']}"
    return safe(shown["value"])


def value_block(value: bytes) -> str:
    """Format the value for reading: JSON is indented, line breaks are kept."""
    shown = plain_value(value)
    if shown["encoding"] == "base64":
        return f"(base64, {len(value)} bytes) {shown['value']}"
    text = shown["value"]
    if len(text) <= SHORT and text[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except ValueError:
            pass
    return "\n".join(safe(line) for line in text.split("\n"))


def emit(data: object, output: str) -> None:
    """Print one document of plain data as JSON or YAML."""
    if output == "yaml":
        click.echo(yaml_text(data), nl=False)
    else:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def document(data: object, output: str) -> str:
    """Format one document of a sequence: JSON on one line, or YAML."""
    return "---\n" + yaml_text(data) if output == "yaml" else as_json(data) + "\n"


def tell(line: str, data: object, output: str) -> None:
    """Print the line or the document, and flush."""
    click.echo(safe(line) + "\n" if output == "table" else document(data, output), nl=False)
    sys.stdout.flush()


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns; a value of several lines is indented."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        first, *rest = value.split("\n")
        click.echo(click.style(name.ljust(width), bold=True) + "  " + first)
        for line in rest:
            click.echo(" " * (width + 2) + line)


class Columns:
    """A table that is written as its rows arrive. The first rows determine the column widths.

    On a terminal each line is cut to the width of the terminal; elsewhere nothing is cut.
    """

    def __init__(self, *heads: str, write: Callable[[str], Any] = click.echo) -> None:
        self._heads, self._write = heads, write
        self._widths: list[int] | None = None
        self._room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Write rows; the first call also writes the heads."""
        if self._widths is None:
            table = [self._heads, *rows]
            self._widths = [max(len(row[i]) for row in table) for i in range(len(self._heads) - 1)]
            self._write(click.style(self._line(self._heads), bold=True))
        for row in rows:
            self._write(self._line(row))

    def _line(self, row: Sequence[str]) -> str:
        cells = [cell.ljust(width) for cell, width in zip(row, self._widths or ())]
        line = "  ".join([*cells, row[-1]]).rstrip()
        if self._room is not None and len(line) > self._room:
            return line[: self._room - 1] + "…"
        return line


class Duration(click.ParamType[float]):
    """`90`, `90s`, `30m`, `2h`, `1d`, `1h30m`: seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            seconds = seconds_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not seconds:
            self.fail(f"{value!r}: must be above 0", param, ctx)
        return seconds


class Mebibytes(click.ParamType[int]):
    """`512`, `512M`, `2G`: MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return mebibytes_of(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def labels(pairs: Sequence[str], what: str = "--label") -> dict[str, str]:
    """Parse labels from `NAME=VALUE` texts."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!r}: write {what} NAME=VALUE")
        found[name] = value
    return found


def accelerators(pairs: Sequence[str]) -> dict[str, int]:
    """Parse `KIND=N` texts into a number for each kind; `KIND` alone counts as one."""
    found: dict[str, int] = {}
    for pair in pairs:
        kind, equals, text = pair.partition("=")
        if not kind or (equals and not (text.isascii() and text.isdigit())):
            raise click.BadParameter(f"{pair!r}: write --accelerator KIND=N")
        found[kind] = int(text or 1)
    return found


def label_text(found: dict[str, str]) -> str:
    """Format labels on one line."""
    return ",".join(f"{name}={value}" for name, value in sorted(found.items()))


def size(mebibytes: int) -> str:
    """Format a size: `2 GiB`, `512 MiB`."""
    return f"{mebibytes // 1024} GiB" if mebibytes and mebibytes % 1024 == 0 else f"{mebibytes} MiB"


def span(seconds: float | None) -> str:
    """Format a duration in at most two units."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def moment(at: float | None) -> str:
    """Format an instant in local time."""
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def capacity(used: Capacity, all_of_it: Capacity) -> tuple[str, str, str]:
    """Format cores, memory and disk as used/total."""
    return (
        f"{used.cpus}/{all_of_it.cpus}",
        f"{size(used.memory_mib)}/{size(all_of_it.memory_mib)}",
        f"{used.disk_gib}/{all_of_it.disk_gib} GiB",
    )


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the sort key of a name: case is ignored, and numbers are ordered by value.

    >>> sorted(["u10", "u2", "Bo", "ada"], key=natural)
    ['ada', 'Bo', 'u2', 'u10']
    """
    pieces = re.split(r"([0-9]{1,18})", name.casefold())
    return tuple((0, int(piece), "") if at % 2 else (1, 0, piece) for at, piece in enumerate(pieces) if piece)
