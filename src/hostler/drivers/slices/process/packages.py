"""Packages that a wheel requires: installed with Hostler already, or taken from a folder or an index.

pip installs them, and runs no code of what it installs: only wheels are accepted.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.privileges import environment
from hostler.drivers.machines.qemu.subprocess import end
from hostler.errors import Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[A-Za-z0-9._, -]*\])?\s*(\(?[<>=!~][^@/\\]*)?(;.*)?")
_ALWAYS = ("--isolated", "--no-input", "--disable-pip-version-check", "--no-cache-dir", "--only-binary=:all:", "-qq")


class Packages:
    """`source`: a folder of wheels, or the URL of an index; empty: there is none."""

    def __init__(self, python: str, source: str) -> None:
        self._python, self._source = python, source

    async def install(self, artifact: str, requires: Sequence[str], to: Path) -> None:
        """Install missing packages into the folder `to`. Refused: what is not available."""
        named = ", ".join(requires)
        odd = next((one for one in requires if not _PLAIN.fullmatch(one.strip())), None)
        if odd is not None:
            raise Refused(f"artifact {artifact}: it requires {odd[:100]!r}, which is not a package name")
        if await self._pip("install", *_ALWAYS, "--dry-run", "--no-index", "--", *requires) is None:
            return
        if not self._source:
            raise Refused(
                f"artifact {artifact}: it requires {named}, which are not all installed here; set slice_packages"
                " to a folder of wheels or to the URL of an index, or publish a wheel that contains them"
            )
        is_index = "://" in self._source
        where = ("--index-url", self._source) if is_index else ("--no-index", "--find-links", self._source)
        said = await self._pip("install", *_ALWAYS, *where, "--no-compile", "--target", str(to), "--", *requires)
        if said is not None:
            raise Refused(f"artifact {artifact}: it requires {named}, not available from {self._source}: {said}")

    async def _pip(self, *arguments: str) -> str | None:
        """Return the complaint of pip; None: it succeeded."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(self._python, "-I", *await asyncio.to_thread(_pip, self._python), *arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                env=environment(),
            )
        except OSError as error:
            raise Unavailable(f"{self._python}: cannot be run: {error.strerror}") from None
        try:
            _, said = await process.communicate()
        finally:
            await end(process)
        if process.returncode == 0:
            return None
        lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
        return (lines[-1] if lines else f"pip ended with {process.returncode}").removeprefix("ERROR: ")[:400]


def _pip(python: str) -> tuple[str, ...]:
    """Return how pip is run: as installed, or as bundled with Python."""
    import importlib.util

    if importlib.util.find_spec("pip") is not None:
        return ("-m", "pip")
    try:
        import ensurepip

        found = sorted((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))
    except ImportError:
        found = []
    if not found:
        where = shutil.which(python) or python
        raise Refused(f"{where}: has no pip; install it, or publish a wheel that requires nothing")
    return (f"{found[-1]}/pip",)
