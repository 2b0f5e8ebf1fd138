"""What the wheel's build does first: the page (web/build.py), so that nobody who installs Hostler needs Node.js.

A wheel without its page is no wheel: that fails. An editable install goes on without one: the server says then how it
is built. HOSTLER_PAGE=later leaves it to who asked; `make run` does, to show what happens.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from types import ModuleType


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the page if it is not built, or if its sources have changed."""

    def dependencies(self) -> list[str]:
        """Node.js, but only where it is needed and the machine has none."""
        page = _build_module(self.root)
        return [] if _is_left_out() or page.is_fresh() or page.find_node() else [page.node_requirement()]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - as hatchling calls it
        """Before the files are gathered. `version` is `standard` or `editable`."""
        if version == "editable" and _is_left_out():
            return
        page = _build_module(self.root)
        try:
            page.build()
        except page.BuildFailed as failed:
            sys.stderr.write(failed.said)
            if version != "editable":
                sys.exit(f"The page was not built, so there is no wheel: {failed}")
            sys.stderr.write(f"The page was not built, the server runs without it: {failed}\n")


def _is_left_out() -> bool:
    return os.environ.get("HOSTLER_PAGE") == "later"


def _build_module(root: str) -> ModuleType:
    path = Path(root, "web", "build.py")
    spec = importlib.util.spec_from_file_location("hostler_web_build", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is missing: it builds the page")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
