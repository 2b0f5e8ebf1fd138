"""The dead man's switch of one fenced machine: a program of its own, of the standard library alone.

    python -I -S guard.py HOLD REPORT CLOSE COMMAND…

It runs COMMAND, which is QEMU, and kills it as soon as the file HOLD does not say that machines may run: the file is
missing, is torn, is of another boot, or its time is over. It says the process's id and start time on the descriptor
REPORT, and ends when QEMU does. CLOSE are descriptors that are QEMU's alone, with commas.

QEMU dies with it, by whatever end: `WITH_GUARD` has the kernel do it. SIGTERM, SIGINT and SIGHUP are not heard, so a
guard goes on for as long as there is somebody to guard. (Suspended by SIGSTOP it does not look: so it is to be killed,
never stopped.) Its command line and environment hold names and numbers, no secret.
"""

import os
import select
import signal
import sys
import time

EVERY = 0.2
"""Seconds between two looks: a hold may be shortened at any time."""
NOT_HELD, FAILED = "not held", "failed"
WITH_GUARD = (
    "setpriv", "--pdeathsig", "KILL", "--",
    # After, not before, the kernel was told: a guard that died earlier is not the parent any more.
    "sh", "-c", '[ "$PPID" = "$GUARD_PID" ] || exit 1; exec "$@"', "sh",
)  # fmt: skip
"""Stands before QEMU's command line, behind every change of user: that would make the kernel forget."""


def hold_text(boot: str, until: float) -> str:
    """What the hold file says."""
    return f"hold {boot} {until:.6f} .\n"


def held_until(path: str, boot: str) -> "float | None":
    """Until when machines may run, on CLOCK_BOOTTIME; None: they may not, for all that is known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 256).decode("ascii")
        finally:
            os.close(descriptor)
        word, held_boot, until, end = text.split(" ")
        instant = float(until)
    except (OSError, ValueError):
        return None
    whole = word == "hold" and end == ".\n" and held_boot == boot
    return instant if whole and instant == instant else None  # noqa: PLR0124 - not a number is no instant


def _boot() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _left(path: str, boot: str) -> float:
    """Seconds."""
    until = held_until(path, boot)
    return 0.0 if until is None else until - time.clock_gettime(time.CLOCK_BOOTTIME)


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def _say(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
        os.close(descriptor)
    except OSError:  # who asked is dead; the lock says that we are here
        pass


def _ignore(*_: object) -> None:
    """A handler, not SIG_IGN, which QEMU would inherit."""


def main(hold: str, report: int, close: "list[int]", command: "list[str]") -> int:
    """Guard until it ends. Its status: 0 QEMU ended, 1 it could not be started, 2 it was not held."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)
    os.set_inheritable(report, False)
    boot = _boot()
    if _left(hold, boot) <= 0:
        _say(report, NOT_HELD)
        return 2
    try:
        pid = os.posix_spawnp(
            command[0],
            command,
            {**os.environ, "GUARD_PID": str(os.getpid())},
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores
        )
    except OSError as error:
        _say(report, f"{FAILED} {command[0]}: {error.strerror}")
        return 1
    ended = os.pidfd_open(pid)
    for descriptor in close:
        os.close(descriptor)
    _say(report, f"{pid} {_start_time(pid)}")
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    while (left := _left(hold, boot)) > 0:
        if poll.poll(max(1.0, min(EVERY, left) * 1000)):
            break
    else:
        os.kill(pid, signal.SIGKILL)  # not reaped yet, so this is nobody else's number
    os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3].split(",") if word], sys.argv[4:]))
