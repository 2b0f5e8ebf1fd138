"""The limit of open files of a process: raised at start, and reported if it is low."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.kit.connections import ConnectionLimits, limits_of, open_file_limit
from hostler.ports.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.entry.data_dir import DataFolder
    from hostler.settings import Settings

MOST = 1 << 20
"""The kernel's default maximum for a process."""
ENOUGH = 16_384
"""Below this, the file limit rather than the settings limits the number of connections."""
ADVICE = "set LimitNOFILE=65536 in the unit, or ulimit -Hn 65536 before the start"


def raise_open_files(tell: Callable[[str], object]) -> int:
    """Raise the soft limit of open files to the hard limit, and report both. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    limit = open_file_limit()
    low = f"; this is low: {ADVICE}" if limit < ENOUGH else ""
    tell(f"open files: at most {limit} (initially {soft}){low}")
    return limit


def api_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of connections to the API: at most half of all files."""
    return _limits(settings, 2)


def relay_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of connections to an agent's relay: at most a quarter of all files."""
    return _limits(settings, 4)


def _limits(settings: Settings, part: int) -> ConnectionLimits:
    return limits_of(settings.max_connections, settings.max_connections_per_address).within(open_file_limit() // part)


def examine_open_files(folder: DataFolder) -> Finding:
    """Return the `hostler doctor` finding about the limit of the running process, or of a process started here."""
    holder = folder.holder()
    limit = None if holder is None else _limit_of(holder)
    whose = f"process {holder}"
    if limit is None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit, whose = MOST if hard == resource.RLIM_INFINITY else hard, "a process started here"
    what = f"{whose} may open {limit:,}"
    return Finding("open files", Level.OK, what) if limit >= ENOUGH else Finding("open files", Level.WARN, what, ADVICE)


def _limit_of(process: int) -> int | None:
    """Return the soft limit of a process; None: it has ended, or /proc is not readable."""
    try:
        lines = Path(f"/proc/{process}/limits").read_text(encoding="ascii").splitlines()
        soft = next(line.split()[3] for line in lines if line.startswith("Max open files"))
    except (OSError, StopIteration, IndexError):
        return None
    return MOST if soft == "unlimited" else int(soft)
