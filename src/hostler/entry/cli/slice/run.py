"""`hostler slice run`: a slice here, alone, for whoever is writing it."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import shlex
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli.failure import note, one_line
from hostler.errors import Invalid, NotFound, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.slices.module import Handler, SliceModule


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("method", required=False)
@click.argument("arguments", nargs=-1)
@click.option("--json", "whole", metavar="JSON", help="All arguments as one JSON object, in place of key=value.")
def run(path: Path, method: str | None, arguments: tuple[str, ...], whole: str | None) -> None:
    """Run the slice PATH (a folder with pyproject.toml, or a module) in this process, and call METHOD.

    Arguments are key=value, where a value is JSON if it can be, and text otherwise. Without METHOD, what it can do is
    shown, and each line that is read is a call: greet name=Ada. There is no control plane here: the slice cannot call
    others.
    """
    folder, loaded = _loaded(path.resolve())
    asyncio.run(_run(_Own(folder), loaded, method, given(arguments, whole)))


def given(arguments: Sequence[str], whole: str | None = None) -> bytes:
    """The arguments as JSON. Invalid: one is not key=value."""
    if whole is not None:
        if arguments:
            raise Invalid("arguments: give them as key=value or with --json, not both")
        return whole.encode()
    found: dict[str, Any] = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Invalid(f"argument {text!r}: must be key=value, such as name=Ada")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return json.dumps(found).encode()


class _Own:
    """What the slice's own code does: where it fails, that is told as Python tells it, from its first own line on."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}{os.sep}"

    @contextmanager
    def code(self, what: str) -> Iterator[None]:
        """Refused: it raised, or wanted to end the process."""
        try:
            yield
        except SystemExit as error:
            self._tell(error)
            raise Refused(f"{what}: it ended the process, by sys.exit({error.code!r}); let it raise instead") from None
        except Exception as error:  # noqa: BLE001 - whatever the slice's own code raises
            self._tell(error)
            said = next(iter(str(error).splitlines()), "")
            raise Refused(
                f"{what}: raised {type(error).__name__}{f': {said}' if said else ''}; see the lines above"
            ) from None

    def _tell(self, error: BaseException) -> None:
        found = traceback.TracebackException.from_exception(error)
        self._cut(found)
        for line in "".join(found.format()).splitlines():
            click.echo(one_line(line), err=True)

    def _cut(self, found: traceback.TracebackException | None) -> None:
        while found is not None:
            ours = [at for at, frame in enumerate(found.stack) if frame.filename.startswith(self._folder)]
            first = ours[0] if ours else len(found.stack)
            found.stack[:] = [frame for frame in found.stack[first:] if not frame.filename.startswith("<frozen")]
            for other in (found.__cause__, *(found.exceptions or ())):
                self._cut(other)
            found = found.__context__


def _loaded(path: Path) -> tuple[Path, SliceModule]:
    from hostler.slices.module import load
    from hostler.wiring.artifacts import slice_source

    folder, module = slice_source(path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    with _Own(folder).code(f"{module}: cannot be imported"):
        try:
            return folder, load(module)
        except TypeError as error:
            if str(error).startswith((f"{module}:", "method ")):  # hostler's own words
                raised = Invalid(str(error))
            else:
                raise
    raise raised


async def _run(own: _Own, loaded: SliceModule, method: str | None, arguments: bytes) -> None:
    try:
        with own.code("start"):
            await loaded.run_hook("start")
        if loaded.has_hook("healthy"):
            with own.code("healthy"):
                well = await loaded.run_hook("healthy")
            if well is not None and not well:
                raise Refused(f"{loaded.name}: healthy() says that it is not well")
        if method is not None:
            await _call(own, loaded, method, arguments)
        else:
            await _lines(own, loaded)
    finally:
        with own.code("stop"):
            await loaded.run_hook("stop")


async def _lines(own: _Own, loaded: SliceModule) -> None:
    for name, handler in loaded.methods.items():
        note(f"{name}{inspect.signature(handler.function)}{_marks(handler)}")
    note("call one: METHOD key=value …; the end of the input ends it")
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            name, *arguments = shlex.split(line) or [""]
            if name:
                await _call(own, loaded, name, given(arguments))
        except (Refused, ValueError) as error:
            note(str(error))


def _marks(handler: Handler) -> str:
    marks = [
        word for word, on in (("idempotent", handler.method.idempotent), ("streams", handler.method.streams)) if on
    ]
    return f"  ({', '.join(marks)})" if marks else ""


async def _call(own: _Own, loaded: SliceModule, method: str, arguments: bytes) -> None:
    """Its results, each on a line."""
    from hostler.slices import threads
    from hostler.slices.signature import BadArguments

    handler = loaded.methods.get(method)
    if handler is None:
        raise NotFound(f"{loaded.name}: no method {method}; it has {', '.join(loaded.methods)}")
    try:
        asked = handler.signature.read(arguments)
    except BadArguments as error:
        raise Invalid(str(error)) from None
    with own.code(method):
        if handler.method.streams and not handler.in_thread:
            async for item in handler.function(**asked):
                _show(item)
        elif handler.method.streams:
            for item in handler.function(**asked):
                _show(item)
        elif handler.in_thread:
            _show(await asyncio.to_thread(threads.run, handler.function, **asked))
        else:
            _show(await handler.function(**asked))


def _show(value: Any) -> None:
    click.echo(msgspec.json.encode(value).decode())
    sys.stdout.flush()
