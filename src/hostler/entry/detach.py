"""`up` in the background: started, waited for, and ended again."""

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
"""What the last line of `up` begins with, once it has said everything."""
READY_WITHIN = 60.0
"""Seconds without a word after which it will not become ready any more."""
SAID_WITHIN = 360.0
"""The same once it is ready: a first machine may take a while, and it all works without."""
END_WITHIN = 20.0
LOOK_EVERY = 0.05


def detached(
    arguments: Sequence[str], output: Path, show: Callable[[str], None], environ: Mapping[str, str] | None = None
) -> int:
    """Run `hostler up` with these arguments in a session of its own; 0 once it has said all, else its exit code.

    `environ`: variables beside those that are there.

    What it says is shown as it comes. Unavailable: it did not become ready in time; it is ended then.
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
            os.truncate(output, 0)  # the token is in it, which is shown once
            return 0
        if time.monotonic() > until:
            process.terminate()
            raise Unavailable(f"hostler up: not ready after {READY_WITHIN:g} s; look into {output}")
        time.sleep(LOOK_EVERY)


def _program() -> list[str]:
    """As this one was called, so that it names itself alike."""
    mine = Path(sys.argv[0])
    return [sys.executable, str(mine)] if mine.name == "hostler" else [sys.executable, "-m", "hostler"]


def ended(folder: DataFolder) -> bool:
    """Ask the `up` of a folder to end, and wait for it; False: none runs. Unavailable: it did not end in time."""
    holder = folder.holder()
    if not holder:
        return False
    os.kill(holder, signal.SIGTERM)
    until = time.monotonic() + END_WITHIN
    while folder.holder() == holder:
        if time.monotonic() > until:
            raise Unavailable(f"hostler up (process {holder}): it has not ended after {END_WITHIN:g} s; look at it")
        time.sleep(LOOK_EVERY)
    return True
