"""`hostler slice run`: run a slice locally, without a control plane, for its developer."""

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
@click.option("--json", "whole", metavar="JSON", help="All arguments as one JSON object, instead of key=value.")
def run(path: Path, method: str | None, arguments: tuple[str, ...], whole: str | None) -> None:
    """Run the slice PATH (a folder with pyproject.toml, or a module) in this process, and call METHOD.

    Arguments are key=value; a value is parsed as JSON if it is valid JSON, otherwise it is text. Without METHOD, the
    methods are listed, and each line of standard input is a call, for example: greet name=Ada. There is no control
    plane, so the slice cannot call other slices.
    """
    folder, loaded = _loaded(path.resolve())
    asyncio.run(_run(_Own(folder), loaded, method, given(arguments, whole)))


def given(arguments: Sequence[str], whole: str | None = None) -> bytes:
    """Return the arguments as JSON. Invalid: one is not key=value."""
    if whole is not None:
        if arguments:
            raise Invalid("arguments: give them as key=value or with --json, not both")
        return whole.encode()
    found: dict[str, Any] = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise Invalid(f"argument {text!r}: must be key=value, for example name=Ada")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return json.dumps(found).encode()


class _Own:
    """Runs the slice's own code. If it fails, prints the Python traceback, starting at the first line of the slice."""

    def __init__(self, folder: Path) -> None:
        self._folder = f"{folder}{os.sep}"

    @contextmanager
    def code(self, what: str) -> Iterator[None]:
        """Refused: the code raised, or tried to end the process."""
        try:
            yield
        except SystemExit as error:
            self._tell(error)
            raise Refused(f"{what}: it ended the process, by sys.exit({error.code!r}); let it raise instead") from None
        except Exception as error:  # noqa: BLE001 - the slice's own code may raise anything
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
            if str(error).startswith((f"{module}:", "method ")):  # a message of hostler, not of the slice
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
                healthy = await loaded.run_hook("healthy")
            if healthy is not None and not healthy:
                raise Refused(f"{loaded.name}: healthy() returned {healthy!r}; see why the slice is not healthy")
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
    note("call one: METHOD key=value …; end of input ends it")
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
    """Call the method and print its results, one per line."""
    from hostler.slices.module import BadArguments, call_plain

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
            _show(await asyncio.to_thread(call_plain, handler.function, **asked))
        else:
            _show(await handler.function(**asked))


def _show(value: Any) -> None:
    click.echo(msgspec.json.encode(value).decode())
    sys.stdout.flush()
