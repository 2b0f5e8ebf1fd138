"""Imports from folders that have a private path: tracebacks show their public path."""

from __future__ import annotations

import sys
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def show_as(names: Mapping[str, str]) -> None:
    """Make tracebacks show modules below a key of `names` as files below its value."""
    names = {folder: shown for folder, shown in names.items() if folder != shown}
    if not names:
        return

    class Loader(SourceFileLoader):
        def get_code(self, fullname: str) -> CodeType | None:
            code = super().get_code(fullname)
            return None if code is None else _renamed(code, _shown(self.path, names))

    make = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (Loader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )

    def hook(path: str) -> object:
        if _shown(path, names) == path:
            raise ImportError("its path is shown unchanged", path=path)
        return make(path)

    sys.path_hooks.insert(0, hook)  # type: ignore[arg-type]


def _shown(path: str, names: Mapping[str, str]) -> str:
    for folder, shown in names.items():
        if path == folder or path.startswith(f"{folder}/"):
            return shown + path[len(folder) :]
    return path


def _renamed(code: CodeType, file: str) -> CodeType:
    inner = tuple(_renamed(one, file) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_filename=file, co_consts=inner)
