"""Reads the output of an instance from the two files of its log while its process keeps writing them.

When the log is long, the process moves its content to the older file and starts over (`slices/worker.py`). A
position in the log therefore includes the older file's modification time, which changes with it: `TIME.OFFSET`.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import ExitStack
from typing import TYPE_CHECKING

from hostler.drivers.slices.process.instance_dir import InstanceDir, name_of
from hostler.errors import NotFound, Unavailable
from hostler.ports.slices import MOST_PRINTED, Printed
from hostler.ports.worker_protocol import MAX_LOG

if TYPE_CHECKING:
    from pathlib import Path

TRIES = 5
"""Maximum number of attempts when the log was rotated during a read."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PLACE = re.compile(r"([0-9]{1,20})\.([0-9]{1,10})", re.ASCII)
_NAME = re.compile(r".*_([1-9][0-9]{0,17})\.[0-9a-f]{12}", re.ASCII | re.DOTALL)


def read_log(root: Path, artifact: str, instance: int, after: str, most: int = MOST_PRINTED) -> Printed:
    """Implement `Slices.printed`; `root` is the folder of the node's slices."""
    number = instance or _last(root, artifact)
    if number is not None:
        place = InstanceDir(root, f"{artifact}#{number}")
        try:
            for _ in range(TRIES):
                found = _read(place, number, after, most)
                if found is not None:
                    return found
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Unavailable(f"{place.log}: cannot be read: {error.strerror}; check the disk") from None
        else:
            raise Unavailable(f"{place.log}: written too fast to be read; try again")
    which = f"{artifact}#{instance}" if instance else artifact
    base = artifact.rpartition(":")[0]
    raise NotFound(f"{which}: no output is kept there; see where it runs: hostler slice list {base}")


def _last(root: Path, artifact: str) -> int | None:
    """Return the number of the instance whose log was written last."""
    found: list[tuple[float, int]] = []
    try:
        for path in (root / "logs").glob("*.log"):
            match = _NAME.fullmatch(path.stem)
            if match is not None and name_of(f"{artifact}#{match[1]}") == path.stem:
                found.append((path.lstat().st_mtime, int(match[1])))
    except OSError:
        pass  # it was deleted during the scan
    return max(found)[1] if found else None


def _read(place: InstanceDir, number: int, after: str, most: int) -> Printed | None:
    """Return None if the log was rotated during the read. FileNotFoundError: there is none."""
    with ExitStack() as stack:
        log = _open_log(stack, place.log)
        if log is None:
            raise FileNotFoundError(place.log)
        older = _open_log(stack, place.older)
        size, turn, before = os.fstat(log).st_size, _turn(older), 0
        if older is not None and size < MAX_LOG:  # a full log is just being copied there
            before = os.fstat(older).st_size
        start = _start(after, turn, before, size)
        begin = max(start, before + size - most)
        text = b"" if older is None else _bytes(older, begin, before)
        text += _bytes(log, max(0, begin - before), size)
        if _turn(older) != turn or os.fstat(log).st_size < size:
            return None
    rest = min(_incomplete(text), size)
    return Printed(
        instance=number,
        text=text[: len(text) - rest],
        after=f"{turn}.{size - rest}",
        skipped=begin - start,
    )


def _open_log(stack: ExitStack, path: Path) -> int | None:
    """Return a descriptor; None: there is no such file.

    Other file types that a slice may have put there do not count.
    """
    try:
        descriptor = os.open(path, _READ)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        if path.is_symlink():
            return None
        raise
    stack.callback(os.close, descriptor)
    return descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _turn(older: int | None) -> int:
    return 0 if older is None else os.fstat(older).st_mtime_ns


def _start(after: str, turn: int, before: int, size: int) -> int:
    """Return where to begin, counted from the beginning of the older file, of which `before` bytes count."""
    match = _PLACE.fullmatch(after)
    if match is None:
        return 0
    offset = int(match[2])
    if int(match[1]) != turn and size < MAX_LOG:  # the log was rotated: its content is the older file now
        return min(offset, before)
    return before + (offset if offset <= size else 0)


def _bytes(descriptor: int, begin: int, end: int) -> bytes:
    found = b""
    while begin < end and (piece := os.pread(descriptor, end - begin, begin)):
        found += piece
        begin += len(piece)
    return found


def _incomplete(text: bytes) -> int:
    """Return how many bytes at the end are the beginning of a UTF-8 character."""
    for back in range(1, min(3, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < length else 0
        if byte < 0x80:
            return 0
    return 0
