"""The power switches of nodes by their settings."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from hostler.errors import Invalid
from hostler.kit.host import is_loopback
from hostler.settings.value import COMMAND, NODE, read_power_command
from hostler.wiring.url import address, opened_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from urllib.parse import SplitResult

    from hostler.drivers.power import Bmc, PowerByNode
    from hostler.ports.power import HostWatchdog, Power, PowerReader
    from hostler.wiring.url import Options

WHAT = "power URL"
PORTS = {"redfish": 443, "redfish+http": 80, "ipmi": 623}
CIPHERS = (3, 8, 12, 17)
"""The cipher suites of IPMI that authenticate, check integrity and encrypt."""
PRIVILEGES = ("ADMINISTRATOR", "OPERATOR")
SHA256 = 32
"""Bytes."""
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?|[0-9a-f:.]{2,45}")


def open_power(
    command: Sequence[str], boards: Mapping[str, str] | None = None, *, timeout: float, tell: Callable[[str], None]
) -> Power | None:
    """Return the switches of the settings `power_command` and `power`; None: there are none.

    `tell` receives messages about their actions. Invalid: an entry of `power` is not valid.
    """
    from hostler.drivers.power import CommandPower

    otherwise = CommandPower(command, timeout=timeout, tell=tell) if command else None
    return _by_node(boards, otherwise, timeout=timeout, tell=tell) if boards else otherwise


def open_power_reader(command: Sequence[str], boards: Mapping[str, str]) -> PowerReader:
    """Return a reader of the power state, by the same settings. It changes nothing. Invalid: a setting is not valid."""
    from hostler.drivers.power import CommandPower

    return _by_node(boards, CommandPower(command) if command else None, timeout=60.0, tell=lambda _: None)


def open_watchdog(path: Path, *, timeout: float) -> HostWatchdog:
    """Open this host's watchdog, which starts it. Unavailable: it cannot be used."""
    from hostler.drivers.watchdog import WatchdogDevice

    return WatchdogDevice(path, timeout=timeout)


def _by_node(
    boards: Mapping[str, str], otherwise: Power | None, *, timeout: float, tell: Callable[[str], None]
) -> PowerByNode:
    from hostler.drivers.power import BmcPower, PowerByNode

    openers: dict[str, Callable[[str], Power | None]] = {}
    names: dict[str, str] = {}
    for pattern, url in boards.items():
        opener = openers[pattern] = partial(_opened, url, timeout=timeout, tell=tell)
        many = any(each in pattern for each in "*?[")
        try:
            sample = opener("node" if many else pattern)
            if sample is None:
                raise Invalid(f"{WHAT}: this name cannot replace {NODE} in a host name; write the address")
            if many and NODE not in url:
                raise Invalid(f"{WHAT}: a pattern names many nodes, so its URL must contain {NODE}")
        except Invalid as error:
            raise Invalid(f"power, node {pattern!r}: {error}") from None
        if isinstance(sample, BmcPower) and not many:
            # Otherwise one node would be switched off in place of the other, and be read as off while the other runs
            # on.
            same = names.setdefault(sample.board.name.rstrip("/"), pattern)
            if same != pattern:
                raise Invalid(f"power: nodes {same!r} and {pattern!r} have the same system; correct one of the URLs")
    return PowerByNode(openers, otherwise=otherwise, tell=tell)


def _opened(url: str, node: str, *, timeout: float, tell: Callable[[str], None]) -> Power | None:
    """Return the switch of a node; None: its name cannot be used in the URL's host."""
    from hostler.drivers.power import BmcPower, CommandPower

    if url.startswith(COMMAND):
        try:
            words = read_power_command(url.removeprefix(COMMAND))
        except ValueError as error:
            raise Invalid(f"{WHAT} {COMMAND}: {error}") from None
        return CommandPower(words, setting="power", timeout=timeout, tell=tell)
    board = opened_by(
        url.replace(NODE, quote(node, safe="")), {"redfish": _redfish, "redfish+http": _redfish, "ipmi": _ipmi}, WHAT
    )
    if board is None:
        tell(f"power of node {node}: this name cannot be part of a host name; add an entry for it to the setting power")
        return None
    return BmcPower(board, timeout=timeout, tell=tell)


def _redfish(url: SplitResult, options: Options) -> Bmc | None:
    """`redfish://user@host[:port]/redfish/v1/Systems/ID?password_file=…`; `redfish+http` is not encrypted."""
    from hostler.drivers.power import RedfishAddress, RedfishBmc

    user, file = _credentials(url, options)
    host, port = address(url, PORTS[url.scheme], WHAT)
    tls, insecure = url.scheme == "redfish", options.flag("insecure") if url.scheme != "redfish" else False
    trust = (options.text("ca"), options.text("fingerprint"), options.flag("verify", default=True)) if tls else ()
    ca, fingerprint, verify = trust or (None, None, True)
    if (ca is not None) + (fingerprint is not None) + (not verify) > 1:
        raise Invalid(f"{WHAT} {url.scheme}://…: give one of ca, fingerprint and verify=false")
    if ca is not None and not ca.startswith("/"):
        raise Invalid(f"{WHAT} {url.scheme}://…: the option 'ca' must be an absolute path")
    uuid, serial = options.text("uuid"), options.text("serial")
    if not url.path.strip("/"):
        raise Invalid(f"{WHAT} {url.scheme}://…: the path after the host must name the system: /redfish/v1/Systems/ID")
    if not _HOST.fullmatch(host):
        return None
    if not tls and not insecure and not is_loopback(host):
        what = "the password would be sent in clear text"
        raise Invalid(f"{WHAT} {url.scheme}://…: {what}; use redfish://, or set insecure=true")
    return RedfishBmc(
        RedfishAddress(
            host=host,
            port=port,
            path=url.path,
            user=user,
            password_file=file,
            tls=tls,
            ca=ca,
            fingerprint=None if fingerprint is None else _fingerprint(fingerprint),
            verify=verify,
            uuid=uuid,
            serial=serial,
        )
    )


def _ipmi(url: SplitResult, options: Options) -> Bmc | None:
    """`ipmi://user@host[:port]?password_file=…`."""
    from hostler.drivers.power import IpmiAddress, IpmiBmc

    user, file = _credentials(url, options)
    host, port = address(url, PORTS[url.scheme], WHAT)
    cipher = options.text("cipher")
    if cipher is not None and cipher not in map(str, CIPHERS):
        known = ", ".join(map(str, CIPHERS))
        raise Invalid(f"{WHAT} ipmi://…: the option 'cipher' must be one of {known}: others do not protect the session")
    privilege = (options.text("privilege") or PRIVILEGES[0]).upper()
    if privilege not in PRIVILEGES:
        raise Invalid(f"{WHAT} ipmi://…: the option 'privilege' must be administrator or operator")
    uuid = options.text("uuid")
    if url.path.strip("/"):
        raise Invalid(f"{WHAT} ipmi://…: no path is allowed after the host")
    if not _HOST.fullmatch(host):
        return None
    return IpmiBmc(
        IpmiAddress(
            host=host,
            port=port,
            user=user,
            password_file=file,
            cipher=None if cipher is None else int(cipher),
            privilege=privilege,
            uuid=uuid,
        )
    )


def _credentials(url: SplitResult, options: Options) -> tuple[str, str]:
    """Return user and password file.

    A password in the URL is refused: it would leak into the file and the environment.
    """
    subject = f"{WHAT} {url.scheme}://…"
    if url.password is not None or options.text("password") is not None:
        raise Invalid(f"{subject}: must not contain a password; write it to a file, and give password_file")
    user, file = unquote(url.username or ""), options.text("password_file")
    if not user or not user.isprintable() or ":" in user:
        raise Invalid(f"{subject}: needs a user before the host, without a colon: {url.scheme}://USER@HOST")
    if file is None or not file.startswith("/") or "\0" in file:
        raise Invalid(f"{subject}: the option 'password_file' must be given as an absolute path")
    return user, file


def _fingerprint(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        digest = b""
    if len(digest) != SHA256:
        raise Invalid(f"{WHAT} redfish://…: the option 'fingerprint' must be a SHA-256 in hexadecimal, 64 digits")
    return digest
