"""A process that has imported Hostler, and forks a `hostler` process whenever a test asks for one.

An interpreter that starts and imports the control plane takes over half a second of processor time; a fork takes some
milliseconds. Each worker of a run has one such server. A request names arguments, environment, folder and the three
standard streams; the answer is the process id, and later the exit code. Forked processes lead a session of their own,
and die when the server does, which dies with its worker. Tests of starting itself use `exec=True` of
`HostlerProcess`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MESSAGE = 1 << 20
TESTS = Path(__file__).parents[1]
MODULES = (
    "hostler.drivers.hasher",
    "hostler.drivers.inbox.redis",
    "hostler.drivers.machines.qemu.driver",
    "hostler.drivers.machines.simulated",
    "hostler.drivers.store.etcd",
    "hostler.drivers.store.file",
    "hostler.drivers.store.sqlite",
    "hostler.drivers.ttl.redis",
    "hostler.drivers.ttl.store",
    "hostler.engine.labs.worker",
    "hostler.engine.migration",
    "hostler.entry.agent",
    "hostler.entry.cli.app",
    "hostler.entry.doctor",
    "hostler.entry.lab_worker",
    "hostler.entry.plane",
    "hostler.entry.replica",
    "hostler.entry.sim_service",
    "hostler.entry.up",
    "hostler.client",
    "rich.console",
    "rich.table",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
)
"""What a process would import once it runs."""
_PR_SET_PDEATHSIG = 1


class ForkedProcess:
    """A forked process, with the verbs of `subprocess.Popen` that tests use."""

    cpu = 0.0
    """Processor time of all that have ended and were waited for, in seconds."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers, self._rest = answers, b""
        self.returncode: int | None = None
        self.pid = int(self._next()["pid"])
        answers.setblocking(False)

    def fileno(self) -> int:
        """Readable once it has ended."""
        return self._answers.fileno()

    def poll(self) -> int | None:
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                ended = self._next()
                self.returncode = int(ended["code"])
                ForkedProcess.cpu += ended["cpu"]
                self._answers.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired("hostler", timeout or 0.0)
            select.select([self._answers], [], [], left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended; its code is on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _next(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            data = self._answers.recv(MESSAGE)
            if not data:
                return {"code": 255, "pid": 0, "cpu": 0.0}  # the server is gone
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


class ForkServer:
    """The server, as the worker sees it."""

    def __init__(self) -> None:
        self._commands, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.fork_server", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))},
            )
        self.pid = self._process.pid

    def start(
        self, arguments: list[str], *, environ: dict[str, str], cwd: str, stdin: int, stdout: int, stderr: int
    ) -> ForkedProcess:
        """Fork `hostler ARGUMENTS`. The streams are open files of this process."""
        ours, theirs = socket.socketpair()
        with theirs:
            asked = json.dumps({"arguments": arguments, "environ": environ, "cwd": cwd}).encode()
            self._commands.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE)
            socket.send_fds(self._commands, [asked], [theirs.fileno(), stdin, stdout, stderr])
        return ForkedProcess(ours)

    def children(self) -> set[int]:
        """Return the processes that were forked and have not ended."""
        try:
            return set(map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()))
        except FileNotFoundError:
            return set()

    def stop(self) -> None:
        self._commands.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(commands: socket.socket) -> None:
    """Serve until the worker lets go of the other end; then kill what is left."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    children: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([commands.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, MESSAGE)
            _reap(children)
        if commands.fileno() in ready:
            data, fds, _, _ = socket.recv_fds(commands, MESSAGE, 4)
            if not data:
                break
            answers = socket.socket(fileno=fds[0])
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for other in (commands, answers, *children.values()):
                    other.close()
                os.close(woken)
                os.close(wakes)
                _child(json.loads(data), fds[1:])
            for fd in fds[1:]:
                os.close(fd)
            children[pid] = answers
            _tell(answers, pid=pid)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while children:
        children.pop(os.wait()[0], None)


def _reap(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        if pid in children:
            answers = children.pop(pid)
            _tell(answers, code=os.waitstatus_to_exitcode(status), cpu=used.ru_utime + used.ru_stime)
            answers.close()


def _tell(answers: socket.socket, **what: float) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        answers.sendall(json.dumps(what).encode() + b"\n")


def _child(asked: dict[str, Any], streams: list[int]) -> None:
    """Become the process that was asked for. Does not return."""
    code = 70
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as an interpreter has it
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(asked["environ"])
        os.chdir(asked["cwd"])
        random.seed()
        time.tzset()
        import hostler.__main__ as program

        sys.argv = [program.__file__, *asked["arguments"]]
        try:
            program.main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:  # noqa: BLE001 - the process ends here, and its output says why
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
