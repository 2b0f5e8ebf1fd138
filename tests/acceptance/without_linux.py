"""A Python without what only Linux has: `/proc`, pidfds, CLOCK_BOOTTIME and others. As on macOS.

A `.pth` file of a virtual environment imports this module, so every process of that environment lacks them.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LACKS = {
    os: (
        *("O_PATH", "O_TMPFILE", "P_PIDFD", "copy_file_range", "eventfd", "fdatasync", "getrandom", "memfd_create"),
        *("pidfd_open", "pipe2", "posix_fallocate", "sched_getaffinity", "setresgid", "setresuid", "splice", "waitid"),
    ),
    resource: ("prlimit",),
    select: ("epoll",),
    signal: ("pidfd_send_signal",),
    socket: ("AF_VSOCK", "SO_PEERCRED", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
    time: ("CLOCK_BOOTTIME",),
}
FORBIDDEN = ("/proc", "/sys", "/dev/shm")
PROGRAMS = ("ps", "sh")
"""Programs of other systems that Hostler may use."""
_SEES = {"open", "os.listdir", "os.scandir", "socket.bind", "socket.connect"}


def refuse(path: Any) -> None:
    """Raise FileNotFoundError for a path that other systems do not have."""
    if isinstance(path, (str, bytes, os.PathLike)):
        text = os.fsdecode(path)
        if any(text == folder or text.startswith(f"{folder}/") for folder in FORBIDDEN):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)


def hide() -> None:
    """Take away from this process what only Linux has."""
    for module, names in LACKS.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)

    if hasattr(os, "process_cpu_count"):
        os.process_cpu_count = os.cpu_count  # what it is where there is no sched_getaffinity

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SEES:
            refuse(arguments[1] if event.startswith("socket") else arguments[0])

    sys.addaudithook(audit)
    for name in ("stat", "lstat", "access", "readlink"):  # these are not audited
        original = getattr(os, name)

        def checked(path: Any, *more: Any, _original: Any = original, **options: Any) -> Any:
            if _original.__name__ == "access" and isinstance(path, str) and path.startswith(FORBIDDEN):
                return False
            refuse(path)
            return _original(path, *more, **options)

        setattr(os, name, checked)


def make_environment(folder: Path) -> tuple[Path, Path]:
    """Create a virtual environment without Linux. Return its Python, and the folder that is the whole PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=300)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    here = [str(Path(__file__).parent), *(path for path in sys.path if path and Path(path).is_dir())]
    lines = [*here, "import without_linux; without_linux.hide()"]
    (packages / "without_linux.pth").write_text("".join(f"{line}\n" for line in lines))
    programs = folder / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        found = next(Path(place) / name for place in ("/usr/bin", "/bin") if (Path(place) / name).exists())
        (programs / name).symlink_to(found)
    return folder / "bin" / "python", programs
