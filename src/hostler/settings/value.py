"""Parsers for the values of settings, for all layers, and for durations and sizes as users write them.

ValueError: what the value must be.
"""

from __future__ import annotations

import math
import re
import shlex
from ipaddress import IPv6Network, ip_address, ip_network
from socket import inet_aton
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


LONGEST = 10 * 366 * 86400.0
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZES = {
    "": 1,
    "m": 1,
    "mi": 1,
    "mib": 1,
    "g": 1024,
    "gi": 1024,
    "gib": 1024,
    "t": 1024**2,
    "ti": 1024**2,
    "tib": 1024**2,
}


def seconds_of(value: object) -> float:
    """Return the seconds of `90`, `90s`, `30m`, `2h`, `1d` or `1h30m`. ValueError: it is not a duration."""
    text = str(value).strip().lower()
    if isinstance(value, bool) or not re.fullmatch(r"(?:[0-9]+(?:\.[0-9]+)?[smhdw])+|[0-9]+(?:\.[0-9]+)?", text):
        raise ValueError(f"{value!r} is not a duration; write 90s, 30m, 2h or 1d")
    if text[-1].isdigit():
        seconds = float(text)
    else:
        seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([0-9.]+)([smhdw])", text))
    if seconds > LONGEST:
        raise ValueError(f"{value!r}: must be at most ten years")
    return seconds


def mebibytes_of(value: object) -> int:
    """Return the MiB of `512`, `512M` or `2G`. ValueError: it is not a size."""
    found = re.fullmatch(r"(-?[0-9]{1,18})\s*([a-z]*)", str(value).strip().lower())
    if isinstance(value, bool) or found is None or found[2] not in _SIZES:
        raise ValueError(f"{value!r} is not a size; write 512M or 2G")
    return int(found[1]) * _SIZES[found[2]]


NODE = "{node}"
"""The placeholder for the name of a node."""
COMMAND = "command:"
MAX_LAB_MINUTES = 366 * 24 * 60
_MAPPED = IPv6Network("::ffff:0:0/96")
"""IPv4-mapped IPv6 addresses."""


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[IPV6]:PORT` or `:PORT` (every address). ValueError: none of these."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535 or (":" in host and not bracketed):
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:7070 or [::1]:7070")
    if not all(character.isalnum() or character in ".:-_%" for character in host):
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:7070 or [::1]:7070")
    return host or "0.0.0.0", int(port)  # noqa: S104 - the meaning of ":PORT"


def read_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    return value


def read_truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    if isinstance(value, str) and value.strip().lower() in known:
        return known[value.strip().lower()]
    raise ValueError("must be true or false")


def read_seconds(value: object) -> float:
    number = _float(value)
    if not 0 < number < float("inf"):
        raise ValueError("must be a number of seconds above 0")
    return number


def read_timeout(value: object) -> float:
    number = _float(value)
    if not 0 <= number < float("inf"):
        raise ValueError("must be a number of seconds, or 0 for no limit")
    return number


def read_delay(value: object) -> float:
    number = _float(value)
    if not 0 <= number <= 3600:
        raise ValueError("must be a number of seconds from 0 to 3600")
    return number


def read_share(value: object) -> float:
    number = _float(value)
    if not 0 <= number <= 1:
        raise ValueError("must be a number from 0 to 1")
    return number


def read_number(least: int, most: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        text = value if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value) else None
        number = value if isinstance(value, int) and not isinstance(value, bool) else int(text) if text else least - 1
        if not least <= number <= most:
            raise ValueError(f"must be a whole number from {least} to {most}")
        return number

    return read


def read_one_of(*known: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in known:
            raise ValueError(f"must be {', '.join(known[:-1])} or {known[-1]}")
        return str(value)

    return read


def read_address(value: object) -> str:
    text = read_text(value).strip()
    split_address(text)
    return text


def read_part(value: object) -> str:
    """Parse a name that can be a part of a key."""
    text = read_text(value)
    if "/" in text or not text.isprintable() or len(text) > 63:
        raise ValueError("must be a name of up to 63 printable characters without /")
    return text


def read_rack(value: object) -> str:
    rack = read_part(value)
    if "-" in rack:
        raise ValueError("must be the name of a rack, without -")
    return rack


def read_gib(value: object) -> float:
    number = _float(value)
    if not 0 <= number < 2**30:
        raise ValueError("must be a number of GiB, 0 or more")
    return number


def read_labels(value: object) -> dict[str, str]:
    """Parse labels: a table, or `name=value` texts, separated by commas or in a list."""
    if isinstance(value, dict):
        pairs = list(value.items())
    else:
        texts = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        pairs = [(name.strip(), found.strip()) for name, _, found in (str(text).partition("=") for text in texts)]
    for name, found in pairs:
        if not name or not isinstance(found, str) or not found:
            raise ValueError("must be labels: name=value, separated by commas")
    return dict(pairs)


def is_plain_redis(value: object) -> bool:
    """Return whether it is the `HOST:PORT` of a Redis server, without a scheme."""
    return (
        isinstance(value, str)
        and re.fullmatch(r"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):\d{1,5}", value.strip()) is not None
    )


def read_redis(value: object) -> str:
    text = read_text(value).strip()
    if is_plain_redis(text):
        host, _, port = text.rpartition(":")
        return f"redis://{host or 'localhost'}:{port}"
    if not text.startswith(("redis://", "rediss://")) or not text.isprintable() or " " in text:
        raise ValueError("must be redis://HOST:PORT[/DB], rediss:// for TLS, or HOST:PORT")
    return text


def read_minutes(value: object) -> float:
    number = _float(value)
    if not 0 < number <= MAX_LAB_MINUTES:
        raise ValueError("must be a number of minutes above 0, at most a year")
    return number


def read_lab_limit(value: object) -> float:
    number = _float(value)
    if not 0 <= number <= 3600:
        raise ValueError("must be a number of seconds from 0 to 3600")
    return number


def read_login(value: object) -> str:
    text = read_text(value).strip()
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", text):
        raise ValueError("must be a user name: lowercase letters, digits, - and _, at most 32")
    return text


def read_list(value: object) -> tuple[str, ...]:
    """Parse names: a list, or a text with commas."""
    texts = value if isinstance(value, list | tuple) else value.split(",") if isinstance(value, str) else [value]
    names = tuple(text.strip() for text in texts if isinstance(text, str) and text.strip())
    if not names or len(names) != len(texts):
        raise ValueError("must be one or more names, separated by commas")
    return names


def read_networks(value: object) -> tuple[str, ...]:
    """Parse addresses and networks: a list, or a text with commas."""
    try:
        networks = [ip_network(text) for text in read_list(value)]
    except ValueError:
        raise ValueError("must be addresses or networks, such as 127.0.0.1 or 10.1.0.0/16") from None
    if any(not network.prefixlen or network == _MAPPED for network in networks):
        raise ValueError("must not include every address: any client could then forge its address")
    for network in networks:
        if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
            plain = ip_network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - _MAPPED.prefixlen))
            raise ValueError(f"must have IPv4 addresses in IPv4 form: write {plain} instead of {network}")
    return tuple(str(network) for network in networks)


def read_power(value: object) -> dict[str, str]:
    """Parse a table of nodes or patterns and the URLs of their switches; or `NODE=URL` words, with shell quotes.

    Errors do not repeat the URL, which may contain a password.
    """
    from hostler.settings.driver import power_urls

    starts = power_urls()
    known = ", ".join(f"{start}…" for start in starts)
    if isinstance(value, str):
        try:
            pairs = [word.partition("=")[::2] for word in shlex.split(value)]
        except ValueError as error:
            raise ValueError(f"must be NODE=URL, separated by spaces: {str(error).lower()}") from None
        if not pairs or not all(url.startswith(starts) for _, url in pairs):
            raise ValueError(f"must be NODE=URL, separated by spaces, each URL {known}")
        if len({node for node, _ in pairs}) != len(pairs):
            raise ValueError("must have one URL for each node")
        value = dict(pairs)
    if not isinstance(value, dict):
        raise ValueError('must be a table of nodes, such as "r1-b1" = "ipmi://USER@HOST?password_file=/PATH"')
    for node, url in value.items():
        read_part(node)
        if not isinstance(url, str) or not url.startswith(starts) or not url.isprintable():
            raise ValueError(f"{node}: must be {known}")
    return value


def read_power_command(value: object) -> tuple[str, ...]:
    """Parse a program and its arguments: a list, or a text with shell quotes. No shell is used to run it."""
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"must be a program and its arguments: {str(error).lower()}") from None
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError('must be a list of a program and its arguments, such as ["/etc/hostler/off", "{node}"]')
    if any("\0" in word for word in words) or not words[0].strip() or "{node}" in words[0]:
        raise ValueError("must begin with the program")
    if "{node}" not in words or any("{node}" in word for word in words if word != "{node}"):
        raise ValueError('must have "{node}" as a separate argument: it is replaced by the name of the node')
    return tuple(words)


def read_endpoint(value: object) -> str:
    text = read_text(value).strip()
    if not re.fullmatch(r"https?://[^\s/@]+(/[^\s?#]*)?", text):
        raise ValueError("must be http://HOST/PATH or https://HOST/PATH")
    return text


def read_repository(value: object) -> str:
    text = read_text(value).strip()
    return read_endpoint(text) if "://" in text else text


def read_host(value: object) -> str:
    """Parse one address of this machine. A wildcard is refused, because other nodes connect to this address."""
    text = read_text(value).strip()
    try:
        address = ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", text):
            raise ValueError("must be an address or a name of this machine, without a port") from None
        try:
            address = ip_address(inet_aton(text))  # the system also accepts 0 and 127.1 as addresses
        except OSError:
            return text
    if (getattr(address, "ipv4_mapped", None) or address).is_unspecified:
        raise ValueError("must be one address of this machine, by which other nodes reach it")
    return str(address)


def _float(value: object) -> float:
    """Return the value as a number; NaN, which is outside of all limits, if it is not one."""
    try:
        return math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
