"""Machine drivers of a node by their kind, and the images that machines are created from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import HostlerError, Invalid
from hostler.kit.plural import counted
from hostler.wiring.url import extra

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from hostler.drivers.machines.hetzner.options import HetznerOptions
    from hostler.kit.clock import Clock
    from hostler.model.image import Image
    from hostler.model.inventory import Capacity
    from hostler.ports.images import Images, Progress
    from hostler.ports.machines import Machines
    from hostler.settings import Settings


MACHINES = ("simulated", "qemu", "hetzner")
"""The kinds of machines that `open_machines` accepts."""


def open_machines(
    kind: str,
    folder: str | Path,
    *,
    capacity: Capacity,
    clock: Clock | None = None,
    rng: random.Random | None = None,
    delays: Mapping[str, float] | None = None,
    settings: Settings | None = None,
    nodes: int = 1,
    siblings: Path | None = None,
) -> Machines:
    """Return the machines of one node, kept in `folder`, to be entered with `async with`.

    One process at a time has a folder open. `capacity` is the capacity of simulated machines, and `delays` the seconds
    that each of their verbs takes, by name. QEMU machines share the capacity of the host, divided by the `nodes` on it,
    or by the number of folders in `siblings`, one for each node of the host, if there are more; `settings` say where
    their images are and how they run. Machines at Hetzner Cloud are as the settings say.
    """
    if kind not in MACHINES:
        raise Invalid(f"machines {kind!r}: unknown; known are {', '.join(MACHINES)}")
    if kind in ("qemu", "hetzner"):
        if settings is None:
            raise Invalid(f"machines {kind!r}: settings are required; load them with hostler.settings.load()")
        if kind == "hetzner":
            return _open_hetzner(folder, settings, clock)
        return _open_qemu(folder, settings, clock, nodes, siblings)
    from hostler.drivers.machines.simulated import FileHost, SimulatedMachines, faults_of

    return SimulatedMachines(FileHost(folder), clock=clock, rng=rng, capacity=capacity, faults=faults_of(delays or {}))


def _open_qemu(
    folder: str | Path, settings: Settings, clock: Clock | None, nodes: int, siblings: Path | None
) -> Machines:
    from hostler.drivers.machines.qemu.driver import QemuMachines
    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.drivers.machines.qemu.options import QemuOptions

    images = ImageFolder(
        settings.data / "images", machines=settings.data / "machines", default=settings.image, clock=clock
    )
    options = QemuOptions(
        network=settings.network,
        data=settings.data,
        prefix6=settings.network_prefix6,
        uids=settings.qemu_uids,
        accelerator=settings.accelerator,
        reserve_gib=settings.disk_reserve_gib,
        cpu_overcommit=settings.cpu_overcommit,
        shared_by=nodes,
        siblings=siblings,
    )
    return QemuMachines(folder, images=images, options=options, clock=clock)


def bridge_refusal(settings: Settings) -> str:
    """Return why guests cannot use the configured bridge, or Hostler's own, on this host; empty: they can.

    The check sets up everything that a guest needs; Hostler's own bridge remains afterwards.
    """
    from hostler.drivers.machines.qemu.bridge import BridgeNetwork

    try:
        name = settings.network.partition(":")[2]
        BridgeNetwork(name, settings.network_prefix6, "", data=None if name else settings.data).try_out()
    except HostlerError as error:
        return str(error)
    return ""


def _open_hetzner(folder: str | Path, settings: Settings, clock: Clock | None) -> Machines:
    options = _hetzner_options(settings)
    from hostler.drivers.machines.hetzner import HetznerMachines

    return HetznerMachines(folder, options=options, clock=clock)


def _hetzner_options(settings: Settings) -> HetznerOptions:
    with extra("hetzner"):
        from hostler.drivers.machines.hetzner.options import ENDPOINT, HetznerOptions
    if settings.hcloud_token is None:
        raise Invalid(
            "hcloud_token: machines at Hetzner Cloud need one; create an API token with read and write access in the"
            " project's console, and set HCLOUD_TOKEN"
        )
    file, cloud_init = settings.hcloud_cloud_init_file, ""
    if file is not None:
        try:
            cloud_init = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise Invalid(f"hcloud_cloud_init_file {file}: cannot be read: {reason}") from None
    return HetznerOptions(
        token=settings.hcloud_token,
        endpoint=settings.hcloud_endpoint or ENDPOINT,
        image=settings.hcloud_image,
        server_types=settings.hcloud_server_type,
        locations=settings.hcloud_location,
        firewall=settings.hcloud_firewall or "",
        ssh_keys=settings.hcloud_ssh_key,
        cloud_init=cloud_init,
        user=settings.lab_user,
        ipv4=settings.hcloud_ipv4,
        probe=settings.hcloud_probe,
    )


async def hetzner_answers(settings: Settings) -> str:
    """Return how many servers and server types Hetzner Cloud reports, in words. HostlerError: why it cannot."""
    options = _hetzner_options(settings)
    from hostler.drivers.machines.hetzner.api import Api
    from hostler.kit.clock import SystemClock

    api = Api(options, clock=SystemClock())
    api.open()
    try:
        kinds = await api.kinds()
        servers = await api.servers()
    finally:
        await api.aclose()
    return f"{counted(len(servers), 'server')} of Hostler, {counted(len(kinds), 'server type')}"


def known_acceleration(images: Path, uids: str | None = None) -> tuple[str, str] | None:
    """Return the accelerator of guests created from the images in that folder, and why; None: not determined yet.

    `uids`: the setting `qemu_uids`, because the result depends on the user that runs them.
    """
    from hostler.drivers.machines.qemu.acceleration import remembered
    from hostler.drivers.machines.qemu.privileges import users_here

    found = remembered(images, uids=users_here(uids))
    return None if found is None else (found.accelerator, found.why)


def open_images(
    folder: Path,
    *,
    machines: Path | None = None,
    default: str = "tiny",
    clock: Clock | None = None,
    settings: Settings | None = None,
) -> Images:
    """Return the images in `folder`.

    `machines`: where the nodes that use them keep their machines; by default the sibling folder `machines`. Any number
    of processes may use it at the same time; it need not be closed. `settings` say how guests that are kept warm run.
    """
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

    async def keep_warm(image: Image, files: Path, cpus: int, memory_mib: int, progress: Progress) -> None:
        from hostler.drivers.machines.qemu.template import warmer

        options = {} if settings is None else {"accelerator": settings.accelerator, "uids": settings.qemu_uids}
        await warmer(folder, **options)(image, files, cpus, memory_mib, progress)

    machines = machines or folder.parent / "machines"
    return ImageFolder(folder, machines=machines, default=default, clock=clock, warmer=keep_warm)
