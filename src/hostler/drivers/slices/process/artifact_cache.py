"""Artifacts that were fetched and unpacked: one folder per file, shared by all instances that use it.

    artifacts/{sha256}/lib        the import path
                      /packages   required packages
    artifacts/names/{…}.json      the description of each artifact

A version of an artifact never changes. So a cached artifact needs no access to the repository: instances are restarted
while the repository cannot be reached.

Packages that a wheel requires are installed with Hostler already, or taken by pip from a folder or an index. It
runs no code of what it installs: only wheels are accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.artifacts.wheel import unpack
from hostler.errors import Refused, Unavailable
from hostler.kit.processes import end_process, environment
from hostler.kit.tasks import run_to_end
from hostler.ports.slices import ArtifactInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostler.ports.slices import Artifacts

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
            await end_process(process)
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


LIB, PACKAGES = "lib", "packages"
_CHUNK = 1024 * 1024


class Held(msgspec.Struct, frozen=True):
    """A cached artifact."""

    info: ArtifactInfo
    folder: Path


class Library:
    """The artifacts of one node."""

    def __init__(self, root: Path, artifacts: Artifacts, packages: Packages) -> None:
        self._root, self._artifacts, self._packages = root, artifacts, packages
        self._turns: dict[str, asyncio.Lock] = {}
        self._changing = asyncio.Lock()
        """Held while adding or removing: an artifact that is being added is not removed."""

    def open(self) -> None:
        """Delete what an earlier process left incomplete."""
        (self._root / "names").mkdir(parents=True, exist_ok=True)
        self._root.chmod(0o711)
        for path in self._root.glob(".new-*"):
            shutil.rmtree(path, ignore_errors=True)

    async def hold(self, artifact: str) -> Held:
        """Ensure that an artifact is cached. Errors as of `Artifacts`; Refused: it cannot be used here, and why."""
        async with self._turns.setdefault(artifact, asyncio.Lock()):
            async with self._changing:
                held = await run_to_end(asyncio.to_thread(self._load_held, artifact))
            return held if held is not None else await self._fetch(artifact)

    async def release(self, used: Callable[[], Iterable[str]]) -> None:
        """Delete all artifacts except these."""
        async with self._changing:
            await run_to_end(asyncio.to_thread(self._release, set(used())))

    def _load_held(self, artifact: str) -> Held | None:
        try:
            info = msgspec.json.decode(self._note(artifact).read_bytes(), type=ArtifactInfo)
        except (OSError, msgspec.DecodeError):
            return None
        folder = self._root / _folder_name(info)
        return Held(info, folder) if info.artifact == artifact and (folder / LIB).is_dir() else None

    async def _fetch(self, artifact: str) -> Held:
        fresh = self._root / f".new-{secrets.token_hex(6)}"
        fresh.mkdir(mode=0o700)
        try:
            info = await self._artifacts.fetch(artifact, fresh)
            await asyncio.to_thread(_unpack, info, fresh)
            if info.requires:
                await self._packages.install(artifact, info.requires, fresh / PACKAGES)
            async with self._changing:
                return await run_to_end(asyncio.to_thread(self._keep, info, fresh))
        except OSError as error:
            raise Unavailable(f"artifact {artifact}: {error.strerror or error}; check the node's disk") from None
        finally:
            await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)

    def _keep(self, info: ArtifactInfo, fresh: Path) -> Held:
        folder = self._root / _folder_name(info)
        for path in (fresh, *fresh.rglob("*")):  # readable for the worker's user, writable only for the agent
            path.chmod(0o755 if path.is_dir() else 0o644)
        with suppress(OSError):  # another artifact has the same file
            fresh.rename(folder)
        if not (folder / LIB).is_dir():
            raise Unavailable(f"{folder}: cannot be created; check the node's disk")
        note = self._note(info.artifact)
        new = note.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(info))
        new.replace(note)
        return Held(info, folder)

    def _release(self, used: set[str]) -> None:
        kept = {"names"}
        for note in (self._root / "names").iterdir():
            with suppress(OSError, msgspec.DecodeError):
                info = msgspec.json.decode(note.read_bytes(), type=ArtifactInfo)
                if info.artifact in used:
                    kept.add(_folder_name(info))
                else:
                    note.unlink(missing_ok=True)
        for folder in self._root.iterdir():
            if folder.name not in kept and not folder.name.startswith(".new-"):
                shutil.rmtree(folder, ignore_errors=True)

    def _note(self, artifact: str) -> Path:
        return self._root / "names" / f"{hashlib.sha256(artifact.encode()).hexdigest()[:32]}.json"


def _folder_name(info: ArtifactInfo) -> str:
    """Return the folder name. Modules with the same content have separate folders: they are imported by name."""
    return info.sha256 if info.file.endswith(".whl") else f"{info.sha256}-{info.module}"


def _unpack(info: ArtifactInfo, fresh: Path) -> None:
    file = fresh / info.file
    digest = hashlib.sha256()
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as found:
        while chunk := found.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != info.sha256:
        raise Refused(
            f"artifact {info.artifact}: the SHA-256 of {info.file} is {digest.hexdigest()}, not the published"
            f" {info.sha256}; publish it again, as another version"
        )
    if file.suffix == ".whl":
        unpack(file, fresh / LIB)
        file.unlink()
    else:
        (fresh / LIB).mkdir()
        file.rename(fresh / LIB / file.name)
