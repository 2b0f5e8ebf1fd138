"""Names of a package that are imported on first use, and modules that were moved and keep their old names."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType


def importing(package: str, where: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. `where`: the module of each name, relative to the package."""

    def found(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{where[name]}"), name)

    return found


def old_names(module: str, renamed: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module whose names were `renamed`: the old ones work, with a DeprecationWarning."""

    def found(name: str) -> Any:
        if name not in renamed:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {renamed[name]}", DeprecationWarning, stacklevel=2)
        return getattr(import_module(module), renamed[name])

    return found


def keep_old_modules(
    package: str, moved: Mapping[str, Sequence[str]], *, renamed: Mapping[str, str] | None = None
) -> None:
    """Let modules of a package be imported by their old names, with a DeprecationWarning.

    `moved`: the modules that now have what each old module had. `renamed`: the new names of things with an old one.
    """
    sys.meta_path.append(_OldModules(package, moved, renamed or {}))


class _OldModules(MetaPathFinder, Loader):
    """Finds old modules, after all finders of modules that exist."""

    def __init__(self, package: str, moved: Mapping[str, Sequence[str]], renamed: Mapping[str, str]) -> None:
        self._package, self._moved, self._renamed = package, moved, renamed

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        package, _, name = fullname.rpartition(".")
        return ModuleSpec(fullname, self) if package == self._package and name in self._moved else None

    def exec_module(self, module: ModuleType) -> None:
        new = [f"{self._package}.{name}" for name in self._moved[module.__name__.rpartition(".")[2]]]
        warnings.warn(f"{module.__name__} is now {', '.join(new)}", DeprecationWarning, stacklevel=2)
        for each in map(import_module, new):
            found = {name: value for name, value in vars(each).items() if not name.startswith("__")}
            old = {was: found[now] for was, now in self._renamed.items() if now in found}
            vars(module).update(found | old)
