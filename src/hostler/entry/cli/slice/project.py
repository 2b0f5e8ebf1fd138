"""`hostler slice new`, `push`, `run`: the folder of a slice, created, published, and run without a control plane."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import keyword
import os
import re
import shlex
import sys
import tempfile
import traceback
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import note, one_line
from hostler.entry.cli.options import chosen_server, complete, open_client, server_options
from hostler.errors import Conflict, Invalid, NotFound, Refused
from hostler.model.deployment import Artifact
from hostler.model.slice_api import ArtifactView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.entry.cli.options import Server
    from hostler.ports.slices import ArtifactInfo
    from hostler.slices.module import Handler, SliceModule


FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "module.py.txt": "{module}.py",
    "test.py.txt": "test_{module}.py",
    "blueprint.toml.txt": "blueprint.toml",
    "README.md.txt": "README.md",
}
"""The templates, and the files they become."""
VERSION = "1.0.0"


@click.command()
@click.argument("name")
@click.option("--group", default="org.example", show_default=True, help="The group, for example com.example.shop.")
@click.option("--to", type=click.Path(path_type=Path), help="The folder to create.  [default: NAME]")
def new(name: str, group: str, to: Path | None) -> None:
    """Create a folder with the slice NAME: a module, its test, and instructions to run it."""
    made = make(name, group, to or Path(name))
    click.echo(f"created {made}: {', '.join(sorted(path.name for path in made.iterdir()))}")
    click.echo(f"next: cd {made}, then see README.md, or: hostler slice run . greet name=Ada")


def make(name: str, group: str, to: Path) -> Path:
    """Create the folder with its files. Invalid: the name is not allowed. Conflict: the folder is not empty."""
    module = _module(name)
    artifact = Artifact.parse(f"{group}:{name}:{VERSION}")
    words = {"NAME": name, "MODULE": module, "GROUP": group, "VERSION": VERSION, "BASE": artifact.base}
    texts = {
        file.format(module=module): _fill_template(template, words | {"ARTIFACT": str(artifact)})
        for template, file in FILES.items()
    }
    try:
        to.mkdir(parents=True, exist_ok=True)
        if any(to.iterdir()):
            raise Conflict(f"{to}: is not empty; name another folder with --to")
        for file, text in texts.items():
            (to / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{to}: cannot be created: {error.strerror}; name another folder with --to") from None
    return to


def _module(name: str) -> str:
    module = re.sub(r"[-.]", "_", name)
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?", name) or not module.isidentifier():
        raise Invalid(f"slice {name!r}: must start with a letter; only letters, digits and . _ - are allowed")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("hostler", "pytest"):
        raise Invalid(f"slice {name!r}: {module} is a reserved or existing Python name; choose another name")
    return module


def _fill_template(template: str, words: dict[str, str]) -> str:
    text = (resources.files("hostler.entry.cli.slice") / "template" / template).read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: words[found[1]], text)


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path())
@click.option("--group", help="The group.  [default: [tool.hostler] group in pyproject.toml]")
@click.option("--version", help="The version.  [default: as in pyproject.toml, or __version__ of a module]")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Publish into this folder, for example of a web server, instead of a Hostler server.",
)
@show.output_option
@server_options
def push(path: Path, group: str | None, version: str | None, to: Path | None, output: str) -> None:
    """Publish PATH: a folder with pyproject.toml (default: the current folder), a wheel, or a module.

    A folder is packed into a wheel locally; the same content gives the same wheel, byte for byte. Publishing the same
    file again is allowed. A different file under the same name and version is refused.
    """
    server = chosen_server() if to is None else None
    with tempfile.TemporaryDirectory(prefix="hostler-slice-") as place:
        from hostler.wiring import pack_artifact

        info, file = pack_artifact(path.resolve(), Path(place), group=group, version=version)
        view = complete(_publish(server, to, info, file))
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
        return
    click.echo(f"published {view.artifact} ({view.file}, {view.size} bytes, sha256 {view.sha256[:12]}…)")
    if view.requires:
        click.echo(f"requires {', '.join(view.requires)}: nodes get these from slice_packages")


async def _publish(server: Server | None, to: Path | None, info: ArtifactInfo, file: Path) -> ArtifactView:
    if server is not None:
        async with open_client(server) as client:
            return await client.artifacts.publish(info.artifact, file, name=info.file)
    from hostler.settings import load
    from hostler.wiring import open_artifacts

    flags: dict[str, Any] = {"artifacts": str(to)}
    return ArtifactView(**msgspec.structs.asdict(await open_artifacts(load(flags)).publish(info, file)))


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
    folder, loaded = _load_project(path.resolve())
    asyncio.run(_run(_Own(folder), loaded, method, arguments_json(arguments, whole)))


def arguments_json(arguments: Sequence[str], whole: str | None = None) -> bytes:
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


def _load_project(path: Path) -> tuple[Path, SliceModule]:
    from hostler.slices.module import load
    from hostler.wiring.slices import slice_source

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
                await _call(own, loaded, name, arguments_json(arguments))
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
