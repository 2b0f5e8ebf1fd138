"""What the rest of Hostler knows of this driver, and its options."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import HostlerError, Invalid
from hostler.kit.plural import counted
from hostler.model.inventory import Capacity
from hostler.ports.machine_driver import Finding, FirstMachine, Level, MachineDriver
from hostler.ports.url import extra
from hostler.settings import value
from hostler.settings.option import Option

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostler.model.lab import LabTemplate
    from hostler.ports.machine_driver import NodeSetup
    from hostler.ports.machines import Machines
    from hostler.settings import Settings

ENDPOINT = "https://api.hetzner.cloud/v1"
IMAGE = "debian-13"
CAPACITY = Capacity(cpus=4096, memory_mib=16 * 2**20, disk_gib=2**20)
"""More than any project has: the API does not report the real capacity in advance."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and time limits, in seconds."""

    answers_within: float = 15.0
    """Time limit of one call."""
    poll_first: float = 0.5
    poll_most: float = 5.0
    """Pause between two polls of running actions: the first one, and the maximum."""
    patience: float = 300.0
    """Time limit of one action."""
    locked_within: float = 60.0
    """How long a call is retried while the server is busy."""
    ends_within: float = 10.0
    """How long a guest may take to shut down before its server is deleted."""
    watch_every: float = 10.0
    """Pause between two listings of all servers."""
    silence: float = 1.0
    """First pause after too many calls, if the API gives none; it grows each time."""
    types_for: float = 3600.0
    """How long the list of server types is cached."""


class HetznerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the driver. `repr` omits the token, so no message and no log shows it."""

    token: str
    endpoint: str = ENDPOINT
    image: str = IMAGE
    """Image of a machine whose spec names none."""
    server_types: tuple[str, ...] = ()
    """Types to try in this order, if large enough; empty: any shared x86 type that is large enough, smallest first."""
    locations: tuple[str, ...] = ()
    """Locations to try in this order; empty: Hetzner Cloud chooses."""
    firewall: str = ""
    ssh_keys: tuple[str, ...] = ()
    """Names of SSH keys in the project; root accepts them."""
    cloud_init: str = ""
    """User-data of a machine whose spec has none."""
    user: str = "student"
    """Login user of a machine whose spec names none."""
    ipv4: bool = False
    """Whether servers also get a public IPv4 address, which costs extra."""
    probe: bool = True
    """Whether a machine is available only once its SSH server answered with its key; otherwise once it runs."""
    ssh_port: int = 22
    boot_seconds: float = 120.0
    """Time after which a machine that does not answer reports that."""
    capacity: Capacity = CAPACITY
    pace: Pace = Pace()

    def __repr__(self) -> str:
        return f"HetznerOptions(endpoint={self.endpoint!r})"


MAX_USER_DATA = 32 * 1024
"""The limit of Hetzner Cloud in bytes: the file in base64, together with the login keys and the host key."""
_OURS = 2560
"""Bytes of user-data other than the file and the lab's SSH keys."""
BOOTS = 32
"""They use no resources of this host."""
WITHIN = 10.0
"""Seconds for the checks of `hostler doctor`."""


def user_data_bytes(template: LabTemplate) -> int:
    """Return the largest size of the user-data of a lab's server, in bytes."""
    text, keys = len(template.user_data.encode()), sum(len(json.dumps(key)) + 16 for key in template.ssh_keys)
    return _OURS + sum(-(-each // 57) * 77 for each in (text, keys))  # lines of base64


def _lab_refusal(template: LabTemplate) -> str:
    size = user_data_bytes(template)
    if size <= MAX_USER_DATA:
        return ""
    return (
        f"cloud_init: with the SSH keys it is {size} bytes, and Hetzner Cloud accepts {MAX_USER_DATA}; make the file"
        f" smaller by {(size - MAX_USER_DATA) * 3 // 4 + 64} bytes, or let it fetch what it needs"
    )


def _open(node: NodeSetup) -> Machines:
    options = _options(node.required_settings())
    from hostler.drivers.machines.hetzner.driver import HetznerMachines

    return HetznerMachines(node.folder, options=options, clock=node.clock)


def _options(settings: Settings) -> HetznerOptions:
    with extra("hetzner"):
        import hcloud  # noqa: F401 - the client is an extra

    given = settings.driver_options
    if given["hcloud_token"] is None:
        raise Invalid(
            "hcloud_token: machines at Hetzner Cloud need one; create an API token with read and write access in the"
            " project's console, and set HCLOUD_TOKEN"
        )
    return HetznerOptions(
        token=given["hcloud_token"],
        endpoint=given["hcloud_endpoint"] or ENDPOINT,
        image=given["hcloud_image"],
        server_types=given["hcloud_server_type"],
        locations=given["hcloud_location"],
        firewall=given["hcloud_firewall"] or "",
        ssh_keys=given["hcloud_ssh_key"],
        cloud_init=_cloud_init(given["hcloud_cloud_init_file"]),
        user=settings.lab_user,
        ipv4=given["hcloud_ipv4"],
        probe=given["hcloud_probe"],
    )


def _cloud_init(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Invalid(f"hcloud_cloud_init_file {file}: cannot be read: {reason}") from None


async def _examine(settings: Settings, used: bool) -> list[Finding]:
    if not used:
        return []
    try:
        async with asyncio.timeout(WITHIN):
            return [Finding("hetzner", Level.OK, f"the token is accepted: {await _answer(settings)}")]
    except TimeoutError:
        return [Finding("hetzner", Level.FAIL, f"Hetzner Cloud does not answer within {WITHIN:g} s", "try again")]
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return [Finding("hetzner", Level.FAIL, what, advice)]


async def _answer(settings: Settings) -> str:
    """Return how many servers and server types Hetzner Cloud reports, in words. HostlerError: why it cannot."""
    options = _options(settings)
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


def _read_token(found: object) -> str:
    text = value.read_text(found).strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be a token of Hetzner Cloud: letters and digits, without spaces")
    return text


def _option(
    name: str,
    read: Callable[[object], Any],
    about: str,
    default: Any = None,
    *,
    short: str = "",
    secret: bool = False,
    path: bool = False,
) -> Option:
    """Return a setting that also has the names of Hetzner's own tools and of the lab contract."""
    known = short or f"HCLOUD_DEFAULT_{name.upper()}"
    also = (f"HCLOUD_{name.upper()}", f"HOSTLER_HCLOUD_{name.upper()}")
    others = tuple(variable for variable in also if variable != known)
    return Option(
        f"hcloud_{name}", f"hcloud_{name}", known, read, about, default, also=others, secret=secret, path=path
    )


DRIVER = MachineDriver(
    about="servers rented from Hetzner Cloud",
    options=(
        _option("token", _read_token, "a token of Hetzner Cloud", short="HCLOUD_TOKEN", secret=True),
        _option(
            *("endpoint", value.read_endpoint, "the URL of the Hetzner Cloud API, if not the default"),
            short="HCLOUD_ENDPOINT",
        ),
        _option("image", value.read_text, "the default image of servers", "debian-13"),
        _option("server_type", value.read_list, "server types, tried in this order; default: any large enough one", ()),
        _option("location", value.read_list, "locations, tried in this order; default: chosen by Hetzner", ()),
        _option("firewall", value.read_text, "the firewall of every server"),
        _option("ssh_key", value.read_list, "SSH keys of the project, for root", ()),
        _option("cloud_init_file", value.read_text, "default user-data of servers", path=True),
        _option(
            *("ipv4", value.read_truth, "servers also have a public IPv4 address", False),
            short="HOSTLER_HCLOUD_IPV4",
        ),
        _option(
            *("probe", value.read_truth, "a server is available once SSH answers", True),
            short="HOSTLER_HCLOUD_PROBE",
        ),
    ),
    lab_refusal=_lab_refusal,
    open=_open,
    examine=_examine,
    on_this_host=False,
    boots=BOOTS,
    first=FirstMachine(memory_mib=128),
)
