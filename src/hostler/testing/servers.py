"""Real servers for tests: on free loopback ports, with their own temporary data, removed at the end of the test run.

Each is a plain (not async) context manager, so that a session fixture can hold it. A server dies with the thread that
started it, even if that is killed with SIGKILL. Start it from the main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

HOST = "127.0.0.1"
_PORTS = range(15_000, 32_000)
"""Below the kernel's range for outgoing connections, so that none of them takes a port while a server restarts."""
_ATTEMPTS = 8
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerMissing(RuntimeError):
    """A server cannot be started because it is not installed."""


class ServerFailed(RuntimeError):
    """A server did not start, or did not become healthy in time."""


def find_binary(name: str, variable: str | None = None) -> str:
    """Return the path of a server's binary: from `variable`, or from PATH. ServerMissing: not found."""
    asked = os.environ.get(variable, "") if variable else ""
    found = shutil.which(asked or name)
    if found is None:
        hint = f" or set {variable}" if variable else ""
        raise ServerMissing(f"{asked or name}: not installed; run scripts/setup{hint}")
    return found


def free_ports(count: int, *, rng: random.Random | None = None) -> list[int]:
    """Return ports without a listener.

    Another process may take one before the caller does: be ready to choose again.
    """
    rng = rng or random.Random()
    found: list[int] = []
    while len(found) < count:
        port = rng.choice(_PORTS)
        if port not in found and port_is_free(port):
            found.append(port)
    return found


def port_is_free(port: int) -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def suspend(pid: int, *, within: float = 30.0) -> None:
    """Suspend a process, and return once every thread of it is stopped.

    The kernel delivers SIGSTOP to one thread, which stops the others. On a busy machine they run on for milliseconds.
    """
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + within
    while not thread_states(pid) <= {"T", "Z", "X"}:
        if time.monotonic() > end:
            raise ServerFailed(f"process {pid}: still running {within:g} s after SIGSTOP: {thread_states(pid)}")
        time.sleep(0.001)


def thread_states(pid: int) -> set[str]:
    """Return the states of the threads of a process, as `ps` abbreviates them; none if it is gone."""
    states = set()
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            states.add(stat.read_text().rpartition(")")[2].split()[0])
    return states


class ServerProcess:
    """One server process that cannot outlive this process. Its output goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.log = log
        self.killed = False
        # Only Linux has such a signal. Elsewhere a test run that is killed leaves its servers.
        guard = [find_binary("setpriv"), "--pdeathsig", "KILL", "--"] if sys.platform == "linux" else []
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches the test run, which stops its servers in order.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process has not ended; a suspended process counts as running."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a no-op after the process has ended."""
        self._process.send_signal(number)

    def suspend(self) -> None:
        """SIGSTOP, and wait until every thread is stopped; a no-op after the process has ended."""
        if self.running:
            suspend(self.pid)

    def resume(self) -> None:
        """SIGCONT; a no-op after the process has ended."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.killed = True
        self._process.kill()
        self._process.wait()

    def tail(self, lines: int = 40) -> str:
        """Return the last lines of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class _Node:
    """One member of an etcd cluster: its ports, its data and, while it is running, its process."""

    def __init__(self, name: str, directory: Path, ports: Sequence[int], host: str) -> None:
        self.name, self.host = name, host
        self.data = directory / name
        self.log = directory / f"{name}.log"
        self.client_port, self.peer_port, self.metrics_port = ports
        self.process: ServerProcess | None = None
        self.suspended = False

    @property
    def endpoint(self) -> str:
        return f"{self.host}:{self.client_port}"

    def fetch(self, path: str, *, within: float = 1.0) -> str | None:
        """Return the member's response at `path` of its plain HTTP port; None: no response."""
        if self.process is None or not self.process.running or self.suspended:
            return None
        try:
            with _DIRECT.open(f"http://{self.host}:{self.metrics_port}{path}", timeout=within) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.URLError):
            return None

    def healthy(self) -> bool:
        answer = self.fetch("/health")
        return answer is not None and json.loads(answer).get("health") == "true"

    def leads(self) -> bool:
        metrics = self.fetch("/metrics") or ""
        return "\netcd_server_is_leader 1\n" in metrics and "\netcd_server_has_leader 1\n" in metrics


class EtcdSecurity(NamedTuple):
    """Who may use an etcd of a test.

    `tls`: clients must use TLS; `mutual`: and a certificate of the same authority. `auth`: user `root` with this
    password.
    """

    tls: bool = False
    mutual: bool = False
    auth: str | None = None


class EtcdPace(NamedTuple):
    """Milliseconds between heartbeats of the leader of an etcd, and until its members elect another."""

    heartbeat_ms: int = 100
    election_ms: int = 1000


_OPEN, _PACE = EtcdSecurity(), EtcdPace()


class EtcdCluster:
    """Three etcd members (or `size`), numbered from 0.

    `binary`: another etcd than the one that HOSTLER_ETCD or PATH names. `arguments`: added to each member's
    command line. `host`: an address other than loopback's, in a private network of the test. Every wait fails with
    ServerFailed after `within` seconds.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        security: EtcdSecurity = _OPEN,
        binary: str | None = None,
        arguments: Iterable[str] = (),
        pace: EtcdPace = _PACE,
        within: float = 30.0,
        host: str = HOST,
    ) -> None:
        self._host = host
        self._size, self._mutual, self._auth = size, security.mutual, security.auth
        self._tls = security.tls or security.mutual
        self._binary, self._arguments, self._within = binary, tuple(arguments), within
        self._pace = pace
        self._directory: Path | None = None
        self._nodes: list[_Node] = []

    # Life cycle

    def __enter__(self) -> Self:
        binary = find_binary("etcd", "HOSTLER_ETCD") if self._binary is None else find_binary(self._binary)
        self._binary = binary
        self._directory = Path(tempfile.mkdtemp(prefix="hostler-etcd-"))
        try:
            if self._tls:
                _write_certificates(self._directory)
            self._start_all()
            if self._auth is not None:
                self._enable_auth(self._auth)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop every member and delete their data. Idempotent."""
        for node in self._nodes:
            if node.process is not None:
                node.process.kill()
                node.process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    # Addresses

    @property
    def directory(self) -> Path:
        """Data, logs and certificates (`ca.pem`, `server.pem`, `client.pem`, `client.key`)."""
        if self._directory is None:
            raise RuntimeError("etcd: not started; use it inside `with`")
        return self._directory

    @property
    def endpoints(self) -> list[str]:
        """`host:port` of each member."""
        return [node.endpoint for node in self._nodes]

    @property
    def url(self) -> str:
        """URL for `hostler.open_store`, with everything needed for access."""
        return self.url_of(self.endpoints)

    def url_of(self, endpoints: Sequence[str], **options: str) -> str:
        """Return the same for other endpoints (a proxy, some of the members) and with more options."""
        query: dict[str, str] = {}
        if self._tls:
            query["ca"] = str(self.directory / "ca.pem")
        if self._mutual:
            query |= {"cert": str(self.directory / "client.pem"), "key": str(self.directory / "client.key")}
        if self._auth is not None:
            query |= {"user": "root", "password": self._auth}
        query |= options
        scheme = "etcds" if self._tls else "etcd"
        return f"{scheme}://{','.join(endpoints)}" + (f"?{urlencode(query)}" if query else "")

    def pid(self, index: int = 0) -> int:
        """Return the process id of a running member."""
        return self._running(index).pid

    # Faults

    def kill(self, index: int = 0) -> None:
        """SIGKILL to one member; its data stays."""
        self._running(index).kill()
        self._nodes[index].suspended = False

    def suspend(self, index: int = 0) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._running(index).suspend()
        self._nodes[index].suspended = True

    def resume(self, index: int = 0) -> None:
        """SIGCONT."""
        self._running(index).resume()
        self._nodes[index].suspended = False

    def restart(self, index: int = 0, *, wait: bool = True) -> None:
        """Restart one member at the same address with the same data; kill it first if it is running."""
        node = self._nodes[index]
        if node.process is not None:
            node.process.kill()
        node.suspended = False
        end = time.monotonic() + self._within
        ports = (node.client_port, node.peer_port, node.metrics_port)
        while not all(map(port_is_free, ports)):
            if time.monotonic() > end:
                raise ServerFailed(f"etcd {node.name}: one of its ports {ports} was taken; run the test again")
            time.sleep(0.02)
        node.process = ServerProcess(self._command(node, "existing"), node.log)
        if wait:
            self.wait_healthy(index)

    def leader(self) -> int:
        """Return the index of the leading member; wait until there is one."""
        found: list[int] = []

        def one_leads() -> bool:
            found[:] = [index for index, node in enumerate(self._nodes) if node.leads()]
            return len(found) == 1

        self._wait(one_leads, "no single member leads")
        return found[0]

    def wait_healthy(self, index: int | None = None) -> None:
        """Wait until one member, or every member that is running and not suspended, serves."""
        nodes = self._nodes if index is None else [self._nodes[index]]

        def all_healthy() -> bool:
            awaited = (n for n in nodes if n.process is not None and not n.process.killed and not n.suspended)
            return all(node.healthy() for node in awaited)

        self._wait(all_healthy, "not healthy")

    def ctl(self, *arguments: str) -> str:
        """Run `etcdctl` against the cluster; return its output."""
        command = [find_binary("etcdctl", "HOSTLER_ETCDCTL"), "--endpoints"]
        scheme = "https" if self._tls else "http"
        command.append(",".join(f"{scheme}://{endpoint}" for endpoint in self.endpoints))
        if self._tls:
            command += ["--cacert", str(self.directory / "ca.pem")]
        if self._mutual:
            command += ["--cert", str(self.directory / "client.pem"), "--key", str(self.directory / "client.key")]
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run(
            [*command, *arguments], check=False, capture_output=True, text=True, env=environment, timeout=self._within
        )
        if done.returncode:
            raise ServerFailed(f"etcdctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    # Internals

    def _running(self, index: int) -> ServerProcess:
        process = self._nodes[index].process
        if process is None or not process.running:
            raise RuntimeError(f"etcd {self._nodes[index].name}: not running; restart it first")
        return process

    def _start_all(self) -> None:
        for attempt in range(_ATTEMPTS):
            ports = free_ports(3 * self._size)
            folder = self.directory / f"try{attempt}"
            folder.mkdir()
            self._nodes = [_Node(f"m{i}", folder, ports[3 * i : 3 * i + 3], self._host) for i in range(self._size)]
            for node in self._nodes:
                node.process = ServerProcess(self._command(node, "new"), node.log)
            try:
                self.wait_healthy()
            except ServerFailed as error:
                for node in self._nodes:
                    if node.process is not None:
                        node.process.kill()
                if "address already in use" not in str(error) or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _command(self, node: _Node, state: str) -> list[str]:
        scheme = "https" if self._tls else "http"
        client, peer = f"{scheme}://{node.endpoint}", f"http://{node.host}:{node.peer_port}"
        members = ",".join(f"{n.name}=http://{n.host}:{n.peer_port}" for n in self._nodes)
        command = [
            *(str(self._binary), "--name", node.name, "--data-dir", str(node.data)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--listen-metrics-urls", f"http://{node.host}:{node.metrics_port}"),
            *("--initial-cluster", members, "--initial-cluster-state", state),
            *("--initial-cluster-token", self.directory.name),
            *("--heartbeat-interval", str(self._pace.heartbeat_ms), "--election-timeout", str(self._pace.election_ms)),
            *("--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn"),
        ]
        if self._tls:
            folder = self.directory
            command += ["--cert-file", f"{folder}/server.pem", "--key-file", f"{folder}/server.key"]
        if self._mutual:
            command += ["--client-cert-auth", "--trusted-ca-file", f"{self.directory}/ca.pem"]
        return [*command, *self._arguments]

    def _enable_auth(self, password: str) -> None:
        self.ctl("user", "add", f"root:{password}", "--interactive=false")
        with contextlib.suppress(ServerFailed):  # newer servers create the role themselves
            self.ctl("role", "add", "root")
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("auth", "enable")

    def _wait(self, condition: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + self._within
        while not condition():
            for node in self._nodes:
                if node.process is not None and not node.process.running and not node.process.killed:
                    raise ServerFailed(f"etcd {node.name}: it ended unexpectedly:\n{node.process.tail()}")
            if time.monotonic() > end:
                raise ServerFailed(f"etcd: {problem} within {self._within:g} s")
            time.sleep(0.05)


class EtcdServer(EtcdCluster):
    """One etcd."""

    def __init__(
        self,
        *,
        security: EtcdSecurity = _OPEN,
        binary: str | None = None,
        arguments: Iterable[str] = (),
        within: float = 30.0,
    ) -> None:
        super().__init__(1, security=security, binary=binary, arguments=arguments, within=within)


def _write_certificates(directory: Path) -> None:
    try:
        import trustme
    except ImportError:
        raise ServerMissing("trustme: not installed; a server with TLS needs it for its certificates") from None
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(directory / "stranger.pem"))
    for name, identity in (("server", HOST), ("client", "client@hostler.test")):
        issued = authority.issue_cert(identity, "localhost") if name == "server" else authority.issue_cert(identity)
        with (directory / f"{name}.pem").open("wb") as file:
            file.writelines(blob.bytes() for blob in issued.cert_chain_pems)
        issued.private_key_pem.write_to_path(str(directory / f"{name}.key"))
