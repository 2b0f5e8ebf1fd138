"""What `hostler doctor` looks at where nodes are switched off or reset. Nothing is run or opened: that would do it."""

from __future__ import annotations

import os
import shutil
import stat
from typing import TYPE_CHECKING

from hostler.entry.finding import Finding, Level

if TYPE_CHECKING:
    from hostler.settings import Settings


def power(settings: Settings) -> list[Finding]:
    """Nothing where no command is set."""
    if not settings.power_command:
        return []
    program = settings.power_command[0]
    if "/" in program and not program.startswith("/"):
        return [Finding("power", Level.FAIL, f"{program} is no whole path", "write power_command with one, from /")]
    found = shutil.which(program)
    if found is None:
        what = "cannot be run" if os.path.exists(program) else "is not there"
        advice = "make it executable: chmod +x" if os.path.exists(program) else "install it, or correct power_command"
        return [Finding("power", Level.FAIL, f"{program} {what}", f"{advice}; silent nodes are not switched off")]
    if os.stat(found).st_mode & stat.S_IWOTH:
        return [Finding("power", Level.FAIL, f"{found}: everybody can write to it", f"chmod o-w {found}")]
    grace, limit = settings.power_grace, settings.power_timeout
    return [Finding("power", Level.OK, f"{found}, {grace:g} s after a node fell silent, for at most {limit:g} s")]


def watchdog(settings: Settings) -> list[Finding]:
    """Nothing where none is set. The device is not opened: that would start it."""
    path = settings.watchdog
    if path is None:
        return []
    try:
        mode = path.stat().st_mode
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        advice = "load the driver of this host's watchdog (such as softdog), or take `watchdog` out of the settings"
        return [Finding("watchdog", Level.FAIL, f"{path}: {why}", f"{advice}; agents do not start")]
    if not stat.S_ISCHR(mode):
        return [Finding("watchdog", Level.FAIL, f"{path} is no device", "name the device, such as /dev/watchdog")]
    if not os.access(path, os.W_OK):
        advice = "give the agent's user the right to write to it, by a udev rule; agents do not start"
        return [Finding("watchdog", Level.FAIL, f"{path}: no right to write to it", advice)]
    return [Finding("watchdog", Level.OK, f"{path}, fed while no fenced machine runs past its hold")]
