"""`ImageFolder`: the images of a host, identified by their content.

An image is made in a scratch folder and moved to its final place by one rename, so it is never incomplete. Its files
never change (0444). Machines use hard links to them. The number of links shows whether an image is in use, even if
the process that created the links is dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.drivers.machines.qemu.images.layout import (
    ImageLayout,
    Scratch,
    Usage,
    Users,
    check_name,
    sha256_of,
    statuses_in,
    translate_errors,
)
from hostler.errors import Damaged, Invalid, NotFound, Refused, Unavailable
from hostler.kit.clock import Clock, SystemClock
from hostler.kit.fsync import sync_file, sync_folder
from hostler.model.image import Image
from hostler.ports.machine_driver import Named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from hostler.ports.machine_driver import Progress

    Warmer = Callable[[Image, Path, int, int, Progress], Awaitable[None]]
    """Keeps the image in that folder booted with that many CPUs and MiB."""

T = TypeVar("T")

LINKED = {"disk": "base", "kernel": "kernel", "initrd": "initrd"}
"""Files of an image, and their names in the folder of a machine."""
NOT_CONTENT = ("digest", "source", "made_at")
"""Fields that are not part of an image's content: two images that differ only in these are the same."""


class ImageFolder:
    """The port `Images`, in a folder. It keeps nothing open, so it need not be closed."""

    def __init__(
        self,
        path: str | Path,
        *,
        machines: Path | None = None,
        default: str = "tiny",
        clock: Clock | None = None,
        warmer: Warmer | None = None,
    ) -> None:
        """Set up the folder. `machines`: where nodes keep their machines, to find users of an image.

        `default`: the image of "".
        """
        self.path = Path(path)
        self.default = default
        self._machines = machines
        self.place = ImageLayout(self.path)
        self._clock = clock or SystemClock()
        self._warmer = warmer

    # Used by machines

    def find(self, name: str) -> tuple[Image, Path]:
        """Return an image and the folder of its files. NotFound."""
        name = check_name(name or self.default)
        with translate_errors(self.path):
            digest = self.place.digest_of(name)
            if digest is None:
                raise NotFound(f"image {name!r}: not found; {self._advice_for(name)}")
            return self._read(digest), self.place.image(digest)

    def holding(self, digest: str) -> tuple[Image, Path]:
        """Return an image by its content: an image in use may have lost its name. NotFound."""
        with translate_errors(self.path):
            if digest not in self.place.digests():
                raise NotFound(f"image {digest[:12]}: it is not here; add or build the same one")
            return self._read(digest), self.place.image(digest)

    async def link_into(self, name: str, folder: Path) -> Image:
        """Link the image's files into the folder of a machine: `base`, `kernel`, `initrd`. Repeatable. NotFound."""
        return await asyncio.to_thread(self._link_into, partial(self.find, name), folder)

    async def link_content_into(self, digest: str, folder: Path) -> Image:
        """Do the same for an image by its content."""
        return await asyncio.to_thread(self._link_into, partial(self.holding, digest), folder)

    def files(self, name: str) -> Path:
        """Return the folder of its files. NotFound."""
        return self.find(name)[1]

    # The port

    async def list(self) -> Sequence[Named]:
        """Return all images, sorted by name."""
        return await asyncio.to_thread(self._list)

    async def damaged(self) -> Mapping[str, str]:
        """Return the images that cannot be read, and why."""
        return await asyncio.to_thread(self._find_damaged)

    async def add(
        self, name: str, source: str, *, sha256: str | None, options: dict[str, str], progress: Progress
    ) -> Named:
        """Add a disk image from a path or a URL. A URL needs its checksum. `options`: fields of `Image`, as text."""
        from hostler.drivers.machines.qemu.images.add import add

        with translate_errors(self.path):
            return await add(self, check_name(name), source, sha256=sha256, options=options, progress=progress)

    async def build(self, kind: str, name: str, *, progress: Progress) -> Named:
        """Build an image: `tiny` or `debian`. Repeating it is fast, unless there are newer packages."""
        from hostler.drivers.machines.qemu.images.build import build

        with translate_errors(self.path):
            return await build(self, kind, check_name(name), progress)

    async def warm(self, name: str, *, cpus: int, memory_mib: int, progress: Progress) -> Named:
        """Keep an image booted in a size, so that a machine of that size starts in a fraction of the time."""
        image, folder = self.find(name)
        if not image.warm:
            raise Refused(f"image {name!r}: its guest does not support warming; only tiny images can be warmed")
        if self._warmer is None:
            raise Refused(f"image {name!r}: this folder does not support warm images; use the images of qemu machines")
        await self._warmer(image, folder, cpus, memory_mib, progress)
        return await asyncio.to_thread(self._look, check_name(name or self.default))

    async def remove(self, name: str) -> None:
        """Remove a name, and the content with its last name. Refused: a machine uses it."""
        await asyncio.to_thread(self._remove, check_name(name))

    # Making an image

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Scratch]:
        """Yield a folder to make an image in; removed at the end, unless it was registered."""
        await asyncio.to_thread(self.sweep)
        made = self.place.scratch()
        scratch = await asyncio.to_thread(made.__enter__)
        try:
            yield scratch
        finally:
            await asyncio.to_thread(made.__exit__, None, None, None)

    async def register(
        self,
        name: str,
        scratch: Scratch | Path,
        fields: Mapping[str, Any],
        *,
        digests: Mapping[str, str] | None = None,
    ) -> Named:
        """Register the scratch folder, which contains the image's files, as the image of that name.

        `fields` are those of `Image` without `digest`, `files` and `made_at`; `digests` are of files where they are
        known. An existing image with the same content is left unchanged.
        """
        path = scratch if isinstance(scratch, Path) else scratch.path
        return await asyncio.to_thread(self._register, check_name(name), path, dict(fields), dict(digests or {}))

    async def made_from(self, source: str) -> str | None:
        """Return the digest of an image that was built from that source, if one exists."""
        return await asyncio.to_thread(self._find_built_from, source)

    async def call(self, name: str, digest: str) -> Named:
        """Give an existing image an additional name."""
        return await asyncio.to_thread(self._call, check_name(name), digest)

    def disk_with(self, sha256: str) -> Path | None:
        """Return a disk with that checksum, if one exists here."""
        for digest in self.place.digests():
            with contextlib.suppress(Damaged):
                if self._read(digest).files["disk"] == sha256:
                    return self.place.image(digest) / "disk"
        return None

    def sweep(self) -> None:
        """Remove what interrupted calls left, and unnamed images that are not in use."""
        with self.place.locked(alone=True):
            self.place.sweep(self._clock.wall())
            self._drop_unnamed()

    # The rest runs in threads

    def _link_into(self, find: Callable[[], tuple[Image, Path]], folder: Path) -> Image:
        with self.place.locked(alone=False):
            image, source = find()
            with translate_errors(folder):
                for file, link in LINKED.items():
                    if file in image.files:
                        link_file(source / file, folder / link)
            return image

    def _list(self) -> Sequence[Named]:
        with translate_errors(self.path):
            if not self.path.is_dir():
                return []
        with self.place.locked(alone=False):
            users, found = Users(self._machines), []
            for name, digest in self.place.named().items():
                with contextlib.suppress(Damaged):  # an unreadable image does not hide the others
                    found.append(self._describe(name, digest, users))
            return found

    def _find_damaged(self) -> Mapping[str, str]:
        found = {}
        for name, digest in self.place.named().items():
            try:
                self._read(digest)
            except Damaged as error:
                found[name] = str(error)
        return found

    def _find_built_from(self, source: str) -> str | None:
        for digest in self.place.named().values():
            with contextlib.suppress(Damaged):
                if self._read(digest).source == source:
                    return digest
        return None

    def _call(self, name: str, digest: str) -> Named:
        with self.place.locked(alone=True):
            if not self.place.image(digest).exists():
                raise Unavailable(f"image {name!r}: it was removed during the call; try again")
            self.place.call(name, digest)
            self._drop_unnamed()
            return self._describe(name, digest, Users(self._machines))

    def _look(self, name: str) -> Named:
        with self.place.locked(alone=False):
            return self._describe(name, self.find(name)[0].digest, Users(self._machines))

    def _remove(self, name: str) -> None:
        with self.place.locked(alone=True):
            self.place.sweep(self._clock.wall())
            digest = self.place.digest_of(name)
            if digest is None:
                raise NotFound(f"image {name!r}: not found; {self._advice_for(name)}")
            if list(self.place.named().values()).count(digest) == 1:
                self._refuse_if_used(name, digest)
            self.place.forget(name)
            self._drop_unnamed()

    def _refuse_if_used(self, name: str, digest: str) -> None:
        usage = self._usage(digest, Users(self._machines))
        if usage.count:
            raise Refused(
                f"image {name!r}: in use by {usage}; delete {'that machine' if usage.count == 1 else 'those machines'}"
                " first"
            )

    def _register(self, name: str, path: Path, fields: dict[str, Any], digests: dict[str, str]) -> Named:
        with translate_errors(self.path):
            files = {file: digests.get(file) or sha256_of(path / file) for file in LINKED if (path / file).exists()}
            if "disk" not in files:
                raise Invalid(f"image {name!r}: it has no disk; this is a bug in its builder")
            unsettled = msgspec.to_builtins(fields) | {
                "files": files,
                "made_at": self._clock.wall(),
                "digest": "0" * 64,
            }
            image = Image.decode(msgspec.json.encode(unsettled), strict=True)
            image = msgspec.structs.replace(image, digest=digest_of(image))
            for entry in list(path.iterdir()):
                if entry.name not in files:
                    _remove(entry)
            (path / "image.json").write_bytes(image.encode())
            for file in ("image.json", *files):
                (path / file).chmod(0o444)
                sync_file(path / file)
            sync_folder(path)
        with self.place.locked(alone=True):
            self.place.keep(path, image.digest)
            self.place.call(name, image.digest)
            self._drop_unnamed()
            return self._describe(name, image.digest, Users(self._machines))

    def _drop_unnamed(self) -> None:
        named = set(self.place.named().values())
        unnamed = [digest for digest in self.place.digests() if digest not in named]
        if unnamed:
            users = Users(self._machines)
            for digest in unnamed:
                if not self._usage(digest, users).count:
                    self.place.drop(digest)

    def _usage(self, digest: str, users: Users) -> Usage:
        try:
            return users.of(self.place.image(digest))
        except FileNotFoundError:  # damaged: no machine can use it
            return Usage((), 0)

    def _read(self, digest: str) -> Image:
        path = self.place.image(digest) / "image.json"
        try:
            image = Image.decode(path.read_bytes())
        except PermissionError:
            raise  # it may be intact
        except (OSError, Invalid) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise Damaged(f"image {path}: cannot be read: {why}; remove the image and add it again") from None
        if image.digest != digest:
            raise Damaged(f"image {path}: belongs to another image ({image.digest}); remove the image and add it again")
        return image

    def _describe(self, name: str, digest: str, users: Users) -> Named:
        image, folder = self._read(digest), self.place.image(digest)
        size = sum(status.st_blocks * 512 for status in statuses_in(folder))
        return Named(
            name=name, image=image, size=size, used_by=self._usage(digest, users).count, warm=warm_shapes(folder)
        )

    def _advice_for(self, name: str) -> str:
        known = list(self.place.named())
        if name in ("tiny", "debian"):
            return f"make it with hostler image build {name}"
        if not known:
            return "make one with hostler image build tiny"
        return f"existing: {', '.join(known[:10])}"


def digest_of(image: Image) -> str:
    """Return the digest of an image's content: its files and their properties."""
    content = {key: value for key, value in msgspec.to_builtins(image).items() if key not in NOT_CONTENT}
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def warm_shapes(folder: Path) -> tuple[str, ...]:
    """Return the sizes in which the image in that folder is kept booted."""
    found = {state.parent.name for state in (folder / "warm").glob("*/*.state")}
    return tuple(sorted(found, key=lambda shape: [int(n) if n.isdecimal() else 0 for n in shape.split("x")]))


def link_file(source: Path, target: Path) -> None:
    """Create a hard link, or where that is impossible a copy, atomically."""
    for leftover in target.parent.glob(f".{target.name}.copy"):
        leftover.unlink()
    try:
        if target.samefile(source):
            return
        target.unlink()
    except FileNotFoundError:
        pass
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP):
            raise
        copy = target.with_name(f".{target.name}.copy")
        shutil.copyfile(source, copy)
        copy.chmod(0o444)
        sync_file(copy)
        copy.rename(target)
    sync_folder(target.parent)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
