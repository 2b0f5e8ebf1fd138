"""The fencing guard of one machine, a separate program that needs only the standard library.

    python -I -S dead_mans_switch.py HOLD REPORT CLOSE COMMAND…

It runs COMMAND, which is QEMU, and kills it as soon as the file HOLD does not allow machines to run: the file is
missing, torn, of another boot, or expired. It writes the process's id and start time to the descriptor REPORT, and ends
when QEMU ends. CLOSE lists descriptors, separated by commas, that only QEMU keeps open.

QEMU dies with the guard, by any cause: `WITH_GUARD` makes the kernel kill it. So the kill does not depend on the guard:
a kernel timer (`Deadline`) that kills the guard is armed for the end of the last hold that was read, before QEMU starts
and before each further read. It fires while a read blocks, while the guard is stopped by SIGSTOP, and right after a
suspend. A second thread reads the hold. The thread that started QEMU only waits for QEMU's end: the kernel kills QEMU
at the end of that thread, and a thread that waits in a file system may not end.

SIGTERM, SIGINT and SIGHUP have no effect. The command line and the environment hold names and numbers, no secret.
"""

import _thread
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = 0.2
"""Seconds between two reads: a hold may be shortened at any time."""
GRACE = 0.05
"""Seconds after the end of the hold at which the kernel kills. Up to then the guard kills QEMU itself and reaps it."""
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock of `until`, the same as that of `SystemClock.now()`: it includes suspends where the host supports that."""
NOT_HELD, FAILED = "not held", "failed"
WITH_GUARD = (
    "setpriv", "--pdeathsig", "KILL", "--",
    # After, not before, the death signal was requested: a guard that died earlier is no longer the parent.
    "sh", "-c", '[ "$PPID" = "$GUARD_PID" ] || exit 1; exec "$@"', "sh",
)  # fmt: skip
"""Prefix of QEMU's command line. It follows every change of user, which would clear the death signal."""


def hold_text(boot: str, until: float) -> str:
    """Return the content of the hold file."""
    return f"hold {boot} {until:.6f} .\n"


def held_until(path: str, boot: str) -> "float | None":
    """Return until when machines may run, on `CLOCK`; None: they may not, or that is not known."""
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


class Deadline:
    """A kernel timer that kills this process. `set` moves its end; nothing in this process can delay it.

    It uses `CLOCK` with SIGKILL where the host has POSIX timers. Elsewhere it uses the interval timer with SIGALRM,
    whose default action ends the process: that timer does not count suspends, and acts on a stopped process only when
    it continues.
    """

    def __init__(self) -> None:
        self._set = _posix_timer() or _interval_timer

    def set(self, until: float) -> None:
        self._set(until + GRACE)


def _posix_timer() -> "Callable[[float], None] | None":
    """Return a function that arms a timer of this process for an instant; None: the host has no such timers."""
    try:
        import ctypes  # here, because some Pythons are built without it

        libc = ctypes.CDLL(None)
        create, settime = libc.timer_create, libc.timer_settime
    except (ImportError, OSError, AttributeError):
        return None
    # struct sigevent: a value, the signal, how it is sent (0: SIGEV_SIGNAL), filled to 64 bytes
    event = (ctypes.c_int * 16)()
    event[ctypes.sizeof(ctypes.c_void_p) // ctypes.sizeof(ctypes.c_int)] = signal.SIGKILL
    timer = ctypes.c_void_p()
    if create(ctypes.c_int(CLOCK), event, ctypes.byref(timer)) != 0:
        return None

    def arm(until: float) -> None:
        whole, rest = divmod(max(until, 0.001), 1.0)  # zero would disarm
        instant = (ctypes.c_long * 4)(0, 0, int(whole), int(rest * 1e9))
        if settime(timer, 1, instant, None) != 0:  # 1: TIMER_ABSTIME
            _interval_timer(until)

    return arm


def _interval_timer(until: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, max(until - time.clock_gettime(CLOCK), 0.001))


def _watch(hold: str, boot: str, deadline: Deadline, machine: int) -> None:
    """Move the deadline along with the hold; kill the machine (a pidfd) when the hold ends."""
    while True:
        until = held_until(hold, boot)
        left = 0.0 if until is None else until - time.clock_gettime(CLOCK)
        if until is None or left <= 0:
            break
        deadline.set(until)
        time.sleep(max(0.001, min(EVERY, left)))
    try:  # noqa: SIM105 - contextlib would double what this program imports
        signal.pidfd_send_signal(machine, signal.SIGKILL)
    except ProcessLookupError:  # it has just ended
        pass


def _start_time(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[19]


def _say(descriptor: int, text: str) -> None:
    try:
        os.write(descriptor, text.encode())
        os.close(descriptor)
    except OSError:  # the reader is dead; the lock shows that this process runs
        pass


def _ignore(*_: object) -> None:
    """Handle a signal by doing nothing. Not SIG_IGN, which QEMU would inherit."""


def main(hold: str, report: int, close: "list[int]", command: "list[str]") -> int:
    """Guard until QEMU ends. Exit status: 0 QEMU ended, 1 it could not be started, 2 it was not held."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ignore)
    os.set_inheritable(report, False)
    boot, deadline = _boot(), Deadline()
    until = held_until(hold, boot)  # may block: nothing runs yet
    if until is None or until <= time.clock_gettime(CLOCK):
        _say(report, NOT_HELD)
        return 2
    deadline.set(until)
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
    machine = os.pidfd_open(pid)
    for descriptor in close:
        os.close(descriptor)
    try:
        _thread.start_new_thread(_watch, (hold, boot, deadline, machine))
    except RuntimeError as error:  # without the thread the machine would end with its first hold
        _say(report, f"{FAILED} its guard: {error}")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return 1
    _say(report, f"{pid} {_start_time(pid)}")
    os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1], int(sys.argv[2]), [int(word) for word in sys.argv[3].split(",") if word], sys.argv[4:]))
