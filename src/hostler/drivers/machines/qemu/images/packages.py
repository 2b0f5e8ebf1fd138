"""Debian packages without root: apt finds, downloads and verifies them; nothing is installed.

The host's own package lists are used where they contain the packages and are fresh. Otherwise separate lists are made
next to the packages: on Debian from the host's own sources, elsewhere from Debian's, signed by Debian's keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu.images.layout import sha256_of
from hostler.errors import HostlerError, Refused, Unavailable
from hostler.kit.processes import end_process

if TYPE_CHECKING:
    import re
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

FRESH = 7 * 86_400.0
"""Seconds after which lists are refreshed, if possible."""
PACE = 0.3
"""Seconds between two progress updates."""
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SOURCES = """\
deb [signed-by={keyring}] http://deb.debian.org/debian bookworm main
deb [signed-by={keyring}] http://deb.debian.org/debian bookworm-updates main
deb [signed-by={keyring}] http://deb.debian.org/debian-security bookworm-security main
"""
_NO_APT = "images are built from packages of Debian: use a machine with apt, or add an image that was built elsewhere"
_GOT_BY = {
    "apt-get": _NO_APT,
    "apt-cache": _NO_APT,
    "dpkg-deb": "install the package dpkg",
    "qemu-img": "install the package qemu-utils",
}


class Package(msgspec.Struct, frozen=True):
    """One version of a package, as listed."""

    name: str
    version: str
    file: str
    size: int
    sha256: str
    depends: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Packages:
    """Packages in a persistent folder that several processes may use (`locked`)."""

    def __init__(self, folder: Path, *, architecture: str = "amd64") -> None:
        self._folder = folder
        self._architecture = architecture
        self._lists: tuple[str, ...] = ()
        """Options that make apt use the separate lists; empty: it uses the host's."""

    @contextlib.asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Let one process at a time use the folder: two downloads of one file would overwrite each other."""
        await asyncio.to_thread((self._folder / "cache").mkdir, mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while True:  # not in a thread, whose wait could not be cancelled
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await asyncio.sleep(PACE)
            yield
        finally:
            os.close(descriptor)

    async def find(self, newest: str, names: Sequence[str]) -> tuple[Package, list[Package]]:
        """Return the package that the metapackage `newest` depends on, and `names` with their libraries."""
        first = await self._find_packages(newest, names)
        real = next(iter(first[newest].depends), "")
        found = {name: first[name] for name in names}
        wanted = {real, *_libraries(found.values())}
        while wanted:
            shown = await self._show(sorted(wanted))
            for name in sorted(wanted - shown.keys()):
                raise _lacking(name)
            found.update({name: package for name, package in shown.items() if name in wanted})
            wanted = _libraries(package for package in found.values() if package.name != real) - found.keys()
        image = found.pop(real)
        return image, [found[name] for name in sorted(found)]

    async def fetch(self, packages: Sequence[Package], progress: Callable[[int, int], None]) -> None:
        """Download and verify all packages, and delete other versions of them. `progress` receives bytes."""
        total = sum(package.size for package in packages)
        lacking = [package for package in packages if not await self._is_here(package)]
        done = total - sum(package.size for package in lacking)
        progress(done, total)
        if lacking:
            await self._load(
                lacking,
                lambda: progress(min(total, done + sum(_size(self._folder / part.file) for part in lacking)), total),
            )
            progress(total, total)
        self._forget_others(packages)

    async def files(self, package: Package, *wanted: re.Pattern[str]) -> dict[str, bytes]:
        """Return the wanted files and symbolic links by path (from `/`); a link has the content of its target."""
        try:
            process = subprocess.Popen(  # noqa: ASYNC220 - read in a thread, and ended here
                ["dpkg-deb", "--fsys-tarfile", str(self._folder / package.file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise _not_installed("dpkg-deb") from None
        reading = asyncio.ensure_future(asyncio.to_thread(_pick_files, process, wanted))
        try:
            found = await asyncio.shield(reading)
        except tarfile.TarError as error:
            raise Refused(f"package {package}: cannot be unpacked: {error}; remove it and try again") from None
        finally:
            process.kill()
            await asyncio.wait({reading})  # it ends with the process
            process.wait()
        return found

    async def _find_packages(self, newest: str, names: Sequence[str]) -> dict[str, Package]:
        """Return all of these from lists that contain them and are fresh, or the freshest available."""
        wanted = {newest, *names}
        theirs = await self._show(sorted(wanted))
        complete = wanted <= theirs.keys()
        if complete and _age(Path("/var/lib/apt/lists")) < FRESH:
            return theirs
        own = self._folder / "lists"
        self._lists = self._own_lists(own, machine_sources=complete or _is_debian())
        if _age(own / "made") < FRESH:
            shown = await self._show(sorted(wanted))
            if wanted <= shown.keys():
                return shown
        try:
            await self._refresh(own)
            shown = await self._show(sorted(wanted))
            for name in sorted(wanted - shown.keys()):
                raise _lacking(name)
        except HostlerError:
            if not complete:
                raise
            self._lists = ()  # old lists are better than none: their packages may still exist
            return theirs
        return shown

    async def _refresh(self, own: Path) -> None:
        status, _, errors = await run("apt-get", *self._options(), "-qq", "update")
        if status != 0:
            raise Unavailable(f"package lists: apt-get update failed: {_last(errors)}; check the network and try again")
        await asyncio.to_thread((own / "made").touch)

    async def _load(self, lacking: Sequence[Package], look: Callable[[], None]) -> None:
        names = [f"{package.name}={package.version}" for package in lacking]
        command = ("apt-get", *self._options(), "-q", "download", *names)
        loading = asyncio.ensure_future(run(*command, cwd=self._folder))
        try:
            while not (await asyncio.wait({loading}, timeout=PACE))[0]:
                look()
            status, _, errors = await loading
        finally:
            if not loading.done():
                loading.cancel()
                await asyncio.wait({loading})
        if status != 0:
            (self._folder / "lists" / "made").unlink(missing_ok=True)  # the lists may name packages that are gone
            raise Unavailable(f"packages: apt-get download failed: {_last(errors)}; check the network and try again")
        for package in lacking:
            if not await self._is_here(package):
                (self._folder / package.file).unlink(missing_ok=True)
                raise Unavailable(f"package {package}: the download does not match the signed lists; try again")

    def _forget_others(self, packages: Iterable[Package]) -> None:
        keep = {package.file for package in packages}
        for path in self._folder.glob("*.deb"):
            if path.name not in keep and path.name.split("_")[0] in {name.split("_")[0] for name in keep}:
                path.unlink(missing_ok=True)

    async def _show(self, names: Sequence[str]) -> dict[str, Package]:
        _, output, _ = await run("apt-cache", *self._options(), "show", "--no-all-versions", *names)
        found: dict[str, Package] = {}
        for paragraph in output.decode(errors="replace").split("\n\n"):
            package = _parse_package(paragraph)
            if package is not None:
                found.setdefault(package.name, package)
        return found

    async def _is_here(self, package: Package) -> bool:
        path = self._folder / package.file
        return _size(path) == package.size and await asyncio.to_thread(sha256_of, path) == package.sha256

    def _options(self) -> tuple[str, ...]:
        """Return the options of apt.

        A separate cache saves tenths of a second per call; `_apt` could not write to it.
        """
        chosen = (
            f"APT::Architecture={self._architecture}",
            "APT::Sandbox::User=",
            f"Dir::Cache={self._folder / 'cache'}",
            "Dir::Cache::pkgcache=packages.bin",
            "Dir::Cache::srcpkgcache=",
        )
        return (*(part for option in chosen for part in ("-o", option)), *self._lists)

    def _own_lists(self, own: Path, *, machine_sources: bool) -> tuple[str, ...]:
        (own / "state" / "lists" / "partial").mkdir(mode=0o700, parents=True, exist_ok=True)
        (own / "status").touch()
        chosen = [f"Dir::State={own / 'state'}", f"Dir::State::status={own / 'status'}"]
        if not machine_sources:
            if not _KEYRING.exists():
                raise Refused(
                    f"packages of Debian: {_KEYRING} is missing, so nothing can be verified; install the package"
                    " debian-archive-keyring"
                )
            (own / "sources.list").write_text(_SOURCES.format(keyring=_KEYRING))
            chosen += [f"Dir::Etc::sourcelist={own / 'sources.list'}", "Dir::Etc::sourceparts=-"]
        return tuple(part for option in chosen for part in ("-o", option))


async def run(*argv: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> tuple[int, bytes, str]:
    """Run a program; return exit status, output and errors. It is ended with the caller. Refused: not installed."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
        )
    except FileNotFoundError:
        raise _not_installed(argv[0]) from None
    try:
        output, errors = await process.communicate()
    finally:
        await end_process(process)
    return process.returncode or 0, output, errors.decode(errors="replace")


def _not_installed(name: str) -> Refused:
    return Refused(f"{name}: not installed; {_GOT_BY.get(name, 'install it')}")


def _lacking(name: str) -> Refused:
    return Refused(f"package {name}: not in apt's sources; enable the main archive of Debian")


def _libraries(packages: Iterable[Package]) -> set[str]:
    return {name for package in packages for name in package.depends if name.startswith(("lib", "zlib"))}


def _parse_package(paragraph: str) -> Package | None:
    """Parse a paragraph of apt's lists."""
    fields: dict[str, str] = {}
    for line in paragraph.splitlines():
        name, separator, value = line.partition(": ")
        if separator and not line.startswith(" "):
            fields.setdefault(name, value.strip())
    if not {"Package", "Version", "Architecture", "Size", "SHA256"} <= fields.keys():
        return None
    depends = ", ".join(fields[name] for name in ("Pre-Depends", "Depends") if name in fields)
    names = (item.split("|")[0].split("(")[0].split(":")[0].strip() for item in depends.split(","))
    version = fields["Version"].replace(":", "%3a")
    return Package(
        fields["Package"],
        fields["Version"],
        f"{fields['Package']}_{version}_{fields['Architecture']}.deb",
        int(fields["Size"]),
        fields["SHA256"],
        tuple(name for name in names if name),
    )


def _pick_files(process: subprocess.Popen[bytes], wanted: Sequence[re.Pattern[str]]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    links: dict[str, str] = {}
    with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
        for member in archive:
            path = "/" + member.name.removeprefix("./").lstrip("/")
            if not any(pattern.search(path) for pattern in wanted):
                continue
            if member.issym():
                links[path] = os.path.normpath(f"{os.path.dirname(path)}/{member.linkname}")
            elif member.isfile() and (content := archive.extractfile(member)):
                found[path] = content.read()
    return {**found, **{path: found[target] for path, target in links.items() if target in found}}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return float("inf")


def _is_debian() -> bool:
    try:
        return "ID=debian" in Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return False


def _last(errors: str) -> str:
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("W:")]
    return lines[-1] if lines else "no reason given"
