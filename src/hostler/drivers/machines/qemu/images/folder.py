"""`ImageFolder`: the images of a machine, by their content.

An image is made in a scratch folder and gets its place by one rename, so there is never half of one. Its files do not
change any more (0444), and machines stand on hard links to them: the number of links says whether it is in use, whoever
made them and whatever became of who did.
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

from hostler.drivers.machines.qemu.images.layout import Place, Scratch, checked_name, sha256_of, translated
from hostler.drivers.machines.qemu.images.usage import Usage, Users, statuses_in
from hostler.errors import Damaged, Invalid, NotFound, Refused, Unavailable
from hostler.kit.clock import Clock, SystemClock
from hostler.kit.fsync import sync_file, sync_folder
from hostler.model.image import Image
from hostler.ports.images import Named

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from hostler.ports.images import Progress

    Warmer = Callable[[Image, Path, int, int, Progress], Awaitable[None]]
    """Keeps the image in that folder booted with so many cpus and MiB."""

T = TypeVar("T")

LINKED = {"disk": "base", "kernel": "kernel", "initrd": "initrd"}
"""An image's files, and their names in the folder of a machine."""
NOT_CONTENT = ("digest", "source", "made_at")
"""Fields of an image that are about it: two that differ in them only are the same."""


class ImageFolder:
    """The port `Images`, in a folder. It holds nothing open, so it need not be closed."""

    def __init__(
        self,
        path: str | Path,
        *,
        machines: Path | None = None,
        default: str = "tiny",
        clock: Clock | None = None,
        warmer: Warmer | None = None,
    ) -> None:
        """`machines`: where nodes keep their machines, to tell who uses an image. `default`: what the name "" means."""
        self.path = Path(path)
        self.default = default
        self._machines = machines
        self.place = Place(self.path)
        self._clock = clock or SystemClock()
        self._warmer = warmer

    # What machines need

    def find(self, name: str) -> tuple[Image, Path]:
        """The image and the folder of its files. NotFound."""
        name = checked_name(name or self.default)
        with translated(self.path):
            digest = self.place.digest_of(name)
            if digest is None:
                raise NotFound(f"image {name!r}: there is none of that name here; {self._known(name)}")
            return self._read(digest), self.place.image(digest)

    def holding(self, digest: str) -> tuple[Image, Path]:
        """The same by content, whatever it is called: one that machines stand on may have lost its name. NotFound."""
        with translated(self.path):
            if digest not in self.place.digests():
                raise NotFound(f"image {digest[:12]}: it is not here; add or build the same one")
            return self._read(digest), self.place.image(digest)

    async def link_into(self, name: str, folder: Path) -> Image:
        """Let the folder of a machine have the image's files: `base`, `kernel`, `initrd`. Repeatable. NotFound."""
        return await asyncio.to_thread(self._link_into, partial(self.find, name), folder)

    async def link_content_into(self, digest: str, folder: Path) -> Image:
        """The same for an image by its content."""
        return await asyncio.to_thread(self._link_into, partial(self.holding, digest), folder)

    def files(self, name: str) -> Path:
        """Where its files are. NotFound."""
        return self.find(name)[1]

    # The port

    async def list(self) -> Sequence[Named]:
        """All, in order of their names."""
        return await asyncio.to_thread(self._list)

    async def damaged(self) -> Mapping[str, str]:
        """Those that cannot be read, and why."""
        return await asyncio.to_thread(self._damaged)

    async def add(
        self, name: str, source: str, *, sha256: str | None, options: dict[str, str], progress: Progress
    ) -> Named:
        """Take a disk image from a path or a URL. A URL needs its checksum. `options`: fields of `Image`, as text."""
        from hostler.drivers.machines.qemu.images.add import add

        with translated(self.path):
            return await add(self, checked_name(name), source, sha256=sha256, options=options, progress=progress)

    async def build(self, kind: str, name: str, *, progress: Progress) -> Named:
        """Make one: `tiny` or `debian`. The same again is fast, unless there are newer packages."""
        from hostler.drivers.machines.qemu.images.build import build

        with translated(self.path):
            return await build(self, kind, checked_name(name), progress)

    async def warm(self, name: str, *, cpus: int, memory_mib: int, progress: Progress) -> Named:
        """Keep it booted in a shape, so that a machine of that shape starts in a fraction of the time."""
        image, folder = self.find(name)
        if not image.warm:
            raise Refused(f"image {name!r}: its guest cannot take an identity while it runs; warm an image of tiny")
        if self._warmer is None:
            raise Refused(f"image {name!r}: nothing here keeps images warm; use the images of qemu machines")
        await self._warmer(image, folder, cpus, memory_mib, progress)
        return await asyncio.to_thread(self._look, checked_name(name or self.default))

    async def remove(self, name: str) -> None:
        """Forget the name, and the content if that was its last. Refused: a machine stands on it."""
        await asyncio.to_thread(self._remove, checked_name(name))

    # Making one

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[Scratch]:
        """A folder in which to make an image; gone at the end, unless it was registered."""
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
        """Let the scratch folder, which holds the image's files, be the image of that name.

        `fields` are those of `Image` without `digest`, `files` and `made_at`; `digests` of files, where they are known.
        An image that is there already stays as it is.
        """
        path = scratch if isinstance(scratch, Path) else scratch.path
        return await asyncio.to_thread(self._register, checked_name(name), path, dict(fields), dict(digests or {}))

    async def made_from(self, source: str) -> str | None:
        """The digest of an image that was made from just that, if there is one."""
        return await asyncio.to_thread(self._made_from, source)

    async def call(self, name: str, digest: str) -> Named:
        """Let an image that is there have that name, too."""
        return await asyncio.to_thread(self._call, checked_name(name), digest)

    def disk_with(self, sha256: str) -> Path | None:
        """A disk of that checksum, if there is one here."""
        for digest in self.place.digests():
            with contextlib.suppress(Damaged):
                if self._read(digest).files["disk"] == sha256:
                    return self.place.image(digest) / "disk"
        return None

    def sweep(self) -> None:
        """Remove what interrupted calls left, and images without a name that nobody uses."""
        with self.place.locked(alone=True):
            self.place.sweep(self._clock.wall())
            self._drop_unnamed()

    # Below: in a thread

    def _link_into(self, find: Callable[[], tuple[Image, Path]], folder: Path) -> Image:
        with self.place.locked(alone=False):
            image, source = find()
            with translated(folder):
                for file, link in LINKED.items():
                    if file in image.files:
                        link_file(source / file, folder / link)
            return image

    def _list(self) -> Sequence[Named]:
        with translated(self.path):
            if not self.path.is_dir():
                return []
        with self.place.locked(alone=False):
            users, found = Users(self._machines), []
            for name, digest in self.place.named().items():
                with contextlib.suppress(Damaged):  # one that cannot be read hides no other
                    found.append(self._named(name, digest, users))
            return found

    def _damaged(self) -> Mapping[str, str]:
        found = {}
        for name, digest in self.place.named().items():
            try:
                self._read(digest)
            except Damaged as error:
                found[name] = str(error)
        return found

    def _made_from(self, source: str) -> str | None:
        for digest in self.place.named().values():
            with contextlib.suppress(Damaged):
                if self._read(digest).source == source:
                    return digest
        return None

    def _call(self, name: str, digest: str) -> Named:
        with self.place.locked(alone=True):
            if not self.place.image(digest).exists():
                raise Unavailable(f"image {name!r}: it was removed meanwhile; try again")
            self.place.call(name, digest)
            self._drop_unnamed()
            return self._named(name, digest, Users(self._machines))

    def _look(self, name: str) -> Named:
        with self.place.locked(alone=False):
            return self._named(name, self.find(name)[0].digest, Users(self._machines))

    def _remove(self, name: str) -> None:
        with self.place.locked(alone=True):
            self.place.sweep(self._clock.wall())
            digest = self.place.digest_of(name)
            if digest is None:
                raise NotFound(f"image {name!r}: there is none of that name here; {self._known(name)}")
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
        with translated(self.path):
            files = {file: digests.get(file) or sha256_of(path / file) for file in LINKED if (path / file).exists()}
            if "disk" not in files:
                raise Invalid(f"image {name!r}: it has no disk; this is a fault in what made it")
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
            return self._named(name, image.digest, Users(self._machines))

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
        except FileNotFoundError:  # damaged: nobody can use it
            return Usage((), 0)

    def _read(self, digest: str) -> Image:
        path = self.place.image(digest) / "image.json"
        try:
            image = Image.decode(path.read_bytes())
        except PermissionError:
            raise  # it may be whole
        except (OSError, Invalid) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise Damaged(f"image {path}: cannot be read: {why}; remove the image and add it again") from None
        if image.digest != digest:
            raise Damaged(f"image {path}: it is of another image ({image.digest}); remove the image and add it again")
        return image

    def _named(self, name: str, digest: str, users: Users) -> Named:
        image, folder = self._read(digest), self.place.image(digest)
        size = sum(status.st_blocks * 512 for status in statuses_in(folder))
        return Named(
            name=name, image=image, size=size, used_by=self._usage(digest, users).count, warm=warm_shapes(folder)
        )

    def _known(self, name: str) -> str:
        known = list(self.place.named())
        if name in ("tiny", "debian"):
            return f"make it with hostler image build {name}"
        if not known:
            return "make one with hostler image build tiny"
        return f"there are {', '.join(known[:10])}"


def digest_of(image: Image) -> str:
    """The digest of everything that makes it: its files and what is said of them."""
    content = {key: value for key, value in msgspec.to_builtins(image).items() if key not in NOT_CONTENT}
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def warm_shapes(folder: Path) -> tuple[str, ...]:
    """The shapes in which the image in that folder is kept booted."""
    found = {state.parent.name for state in (folder / "warm").glob("*/*.state")}
    return tuple(sorted(found, key=lambda shape: [int(n) if n.isdecimal() else 0 for n in shape.split("x")]))


def link_file(source: Path, target: Path) -> None:
    """A hard link, or where there cannot be one a copy that is whole or not there."""
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
