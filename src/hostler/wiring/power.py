"""The power switches of nodes by their settings."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from hostler.errors import Invalid
from hostler.ports.power import OneSystem
from hostler.ports.url_driver import PowerDriver
from hostler.settings.driver import POWER
from hostler.settings.value import COMMAND, NODE, read_power_command
from hostler.wiring.url import InstalledOpeners, Opener, opened_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from hostler.drivers.power import PowerByNode
    from hostler.ports.power import HostWatchdog, Power, PowerReader

WHAT = "power URL"


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
    from hostler.drivers.power import PowerByNode

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
        if isinstance(sample, OneSystem) and not many:
            # Otherwise one node would be switched off in place of the other, and be read as off while the other runs
            # on.
            same = names.setdefault(sample.system, pattern)
            if same != pattern:
                raise Invalid(f"power: nodes {same!r} and {pattern!r} have the same system; correct one of the URLs")
    return PowerByNode(openers, otherwise=otherwise, tell=tell)


def _opened(url: str, node: str, *, timeout: float, tell: Callable[[str], None]) -> Power | None:
    """Return the switch of a node; None: its name cannot be used in the URL's host."""
    from hostler.drivers.power import CommandPower

    if url.startswith(COMMAND):
        try:
            words = read_power_command(url.removeprefix(COMMAND))
        except ValueError as error:
            raise Invalid(f"{WHAT} {COMMAND}: {error}") from None
        return CommandPower(words, setting="power", timeout=timeout, tell=tell)

    def opener(driver: PowerDriver) -> Opener[Power | None]:
        return lambda parts, options: driver.open(parts, options, timeout, tell)

    openers = InstalledOpeners(POWER, PowerDriver, opener)
    power = opened_by(url.replace(NODE, quote(node, safe="")), openers, WHAT)
    if power is None:
        tell(f"power of node {node}: this name cannot be part of a host name; add an entry for it to the setting power")
    return power
