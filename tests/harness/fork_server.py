"""A process that has imported Hostler, and forks a `hostler` process whenever a test asks for one.

An interpreter that starts and imports the control plane takes over half a second of processor time; a fork takes some
milliseconds. Each worker of a run has one such server. A request names arguments, environment, folder and the three
standard streams; the answer is the process id, and later the exit code. It may also name a script that is run instead
of `hostler`, and a network namespace. Forked processes lead a session of their own, and die when the server does,
which dies with its worker. Tests of starting itself start an interpreter. Crash points have a server with other
children (`crash_points.launcher`): it calls `serve` too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

MESSAGE = 1 << 20
TESTS = Path(__file__).parents[1]
MODULES = (
    "asyncssh",
    "encodings.idna",
    "hostler.drivers.artifacts.metadata",
    "hostler.drivers.calling.connection_pool",
    "hostler.drivers.calling.listener",
    "hostler.drivers.hasher",
    "hostler.drivers.inbox.redis",
    "hostler.drivers.machines.qemu.driver",
    "hostler.drivers.machines.simulated",
    "hostler.drivers.slices.process.driver",
    "hostler.drivers.store.etcd",
    "hostler.drivers.store.file",
    "hostler.drivers.store.sqlite",
    "hostler.drivers.ttl.redis",
    "hostler.drivers.ttl.store",
    "hostler.engine.labs.worker",
    "hostler.engine.migration",
    "hostler.entry.agent",
    "hostler.entry.doctor.examination",
    "hostler.entry.lab_worker",
    "hostler.entry.control_plane",
    "hostler.entry.replica",
    "hostler.entry.sim_service",
    "hostler.entry.up",
    "hostler.client",
    "rich.console",
    "rich.table",
    "uvicorn.lifespan.off",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.httptools_impl",
)
"""What a process would import once it runs; beside them, every module of the command line."""
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18
INHERITED = "TEST_FORK_SERVER"
"""Descriptor and process id of the fork server that a script in namespaces of its own was given."""


class ForkedProcess:
    """A forked process, with the verbs of `subprocess.Popen` that tests use."""

    cpu = 0.0
    """Processor time of all that have ended and were waited for, in seconds."""

    def __init__(self, answers: socket.socket, pipes: list[IO[Any] | None]) -> None:
        self._answers, self._rest = answers, b""
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        self.pid = int(self._next()["pid"])
        answers.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_pipes()
        self.wait()

    def close_pipes(self) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

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
    """The server, as the worker sees it. `module`: what runs there, found in the folders `paths` too."""

    def __init__(self, module: str = "harness.fork_server", *paths: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if module == "harness.fork_server" and (inherited := os.environ.pop(INHERITED, "")):
            descriptor, self.pid = map(int, inherited.split())
            self._commands = socket.socket(fileno=descriptor)
            return
        self._commands, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        known = filter(None, (os.environ.get("PYTHONPATH"),))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join((*map(str, (*paths, TESTS)), *known))},
            )
        self._commands.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE)
        self.pid = self._process.pid

    def fork(self, asked: dict[str, Any], fds: Sequence[int] = ()) -> socket.socket:
        """Fork a process that does what is asked; the socket on which it and its end are reported."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._commands, [json.dumps(asked).encode()], [theirs.fileno(), *fds])
        return ours

    def start(
        self,
        arguments: Sequence[object],
        *,
        script: Path | None = None,
        environ: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        text: bool = False,
        network: str | None = None,
        apart: bool = False,
    ) -> ForkedProcess:
        """Fork `hostler ARGUMENTS`, or `python SCRIPT ARGUMENTS`.

        The streams are open files of this process, or PIPE, DEVNULL, STDOUT of `subprocess`. `environ`: all of it,
        not only what differs; but replicas end without a delay unless it says otherwise. `network`: the name of a
        network namespace. `apart`: in network, mount and process namespaces of its own, which end with it; a script
        finds modules in PYTHONPATH there, and has a fork server that needs no start.
        """
        asked = {
            "arguments": list(map(str, arguments)),
            "script": None if script is None else str(script),
            "environ": {"HOSTLER_SHUTDOWN_DELAY": "0", **(os.environ if environ is None else environ)},
            "cwd": str(cwd or Path.cwd()),
            "network": network,
            "apart": apart,
        }
        with contextlib.ExitStack() as stack:
            pipes: list[IO[Any] | None] = [None, None, None]
            fds: list[int] = []
            for number, stream in enumerate((stdin, stdout, stderr)):
                fd = stream
                if stream == subprocess.STDOUT:
                    fd = fds[1]
                elif stream == subprocess.DEVNULL:
                    fd = os.open(os.devnull, os.O_RDWR)
                    stack.callback(os.close, fd)
                elif stream == subprocess.PIPE:
                    ends = os.pipe()
                    fd, mine = ends if number == 0 else ends[::-1]
                    stack.callback(os.close, fd)
                    pipes[number] = open(mine, ("w" if number == 0 else "r") + ("" if text else "b"))  # noqa: SIM115
                fds.append(fd)
            return ForkedProcess(self.fork(asked, fds), pipes)

    def run(
        self,
        arguments: Sequence[object],
        *,
        input: bytes = b"",  # noqa: A002 - as `subprocess.run` has it
        timeout: float = 60.0,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Fork a process, and wait for its end; what it wrote, as text."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(input)
            given.seek(0)
            streams = {"stdin": given.fileno(), "stdout": out.fileno(), "stderr": err.fileno()}
            process = self.start(arguments, **(streams | options))
            try:
                code = process.wait(timeout)
            finally:
                process.kill()
                process.wait()
            written = []
            for stream in (out, err):
                stream.seek(0)
                written.append(stream.read().decode())
        return subprocess.CompletedProcess(list(map(str, arguments)), code, *written)

    def children(self) -> set[int]:
        """Return the processes that were forked and have not ended."""
        try:
            return set(map(int, Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()))
        except FileNotFoundError:
            return set()

    def stop(self) -> None:
        self._commands.close()
        if self._process is None:  # ends with its namespace
            return
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main(commands: socket.socket) -> None:
    import hostler.entry.cli as commands_of

    every = (found.name for found in pkgutil.iter_modules(commands_of.__path__, "hostler.entry.cli."))
    serve(commands, (*MODULES, *every), _child)


def serve(
    commands: socket.socket,
    modules: Iterable[str],
    child: Callable[[dict[str, Any], list[int]], None],
    *,
    before_fork: Callable[[dict[str, Any]], None] = lambda _: None,
) -> None:
    """Import the modules and fork a process per message, until the worker closes the other end; then kill the rest.

    The first descriptor of a message is a socket: on it the server reports the process id, and how the process ended.
    `child` is called in the new process with what was asked and all descriptors, and does not return. Nothing that
    must not be forked (loops, threads, open stores) exists before.
    """
    for name in modules:
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
            asked = json.loads(data)
            before_fork(asked)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for other in (commands, *children.values()):
                    other.close()
                os.close(woken)
                os.close(wakes)
                child(asked, fds)
            for fd in fds[1:]:
                os.close(fd)
            children[pid] = socket.socket(fileno=fds[0])
            _report(children[pid], "forked", pid=pid)
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
            cpu = used.ru_utime + used.ru_stime
            _report(answers, "ended", code=os.waitstatus_to_exitcode(status), cpu=cpu)
            answers.close()


def _report(answers: socket.socket, what: str, **details: float) -> None:
    with contextlib.suppress(OSError):  # the worker has closed its end
        answers.sendall(json.dumps({"is": what, **details}).encode() + b"\n")


def _child(asked: dict[str, Any], fds: list[int]) -> None:
    """Become the process that was asked for. Does not return."""
    code = 70
    try:
        os.close(fds[0])
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as an interpreter has it
        for number, stream in enumerate(fds[1:]):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(asked["environ"])
        os.chdir(asked["cwd"])
        random.seed()
        time.tzset()
        tempfile.tempdir = None  # by the environment of this process
        if asked["network"]:
            _enter_network(asked["network"])
        if asked["apart"]:
            _go_apart()
        try:
            _run(asked)
            code = 0
        except SystemExit as error:
            if isinstance(error.code, str):
                print(error.code, file=sys.stderr)
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:  # noqa: BLE001 - the process ends here, and its output says why
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(asked: dict[str, Any]) -> None:
    if asked["script"]:
        sys.argv = [asked["script"], *asked["arguments"]]
        sys.path.insert(0, str(Path(asked["script"]).parent))
        runpy.run_path(asked["script"], run_name="__main__")
        return
    import hostler.__main__ as program

    sys.argv = [program.__file__, *asked["arguments"]]
    program.main()


def _go_apart() -> None:
    """Continue as the first process of new namespaces; this process waits for its end, and ends as it did."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "namespaces")
    if first := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for source, target, flags in (
        (b"none", b"/", _MS_REC | _MS_PRIVATE),
        (b"proc", b"/proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC),
    ):
        if libc.mount(source, target, source, flags, None) != 0:
            raise OSError(ctypes.get_errno(), f"mount {target.decode()}")
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    commands, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = os.fork()
    if server == 0:
        commands.close()
        serve(theirs, (), _child)
        os._exit(0)
    theirs.close()
    commands.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE)
    os.environ[INHERITED] = f"{commands.detach()} {server}"


def _enter_network(name: str) -> None:
    """Move this process into a network namespace that `ip netns` made."""
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(handle, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"network namespace {name}")
    os.close(handle)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
