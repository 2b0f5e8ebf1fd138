"""Checks of power switching and watchdogs.

No power command is run and no watchdog is opened, as that would trigger them. Management boards are only asked for the
state of their systems.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections import Counter
from typing import TYPE_CHECKING

from hostler.errors import HostlerError, Invalid
from hostler.kit.plural import counted
from hostler.ports.finding import Finding, Level
from hostler.settings.value import COMMAND, read_power_command
from hostler.wiring import open_power_reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.ports.power import PowerReader
    from hostler.settings import Settings

AT_ONCE = 16
"""Management boards that are asked at the same time."""
MOST = 20
"""Nodes that are listed by name."""


def power(settings: Settings) -> list[Finding]:
    """Check the commands of `power_command` and `power`; empty if none is set."""
    found = [_command(settings.power_command[0], "power_command", settings)] if settings.power_command else []
    for node, url in settings.power.items():
        if url.startswith(COMMAND):
            try:
                program = read_power_command(url.removeprefix(COMMAND))[0]
            except ValueError:
                continue  # `boards` reports it
            found.append(_command(program, f"power, node {node}", settings))
    return found


def _command(program: str, setting: str, settings: Settings) -> Finding:
    if "/" in program and not program.startswith("/"):
        return Finding("power", Level.FAIL, f"{program} is not an absolute path", f"use an absolute path in {setting}")
    found = shutil.which(program)
    if found is None:
        what = "cannot be run" if os.path.exists(program) else "not found"
        advice = "make it executable: chmod +x" if os.path.exists(program) else f"install it, or correct {setting}"
        return Finding("power", Level.FAIL, f"{program} {what}", f"{advice}; unreachable nodes are not switched off")
    if os.stat(found).st_mode & stat.S_IWOTH:
        return Finding("power", Level.FAIL, f"{found}: writable by all users", f"chmod o-w {found}")
    grace, limit = settings.power_grace, settings.power_timeout
    return Finding("power", Level.OK, f"{found}, {grace:g} s after a node became unreachable, for at most {limit:g} s")


async def boards(settings: Settings, nodes: Mapping[str, bool]) -> list[Finding]:
    """Read the power state of each node in `power` and in `nodes`, which maps each node to whether it is alive."""
    if not settings.power:
        return []
    try:
        reader = open_power_reader(settings.power_command, settings.power)
    except Invalid as error:
        return [_failed(str(error))]
    named = {node for node in settings.power if not any(each in node for each in "*?[")}
    turn = asyncio.Semaphore(AT_ONCE)
    states: Counter[str] = Counter()
    wrong: list[Finding] = []

    async def ask(node: str) -> None:
        async with turn:
            try:
                state = await _state(reader, node, alive=nodes.get(node, False))
            except HostlerError as error:
                wrong.append(_failed(f"node {node}: {error}"))
            else:
                if state is not None:
                    states[state] += 1

    await asyncio.gather(*(ask(node) for node in sorted(named | set(nodes))))
    found = []
    if states:
        said = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        found.append(Finding("power", Level.OK, f"{counted(states.total(), 'management board')} answer: {said}"))
    unreached = sorted(node for node in nodes if not reader.reaches(node))
    if unreached:
        shown = ", ".join(unreached[:MOST]) + (f" and {len(unreached) - MOST:,} more" if len(unreached) > MOST else "")
        advice = "add an entry to power; machines of such a node wait until it returns or is confirmed off"
        found.append(Finding("power", Level.WARN, f"no switch for {counted(len(unreached), 'node')}: {shown}", advice))
    wrong.sort(key=lambda finding: finding.what)
    if len(wrong) > MOST:
        more = f"{counted(len(wrong) - MOST, 'node')} more cannot be switched off"
        wrong[MOST:] = [Finding("power", Level.FAIL, more, "correct those above first")]
    return [*found, *wrong]


async def _state(reader: PowerReader, node: str, *, alive: bool) -> str | None:
    state = await reader.read_state(node)
    if alive and state == "off":
        what = "its management board reports off, but its agent is alive"
        raise Invalid(f"{what}; the URL names another system: correct it before this node fails")
    return state


def _failed(error: str) -> Finding:
    what, _, advice = error.partition("; ")
    return Finding("power", Level.FAIL, what, advice or "correct the setting power")


def watchdog(settings: Settings) -> list[Finding]:
    """Check the watchdog device; empty if none is set. The device is not opened, as that would start it."""
    path = settings.watchdog
    if path is None:
        return []
    try:
        mode = path.stat().st_mode
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        advice = "load the driver of this host's watchdog (such as softdog), or remove `watchdog` from the settings"
        return [Finding("watchdog", Level.FAIL, f"{path}: {why}", f"{advice}; agents do not start")]
    if not stat.S_ISCHR(mode):
        return [Finding("watchdog", Level.FAIL, f"{path} is not a device", "name the device, such as /dev/watchdog")]
    if not os.access(path, os.W_OK):
        advice = "let the agent's user write to it with a udev rule; agents do not start"
        return [Finding("watchdog", Level.FAIL, f"{path}: no write permission", advice)]
    return [Finding("watchdog", Level.OK, f"{path}, fed while no fenced machine runs past its lease")]
