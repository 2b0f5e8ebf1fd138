"""What a driver of machines brings so that Hostler can offer them: its descriptor, images, and findings of its checks.

An entry point in the group `hostler.machines` refers to a `MachineDriver`; its name is the kind of the machines. The
module of the descriptor must be quick to import: the driver itself is imported by `open`.

Images are looked up by name and stored by content.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.errors import Invalid
from hostler.model.image import Image  # noqa: TC001 - msgspec reads annotations at run time
from hostler.settings.driver import MachineDriverSettings

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from hostler.kit.clock import Clock
    from hostler.model.inventory import Capacity
    from hostler.ports.machines import Machines
    from hostler.settings import Settings


class Level(enum.StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One finding: the subject, its level, the observation, and the next action."""

    of: str
    level: Level
    what: str
    next: str = ""


if TYPE_CHECKING:
    Progress = Callable[[str, int, int | None], None]
    """Receives the current activity, the amount done, and the total amount (None: not known)."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """An image and its name."""

    name: str
    image: Image
    size: int
    """Bytes on disk."""
    used_by: int
    """Number of machines whose disks use it."""
    warm: tuple[str, ...] = ()
    """Shapes that are kept booted: `1x128` is one CPU and 128 MiB."""


class Images(Protocol):
    """The image store of a node.

    Every verb may be repeated and may be interrupted at any point. Several processes may use a folder at the same time.

    Refused: impossible (not an image, a wrong checksum, an image in use). NotFound: no image has that name.
    Unavailable: not now, for example because a server does not answer; downloaded data is kept for the next attempt.
    """

    async def list(self) -> Sequence[Named]:
        """Return all readable images, ordered by name."""

    async def damaged(self) -> Mapping[str, str]:
        """Return the names of the unreadable images, and why each cannot be read."""

    async def add(
        self, name: str, source: str, *, sha256: str | None, options: dict[str, str], progress: Progress
    ) -> Named:
        """Add a disk image from a path or a URL. A URL needs a checksum. `options`: fields of `Image`, as text."""

    async def build(self, kind: str, name: str, *, progress: Progress) -> Named:
        """Build an image: `tiny` or `debian`. Building it again is fast unless newer packages exist."""

    async def remove(self, name: str) -> None:
        """Delete the name, and the content if this was its last name. Refused: a machine uses the image."""

    async def warm(self, name: str, *, cpus: int, memory_mib: int, progress: Progress) -> Named:
        """Keep the image booted in a shape, so that a machine of that shape starts in a fraction of the time."""

    def files(self, name: str) -> Path:
        """Return the folder of its files. NotFound."""


class NodeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The node whose machines a driver opens."""

    kind: str
    """The name under which the driver is installed."""
    folder: Path
    """For everything that the driver keeps. One process at a time has it open."""
    settings: Settings | None = None
    clock: Clock | None = None
    rng: random.Random | None = None
    nodes: int = 1
    """Number of nodes that share this host's resources."""
    siblings: Path | None = None
    """Folder with one folder per node of this host; their number counts where it is larger than `nodes`."""
    capacity: Capacity | None = None
    delays: Mapping[str, float] = {}
    """Capacity, and the seconds that each verb takes, of machines that are simulated."""

    def required_settings(self) -> Settings:
        """Return the settings. Invalid: the caller gave none."""
        if self.settings is None:
            raise Invalid(f"machines {self.kind!r}: settings are required; load them with hostler.settings.load()")
        return self.settings


class GuestNetwork(msgspec.Struct, frozen=True):
    """Whether guests of this host have addresses of their own, as users of labs from Redis need them."""

    options: Mapping[str, object] = {}
    """Settings of the driver that follow from the other settings (`Settings.driver_options`)."""
    why: str = ""
    """Why guests have no address of their own; empty: they have one, or do not need one."""
    advice: str = ""


class FirstMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that `hostler up --first-vm` creates, and the one that it suggests to create."""

    memory_mib: int = 512
    within: float = 300.0
    """Seconds to wait until it is available. It keeps booting after that."""
    shows_steps: bool = True
    """Its start takes long enough to report the steps of it."""
    example: str = "--cpus 2 --memory 1G"
    """Flags of `hostler vm create` in the suggestion."""


class MachineDriver(MachineDriverSettings, frozen=True, kw_only=True):
    """What a package of machines brings. Only `about` and `open` are required."""

    open: Callable[[NodeSetup], Machines]
    """Return the machines of a node, to be entered. Invalid: a setting is missing, or a package is not installed."""
    examine: Callable[[Settings, bool], Awaitable[Sequence[Finding]]] | None = None
    """Check this host for `hostler doctor`; the flag: whether the settings use this driver. Changes nothing."""
    on_this_host: bool = True
    """Machines run on the host of the agent. Otherwise the node has no label with this host's architecture."""
    boots: int | None = None
    """Machines that start at the same time, if the settings do not say; None: the number of CPUs of this host."""
    guests_call_from_here: Callable[[], bool] | None = None
    """Return whether guests reach this host from its own address, like trusted processes; None: they do not."""
    prepare: Callable[[Settings, Callable[[str], None], bool], Awaitable[None]] | None = None
    """Prepare the data folder of `hostler up`, such as a first image. The flag: a machine will be created at once.

    A failure is reported and does not prevent the start.
    """
    guest_network: Callable[[Settings], GuestNetwork] | None = None
    """Choose the network of guests for labs from Redis. May take some milliseconds."""
    guest_network_refusal: Callable[[Mapping[str, str]], tuple[str, str]] | None = None
    """Return why guests of a node with these facts (`Offer.facts`) have no address of their own, and advice."""
    open_images: Callable[..., Images] | None = None
    """Return the images in a folder. Takes the arguments of `hostler.wiring.open_images`."""
    first: FirstMachine = FirstMachine()
