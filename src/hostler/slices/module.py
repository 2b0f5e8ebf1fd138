"""The module of a slice: its marked methods, their arguments by their annotations, and how it is imported."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import typing
from importlib import import_module
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from types import CodeType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import msgspec
from msgspec import UNSET, UnsetType

from hostler.ports.slices import Method
from hostler.slices.error_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


F = TypeVar("F", bound="Callable[..., Any]")
_MARK = "__hostler_method__"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the decorator."""

    name: str
    idempotent: bool = False


@overload
def method(function: F, /) -> F: ...
@overload
def method(*, idempotent: bool = False, name: str = "") -> Callable[[F], F]: ...
def method(function: F | None = None, /, *, idempotent: bool = False, name: str = "") -> F | Callable[[F], F]:
    """Make a function callable from outside. The function itself does not change.

    `idempotent`: calling it twice does no harm, so a failed call is retried elsewhere. `name`: the public name, if it
    differs from the name of the function.
    """

    def mark(found: F) -> F:
        if not callable(found) or isinstance(found, type):
            raise TypeError(f"@method: {found!r} is not a function")
        called = name or found.__name__
        if not called.isidentifier() or called.startswith("_"):
            raise TypeError(f"@method: {called!r} cannot be a method's name; use letters, digits and _, a letter first")
        setattr(found, _MARK, Mark(name=called, idempotent=idempotent))
        return found

    return mark if function is None else mark(function)


def mark_of(found: object) -> Mark | None:
    """Return the mark of a function; None: it has none."""
    mark = getattr(found, _MARK, None)
    return mark if isinstance(mark, Mark) else None


_AT = re.compile(r" - at `\$(?P<place>[^`]*)`$")
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "takes {name} by its position only; remove the /",
    inspect.Parameter.VAR_POSITIONAL: "takes *{name}; name the arguments, or take a list",
    inspect.Parameter.VAR_KEYWORD: "takes **{name}; name the arguments, or take a dict",
}


class BadArguments(Exception):
    """The arguments do not fit the method."""


class Signature:
    """The parameters of a function. TypeError: it cannot be called with JSON, and why."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        parameters = inspect.signature(function).parameters.values()
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:  # noqa: BLE001 - an annotation may raise anything
            raise TypeError(f"method {name}: its annotations cannot be read: {error}") from None
        fields: list[Any] = []
        for one in parameters:
            if one.kind in _KINDS:
                raise TypeError(f"method {name}: {_KINDS[one.kind].format(name=one.name)}")
            kind = hints.get(one.name, Any)
            given = one.default is inspect.Parameter.empty
            fields.append((one.name, kind) if given else (one.name, typing.Union[kind, UnsetType], UNSET))  # noqa: UP007 - kind may be any
        self._has_defaults = any(len(field) == 3 for field in fields)
        self._takes_nothing = not fields
        try:
            shape = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True, gc=False)
            self._decode = msgspec.json.Decoder(shape).decode
        except Exception as error:  # noqa: BLE001 - an annotation may be anything
            raise TypeError(f"method {name}: its arguments cannot be read from JSON: {error}") from None
        self._asdict = msgspec.structs.asdict

    def read(self, arguments: bytes) -> dict[str, Any]:
        """Return the arguments by name. BadArguments: they do not fit the method."""
        if not arguments:
            arguments = b"{}"
        if self._takes_nothing and arguments == b"{}":
            return {}
        try:
            found: dict[str, Any] = self._asdict(self._decode(arguments))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError is one of them
            raise BadArguments(f"{self._name}: {_said(str(error))}") from None
        except BaseException as error:  # noqa: BLE001 - types of the slice may raise anything
            raise BadArguments(f"{self._name}: {describe_error(error)}") from None
        if self._has_defaults:
            return {name: value for name, value in found.items() if value is not UNSET}
        return found


def _said(text: str) -> str:
    """Rewrite a message of msgspec in our words."""
    place = ""
    if found := _AT.search(text):
        place = found["place"].removeprefix(".")
        text = text[: found.start()]
    text = text.replace("Object missing required field", "argument missing:").replace(
        "Object contains unknown field", "unknown argument"
    )
    return f"argument {place}: {text}" if place else text


P = ParamSpec("P")
T = TypeVar("T")


def call_plain(function: Callable[P, T], /, *arguments: P.args, **keywords: P.kwargs) -> T:
    """Call the function in a thread. StopIteration and GeneratorExit become RuntimeError, as in generators.

    A future cannot hold StopIteration: its awaiter would wait forever. GeneratorExit from a future closes everything
    that awaits it, without a chance to report the error.
    """
    try:
        return function(*arguments, **keywords)
    except (StopIteration, GeneratorExit) as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error


def show_as(names: Mapping[str, str]) -> None:
    """Make tracebacks show modules below a key of `names` as files below its value."""
    names = {folder: shown for folder, shown in names.items() if folder != shown}
    if not names:
        return

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType | None:
            code = super().get_code(fullname)
            return None if code is None else _with_file(code, _public_path(self.path, names))

    make = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (Loader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )

    def hook(path: str) -> object:
        if _public_path(path, names) == path:
            raise ImportError("its path is shown unchanged", path=path)
        return make(path)

    sys.path_hooks.insert(0, hook)  # type: ignore[arg-type]


def _public_path(path: str, names: Mapping[str, str]) -> str:
    for folder, shown in names.items():
        if path == folder or path.startswith(f"{folder}/"):
            return shown + path[len(folder) :]
    return path


def _with_file(code: CodeType, file: str) -> CodeType:
    inner = tuple(_with_file(one, file) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=file, co_consts=inner)


HOOKS = ("start", "stop", "healthy")


class Handler:
    """One method, and how to run it."""

    __slots__ = ("function", "in_thread", "method", "signature")

    def __init__(self, method: Method, function: Callable[..., Any], *, in_thread: bool) -> None:
        self.method, self.function, self.in_thread = method, function, in_thread
        self.signature = Signature(method.name, function)


class SliceModule:
    """A slice, built from its module. TypeError: the module is not a slice, and why."""

    def __init__(self, module: ModuleType) -> None:
        self.name = module.__name__
        self.methods = methods_of(module)
        self._hooks = {name: found for name in HOOKS if (found := _hook(module, name)) is not None}

    async def run_hook(self, name: str) -> Any:
        """Call `start`, `stop` or `healthy`, if the module has it. Raises what the hook raises."""
        hook = self._hooks.get(name)
        if hook is None:
            return None
        if inspect.iscoroutinefunction(hook):
            return await hook()
        found = await asyncio.to_thread(call_plain, hook)
        return await found if inspect.isawaitable(found) else found

    def has_hook(self, name: str) -> bool:
        return name in self._hooks


def load(name: str) -> SliceModule:
    """Import the module. Raises what the import raises."""
    return SliceModule(import_module(name))


def methods_of(module: ModuleType) -> dict[str, Handler]:
    """Return the marked functions by name. TypeError: two have the same name, or one cannot be called."""
    found: dict[str, Handler] = {}
    for name, function in list(vars(module).items()):
        mark = mark_of(function)
        if mark is None or (mark.name in found and found[mark.name].function is function):
            continue
        if mark.name in found:
            raise TypeError(f"{module.__name__}: two methods are named {mark.name}; {name} needs another name")
        generates = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
        method = Method(name=mark.name, idempotent=mark.idempotent, streams=generates)
        waits = inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)
        found[mark.name] = Handler(method, function, in_thread=not waits)
    if not found:
        raise TypeError(f"{module.__name__}: it has no methods; mark callable functions with @hostler.slices.method")
    return found


def _hook(module: ModuleType, name: str) -> Callable[[], Any] | None:
    hook = getattr(module, name, None)
    if hook is None or mark_of(hook) is not None:
        return None
    if not callable(hook):
        raise TypeError(f"{module.__name__}: {name} must be a function")
    needed = [one for one in inspect.signature(hook).parameters.values() if one.default is inspect.Parameter.empty]
    if any(one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in needed):
        raise TypeError(f"{module.__name__}: {name} must be callable without arguments")
    return hook  # type: ignore[no-any-return]
