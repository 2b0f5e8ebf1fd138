"""What `hostler doctor` looks at where a command switches nodes off. It is not run: that would switch something off."""

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
