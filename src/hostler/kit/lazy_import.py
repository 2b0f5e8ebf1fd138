"""Names of a package that are imported on first use; old names of modules, their contents, methods and parameters."""

from __future__ import annotations

import functools
import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType

P = ParamSpec("P")
R = TypeVar("R")


def importing(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `where`: the module of each name, relative to the package."""

    def found(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{where[name]}"), name)

    return found


def old_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose names were `renamed`: the old ones work, with a DeprecationWarning.

    A new name with dots begins with the module that it is in now.
    """

    def found(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {renamed[name]}", DeprecationWarning, stacklevel=2)
        where, _, new = renamed[name].rpartition(".")
        return getattr(import_module(where or module), new)

    return found


def old_method(old: str, new: str) -> Callable[..., Any]:
    """Return a method that calls the method `new`, with a DeprecationWarning."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is now {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*args, **options)

    return call


def old_attribute(old: str, new: str) -> property:
    """Return a property that is the attribute `new`, with a DeprecationWarning."""

    def found(self: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is now {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(found)


def old_parameter(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: the function also takes its parameter `new` as `old`, with a DeprecationWarning."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> R:
            if old in options:
                if new in options:
                    raise TypeError(f"{function.__qualname__}: {old} is now {new}; give it once")
                warnings.warn(f"{function.__qualname__}: {old} is now {new}", DeprecationWarning, stacklevel=2)
                options[new] = options.pop(old)
            return function(*args, **options)

        return call

    return decorate


def keep_old_modules(
    package: str, moved: Mapping[str, Sequence[str]], *, renamed: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Let modules of a package be imported by their old names, with a DeprecationWarning.

    `moved`: the modules that now have what each old module had. `renamed`: the new names of what an old module had, by
    the old module and the old name.
    """
    sys.meta_path.append(_OldModules(package, moved, renamed or {}))


class _OldModules(MetaPathFinder, Loader):
    """Finds old modules, after all finders of modules that exist."""

    def __init__(
        self, package: str, moved: Mapping[str, Sequence[str]], renamed: Mapping[str, Mapping[str, str]]
    ) -> None:
        self._package, self._moved, self._renamed = package, moved, renamed

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == self._package and name in self._moved else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__.rpartition(".")[2]
        new = [f"{self._package}.{each}" for each in self._moved[name]]
        warnings.warn(f"{module.__name__} is now {', '.join(new)}", DeprecationWarning, stacklevel=2)
        for each in map(import_module, new):
            found = {key: value for key, value in vars(each).items() if not key.startswith("__")}
            old = {was: found[now] for was, now in self._renamed.get(name, {}).items() if now in found}
            vars(module).update(found | old)
