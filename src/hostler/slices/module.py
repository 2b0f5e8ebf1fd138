"""A module, read as a slice."""

from __future__ import annotations

import asyncio
import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hostler.ports.slices import Method
from hostler.slices import threads
from hostler.slices.decorators import mark_of
from hostler.slices.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

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
        found = await asyncio.to_thread(threads.run, hook)
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
