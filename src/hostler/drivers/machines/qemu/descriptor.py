"""The descriptor of machines that are QEMU processes: settings, images, network and checks."""

from __future__ import annotations

import os
import re
from ipaddress import IPv6Network
from typing import TYPE_CHECKING

from hostler.errors import HostlerError
from hostler.ports.machine_driver import FirstMachine, GuestNetwork, MachineDriver
from hostler.settings import value
from hostler.settings.option import Option

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hostler.kit.clock import Clock
    from hostler.model.image import Image
    from hostler.ports.machine_driver import Finding, Images, NodeSetup, Progress
    from hostler.ports.machines import Machines
    from hostler.settings import Settings

SET_BRIDGE = "set network = bridge, or bridge:NAME"


def _open(node: NodeSetup) -> Machines:
    settings = node.required_settings()
    from hostler.drivers.machines.qemu.driver import QemuMachines
    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.node_context import QemuOptions

    given = settings.driver_options
    images = ImageFolder(
        settings.data / "images", machines=settings.data / "machines", default=settings.image, clock=node.clock
    )
    options = QemuOptions(
        network=given["network"],
        data=settings.data,
        prefix6=given["network_prefix6"],
        uids=given["qemu_uids"],
        accelerator=given["accelerator"],
        reserve_gib=given["disk_reserve_gib"],
        cpu_overcommit=given["cpu_overcommit"],
        shared_by=node.nodes,
        siblings=node.siblings,
    )
    return QemuMachines(node.folder, images=images, options=options, clock=node.clock)


def _open_images(
    folder: Path, *, machines: Path, default: str, clock: Clock | None, settings: Settings | None
) -> Images:
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

    async def keep_warm(image: Image, files: Path, cpus: int, memory_mib: int, progress: Progress) -> None:
        from hostler.drivers.machines.qemu.saved_state import warmer

        given = {} if settings is None else settings.driver_options
        options = {} if settings is None else {"accelerator": given["accelerator"], "uids": given["qemu_uids"]}
        await warmer(folder, **options)(image, files, cpus, memory_mib, progress)

    return ImageFolder(folder, machines=machines, default=default, clock=clock, warmer=keep_warm)


async def _examine(settings: Settings, used: bool) -> Sequence[Finding]:
    from hostler.drivers.machines.qemu.examination import examine

    return await examine(settings, used=used)


TINY = "tiny"


async def _build_first_image(settings: Settings, tell: Callable[[str], None], needed: bool) -> None:
    """Build the tiny image if there is no image; if `needed`, also if only the default image is missing.

    A failure is reported and does not prevent the start: an image can be added at any time.
    """
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

    images = ImageFolder(settings.data / "images", machines=settings.data / "machines", default=settings.image)
    try:
        names = {named.name for named in await images.list()}
        if names and (not needed or settings.image in names or settings.image != TINY):
            return
        said: set[str] = set()

        def progress(what: str, done: int, total: int | None) -> None:  # noqa: ARG001 - one line per part is enough
            if what not in said:
                said.add(what)
                tell(f"image {TINY}: {what}")

        tell(f"image {TINY}: building it once from Debian packages …")
        made = await images.build(TINY, TINY, progress=progress)
        tell(f"image {TINY}: ready, {made.size / 2**20:.0f} MiB")
    except HostlerError as error:
        tell(f"no image: {error}; machines wait for an image: hostler image build tiny, or hostler image add")


def bridge_refusal(settings: Settings) -> str:
    """Return why guests cannot use the configured bridge, or Hostler's own, on this host; empty: they can.

    The check sets up everything that a guest needs; Hostler's own bridge remains afterwards.
    """
    from hostler.drivers.machines.qemu.bridge import BridgeNetwork

    given = settings.driver_options
    try:
        name = given["network"].partition(":")[2]
        BridgeNetwork(name, given["network_prefix6"], "", data=None if name else settings.data).try_out()
    except HostlerError as error:
        return str(error)
    return ""


def _guest_network(settings: Settings) -> GuestNetwork:
    """Labs from Redis use Hostler's own bridge unless the settings name another network. A bridge is tested.

    The test takes a few milliseconds, and Hostler's own bridge is not removed afterwards.
    """
    network, origin = settings.driver_options["network"], settings.origins["network"]
    if settings.redis is None:
        return GuestNetwork()
    named = network.startswith("bridge")
    if not named and origin.layer != "default":
        return GuestNetwork({}, f"network = {network} ({origin}) gives guests no IPv6 address", SET_BRIDGE)
    why, _, advice = bridge_refusal(settings).partition("; ")
    if why:
        return GuestNetwork({}, why, advice or "fix this and restart")
    return GuestNetwork({} if named else {"network": "bridge"})


def _guest_network_refusal(facts: Mapping[str, str]) -> tuple[str, str]:
    network = facts.get("network", "not known")
    if network.startswith("bridge "):
        return "", ""
    why = network.removeprefix("none: ")
    if why == network:
        why = f"its guests have no IPv6 address (network: {network.partition(';')[0]})"
    return why.partition("; ")[0], f"{SET_BRIDGE} there"


def _read_network(found: object) -> str:
    text = value.read_text(found).strip()
    if text not in ("user", "isolated") and not re.fullmatch(r"bridge(:[A-Za-z0-9_.-]{1,15})?", text):
        raise ValueError("must be user, isolated, bridge or bridge:NAME")
    return text


def _read_prefix6(found: object) -> str:
    try:
        prefix = IPv6Network(value.read_text(found).strip())
    except ValueError:
        prefix = IPv6Network("::/0")
    if prefix.prefixlen != 64:
        raise ValueError("must be an IPv6 prefix of 64 bits, such as fd00:1:2:3::/64")
    return str(prefix)


def _read_uids(found: object) -> str:
    text = value.read_text(found).strip()
    bounds = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", text)
    if bounds is None or not 1000 <= int(bounds[1]) <= int(bounds[2]) <= 2**32 - 3:
        raise ValueError("must be FIRST-LAST, such as 200000-299999, above 999")
    return text


DRIVER = MachineDriver(
    about="QEMU processes on this host",
    options=(
        Option(
            *("network", "network", "HOSTLER_NETWORK", _read_network),
            "the network of QEMU guests: user, isolated, bridge or bridge:NAME",
            "user",
        ),
        Option(
            *("network_prefix6", "network_prefix6", "HOSTLER_NETWORK_PREFIX6", _read_prefix6),
            "which prefix of the bridge to use",
        ),
        Option(
            *("accelerator", "accelerator", "HOSTLER_ACCELERATOR", value.read_one_of("kvm", "tcg")),
            "the accelerator of QEMU, without detection",
        ),
        Option(
            *("qemu_uids", "qemu_uids", "HOSTLER_QEMU_UIDS", _read_uids),
            "FIRST-LAST: the user ids that guests run as, under root",
        ),
        Option(
            *("disk_reserve_gib", "disk_reserve_gib", "HOSTLER_DISK_RESERVE_GIB", value.read_gib),
            "no machine is created with less free disk space than this (at most 5 % of the disk)",
            2.0,
        ),
        Option(
            *("cpu_overcommit", "cpu_overcommit", "HOSTLER_CPU_OVERCOMMIT", value.read_number(1, 100)),
            "how many guest cpus a node promises for each cpu of the host",
            8,
        ),
    ),
    open=_open,
    examine=_examine,
    # Guests of another user than root connect from this host's own address, and only root can block them.
    guests_call_from_here=lambda: os.geteuid() != 0,
    prepare=_build_first_image,
    guest_network=_guest_network,
    guest_network_refusal=_guest_network_refusal,
    open_images=_open_images,
    first=FirstMachine(memory_mib=128, example="--memory 256M"),
)
