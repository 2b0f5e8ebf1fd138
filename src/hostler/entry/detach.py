"""`hostler up` in the background: start it, wait until it is ready, and stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.entry.data_dir import DataFolder

LAST = "end: "
"""Prefix of the last line of `up`; everything was printed by then."""
READY_WITHIN = 60.0
"""Seconds without output after which `up` is considered failed."""
SAID_WITHIN = 360.0
"""Same limit once it is ready; longer, because creating the first machine is slow and not required."""
END_WITHIN = 20.0
LOOK_EVERY = 0.05


def detached(
    arguments: Sequence[str], output: Path, show: Callable[[str], None], environ: Mapping[str, str] | None = None
) -> int:
    """Run `hostler up` with these arguments in a new session. Return 0 once its output is complete, else its exit code.

    `environ` holds additional environment variables. The output is shown as it arrives. Unavailable: `up` was not ready
    in time; it is terminated.
    """
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            [*_program(), "up", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
            env={**os.environ, **(environ or {})},
        )
    finally:
        os.close(descriptor)
    shown, until = 0, time.monotonic() + READY_WITHIN
    while True:
        code = process.poll()
        said = output.read_text(encoding="utf-8", errors="replace")
        if len(said) > shown:
            show(said[shown:])
            until = time.monotonic() + (SAID_WITHIN if "\nready " in f"\n{said}" else READY_WITHIN)
        shown = len(said)
        if code is not None:
            return code
        if any(LAST in line for line in said.splitlines()):
            os.truncate(output, 0)  # the file holds the token, which is shown only once
            return 0
        if time.monotonic() > until:
            process.terminate()
            raise Unavailable(f"hostler up: not ready after {READY_WITHIN:g} s; see {output}")
        time.sleep(LOOK_EVERY)


def _program() -> list[str]:
    """Return the command of this program as the user called it, so that usage messages show the same name."""
    mine = Path(sys.argv[0])
    return [sys.executable, str(mine)] if mine.name == "hostler" else [sys.executable, "-m", "hostler"]


def ended(folder: DataFolder) -> bool:
    """Stop the `up` of a folder and wait for its end. Return False if none runs.

    Unavailable: it did not end in time.
    """
    holder = folder.holder()
    if not holder:
        return False
    os.kill(holder, signal.SIGTERM)
    until = time.monotonic() + END_WITHIN
    while folder.holder() == holder:
        if time.monotonic() > until:
            raise Unavailable(
                f"hostler up (process {holder}): still running {END_WITHIN:g} s after SIGTERM; see its log"
            )
        time.sleep(LOOK_EVERY)
    return True
