"""Each setting, its names in the three layers, and how a value is read."""

from __future__ import annotations

import re
from ipaddress import IPv6Network
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_STATE_PATH = "/var/run/plasmavmc/state.json"
MAX_NODES = 10_000
MAX_LAB_MINUTES = 366 * 24 * 60
MACHINES = ("simulated", "qemu", "hetzner")
"""The kinds of machines."""
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "text")
METRICS = ("auto", "token", "nearby", "everybody")


class Option(msgspec.Struct, frozen=True):
    """One setting and its names. `read` makes a value of what a layer holds, or raises ValueError."""

    name: str
    in_file: str
    variable: str
    read: Callable[[object], Any]
    about: str
    default: Any = None
    table: str = ""
    """Where it stands in the file; empty: at the top."""
    also: tuple[str, ...] = ()
    """More variables that mean it; the first that is there counts."""
    secret: bool = False
    """Its value is not repeated in an error."""

    @property
    def variables(self) -> tuple[str, ...]:
        """All that mean it."""
        return (self.variable, *self.also)


def split_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `[IPV6]:PORT` or `:PORT` (every address). ValueError: it is none."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535 or (":" in host and not bracketed):
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:7070 or [::1]:7070")
    if not all(character.isalnum() or character in ".:-_%" for character in host):
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:7070 or [::1]:7070")
    return host or "0.0.0.0", int(port)  # noqa: S104 - what ":PORT" means


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    return value


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in known:
        return known[value.strip().lower()]
    raise ValueError("must be true or false")


def _seconds(value: object) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 < number < float("inf"):
        raise ValueError("must be a number of seconds above 0")
    return number


def _number(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        text = value if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value) else None
        number = value if isinstance(value, int) and not isinstance(value, bool) else int(text) if text else least - 1
        if not least <= number <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return number

    return read


def _one_of(*known: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in known:
            raise ValueError(f"must be {', '.join(known[:-1])} or {known[-1]}")
        return str(value)

    return read


def _address(value: object) -> str:
    text = _text(value).strip()
    split_address(text)
    return text


def _part(value: object) -> str:
    """A name that can stand in a key."""
    text = _text(value)
    if "/" in text or not text.isprintable() or len(text) > 63:
        raise ValueError("must be a name of up to 63 printable characters without /")
    return text


def _rack(value: object) -> str:
    rack = _part(value)
    if "-" in rack:
        raise ValueError("must be the name of a rack, which holds no -")
    return rack


def _network(value: object) -> str:
    text = _text(value).strip()
    if text not in ("user", "isolated") and not re.fullmatch(r"bridge(:[A-Za-z0-9_.-]{1,15})?", text):
        raise ValueError("must be user, isolated, bridge or bridge:NAME")
    return text


def _prefix6(value: object) -> str:
    try:
        prefix = IPv6Network(_text(value).strip())
    except ValueError:
        prefix = IPv6Network("::/0")
    if prefix.prefixlen != 64:
        raise ValueError("must be an IPv6 prefix of 64 bits, such as fd00:1:2:3::/64")
    return str(prefix)


def _uids(value: object) -> str:
    text = _text(value).strip()
    bounds = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", text)
    if bounds is None or not 1000 <= int(bounds[1]) <= int(bounds[2]) <= 2**32 - 3:
        raise ValueError("must be FIRST-LAST, such as 200000-299999, above 999")
    return text


def _gib(value: object) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 <= number < 2**30:
        raise ValueError("must be a number of GiB, 0 or more")
    return number


def _labels(value: object) -> dict[str, str]:
    """A table; or `name=value` once or several times, in one text with commas between."""
    if isinstance(value, dict):
        pairs = list(value.items())
    else:
        texts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        pairs = [(name.strip(), found.strip()) for name, _, found in (str(text).partition("=") for text in texts)]
    for name, found in pairs:
        if not name or not isinstance(found, str) or not found:
            raise ValueError("must be labels: name=value, with commas between them")
    return dict(pairs)


def _redis(value: object) -> str:
    text = _text(value).strip()
    if not text.startswith(("redis://", "rediss://")) or not text.isprintable() or " " in text:
        raise ValueError("must be redis://HOST:PORT[/DB], or rediss:// for TLS")
    return text


def _minutes(value: object) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if not 0 < number <= MAX_LAB_MINUTES:
        raise ValueError("must be a number of minutes above 0, at most a year")
    return number


def _login(value: object) -> str:
    text = _text(value).strip()
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", text):
        raise ValueError("must be the name of a user: small letters, digits, - and _, at most 32")
    return text


def _list(value: object) -> tuple[str, ...]:
    """Names, in a list or in one text with commas between."""
    texts = value if isinstance(value, list | tuple) else value.split(",") if isinstance(value, str) else [value]
    names = tuple(text.strip() for text in texts if isinstance(text, str) and text.strip())
    if not names or len(names) != len(texts):
        raise ValueError("must be one name or several, with commas between them")
    return names


def _hcloud_token(value: object) -> str:
    text = _text(value).strip()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be a token of Hetzner Cloud: letters and digits, without spaces")
    return text


def _endpoint(value: object) -> str:
    text = _text(value).strip()
    if not re.fullmatch(r"https?://[^\s/@]+(/[^\s?#]*)?", text):
        raise ValueError("must be http://HOST/PATH or https://HOST/PATH")
    return text


def _hcloud(
    name: str, read: Callable[[object], Any], about: str, default: Any = None, *, short: str = "", secret: bool = False
) -> Option:
    """One that Hetzner's own tools and the contract of labs call by other names."""
    known = short or f"HCLOUD_DEFAULT_{name.upper()}"
    also = (f"HCLOUD_{name.upper()}", f"HOSTLER_HCLOUD_{name.upper()}")
    others = tuple(variable for variable in also if variable != known)
    return Option(f"hcloud_{name}", f"hcloud_{name}", known, read, about, default, also=others, secret=secret)


def is_truth(option: Option) -> bool:
    """Whether it is true or false, and nothing else."""
    return option.read is _truth


OPTIONS: tuple[Option, ...] = (
    Option("data", "data", "HOSTLER_DATA", _text, "the folder of all state, sockets and logs"),
    Option("store", "store", "HOSTLER_STORE", _text, "the store's URL"),
    Option(
        "storage_fallback",
        "fallback",
        "HOSTLER_STORAGE_FALLBACK",
        _truth,
        "start on the state file if the cluster cannot be reached",
        False,
        "storage",
    ),
    Option("listen", "listen", "HOSTLER_LISTEN", _address, "where the API is served", "127.0.0.1:7070"),
    Option(
        "agent_listen",
        "agent_listen",
        "HOSTLER_AGENT_LISTEN",
        _address,
        "where an agent serves other processes of its control plane",
        "127.0.0.1:0",
    ),
    Option("tls_cert", "tls_cert", "HOSTLER_TLS_CERT", _text, "the server's certificate (PEM)"),
    Option("tls_key", "tls_key", "HOSTLER_TLS_KEY", _text, "the key of the certificate (PEM)"),
    Option("insecure", "insecure", "HOSTLER_INSECURE", _truth, "serve a public address without TLS", False),
    Option("machines", "machines", "HOSTLER_MACHINES", _one_of(*MACHINES), "what the machines are", "simulated"),
    Option("nodes", "nodes", "HOSTLER_NODES", _number(1, MAX_NODES), "how many nodes `up` runs", 1),
    Option("node", "node", "HOSTLER_NODE", _part, "the name of the agent's node"),
    Option("rack", "rack", "HOSTLER_RACK", _rack, "the rack that the node stands in"),
    Option("labels", "labels", "HOSTLER_LABELS", _labels, "the labels of the node", {}),
    Option("image", "image", "HOSTLER_IMAGE", _text, "what a machine is made of that names no image", "tiny"),
    Option(
        "network",
        "network",
        "HOSTLER_NETWORK",
        _network,
        "user, isolated, bridge or bridge:NAME, of QEMU's guests",
        "user",
    ),
    Option("network_prefix6", "network_prefix6", "HOSTLER_NETWORK_PREFIX6", _prefix6, "which of the bridge's prefixes"),
    Option(
        "accelerator", "accelerator", "HOSTLER_ACCELERATOR", _one_of("kvm", "tcg"), "of QEMU, without trying it out"
    ),
    Option("qemu_uids", "qemu_uids", "HOSTLER_QEMU_UIDS", _uids, "FIRST-LAST: users that guests run as, under root"),
    Option(
        "disk_reserve_gib",
        "disk_reserve_gib",
        "HOSTLER_DISK_RESERVE_GIB",
        _gib,
        "with less than this free no machine is made (at most 5 % of the disk)",
        2.0,
    ),
    Option(
        "cpu_overcommit",
        "cpu_overcommit",
        "HOSTLER_CPU_OVERCOMMIT",
        _number(1, 100),
        "how many cpus of guests a node promises for each of the host's",
        8,
    ),
    Option("boots", "boots", "HOSTLER_BOOTS", _number(1, 1000), "how many machines of a node start at once"),
    Option("node_ttl", "node_ttl", "HOSTLER_NODE_TTL", _seconds, "after which a silent node counts as silent", 15.0),
    Option(
        "fencing_time",
        "fencing_time",
        "HOSTLER_FENCING_TIME",
        _seconds,
        "by which fenced machines of a silent node have stopped; at least twice node_ttl",
        30.0,
    ),
    Option(
        "leadership_ttl",
        "leadership_ttl",
        "HOSTLER_LEADERSHIP_TTL",
        _seconds,
        "after which a silent leader is replaced",
        20.0,
    ),
    Option("lock_ttl", "lock_ttl", "HOSTLER_LOCK_TTL", _seconds, "how long a lock of a virtual machine lives", 30.0),
    Option("replicas", "replicas", "HOSTLER_REPLICAS", _number(1, 1000), "how many replicas hold a key at once", 1),
    Option("log_level", "log_level", "HOSTLER_LOG_LEVEL", _one_of(*LOG_LEVELS), "how much is logged", "info"),
    Option("log_format", "log_format", "HOSTLER_LOG_FORMAT", _one_of(*LOG_FORMATS), "how it is logged", "json"),
    Option("metrics", "metrics", "HOSTLER_METRICS", _one_of(*METRICS), "who may read /metrics", "auto"),
    Option("redis", "redis", "HOSTLER_REDIS", _redis, "the Redis that labs are asked for through", secret=True),
    Option("labs", "labs", "HOSTLER_LABS", _text, "the file that says which labs there are, labs.toml"),
    Option(
        "lab_life",
        "lab_life",
        "DEFAULT_TTL_MINUTES",
        _minutes,
        "minutes that a lab lives unless its file says otherwise",
        30.0,
        also=("HOSTLER_LAB_LIFE",),
    ),
    Option(
        "lab_user",
        "lab_user",
        "SSH_USERNAME",
        _login,
        "as whom one logs into a lab unless its file says otherwise",
        "student",
        also=("HOSTLER_LAB_USER",),
    ),
    Option(
        "lab_switch", "lab_switch", "HOSTLER_LAB_SWITCH", _truth, "another lab replaces the one that is there", False
    ),
    Option("lab_key", "lab_key", "HOSTLER_LAB_KEY", _text, "the private SSH key of the terminal"),
    _hcloud("token", _hcloud_token, "of a project at Hetzner Cloud", short="HCLOUD_TOKEN", secret=True),
    _hcloud("endpoint", _endpoint, "where the API of Hetzner Cloud is, if elsewhere", short="HCLOUD_ENDPOINT"),
    _hcloud("image", _text, "what a server is made of that names no image", "debian-13"),
    _hcloud("server_type", _list, "server types that are tried in this order; any that is large enough if not set", ()),
    _hcloud("location", _list, "locations that are tried in this order; theirs to choose if not set", ()),
    _hcloud("firewall", _text, "the firewall of every server"),
    _hcloud("ssh_key", _list, "SSH keys of the project that root has", ()),
    _hcloud("cloud_init_file", _text, "user-data of servers that bring none"),
    _hcloud("ipv4", _truth, "servers have a public IPv4 address too", False, short="HOSTLER_HCLOUD_IPV4"),
    _hcloud("probe", _truth, "a server counts as there once SSH answers", True, short="HOSTLER_HCLOUD_PROBE"),
    Option("audit_days", "audit_days", "HOSTLER_AUDIT_DAYS", _number(1, 36500), "how long the audit is kept", 90),
    Option(
        "use_test_namespace",
        "UseTestNamespace",
        "HOSTLER_USE_TEST_NAMESPACE",
        _truth,
        "keep every key under Test/",
        False,
    ),
    Option(
        "use_unique_instance",
        "UseUniqueInstance",
        "HOSTLER_USE_UNIQUE_INSTANCE",
        _truth,
        "a test namespace of its own for each start",
        False,
    ),
    Option(
        "pre_clean_store",
        "PreCleanStore",
        "HOSTLER_PRE_CLEAN_STORE",
        _truth,
        "empty the standard test namespace first",
        False,
    ),
)

# The contract of virtual machines brought these names; together they make a store URL.
STORAGE_OPTIONS: tuple[Option, ...] = (
    Option(
        "backend", "backend", "PLASMAVMC_STORAGE_BACKEND", _one_of("chainfire", "file"), "chainfire (any etcd) or file"
    ),
    Option("endpoint", "chainfire_endpoint", "PLASMAVMC_CHAINFIRE_ENDPOINT", _text, "http://host:port"),
    Option("state_path", "state_path", "PLASMAVMC_STATE_PATH", _text, "the state file"),
    Option("lock_ttl_seconds", "lock_ttl_seconds", "PLASMAVMC_LOCK_TTL_SECONDS", _seconds, "how long a lock lives"),
)
