"""Peers that mean harm, at the ports of real processes: half-open connections, and senders that never end."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from dose import dose
from harness import pace
from up_process import HostlerProcess, well

from hostler.drivers.machines.simulated import read_intervals
from hostler.testing.servers import free_ports

CONNECTIONS = dose(test=1_300, full=20_000)
"""Half-open connections to each port."""
EACH = 9_000
"""Connections of one attacking process at most."""
HELD_FOR = 7.0
"""Seconds: longer than the life of a leadership, of a heartbeat and of a fenced machine's permission to run."""
LOG_BYTES = 1_000_000
TIMES = ("--node-ttl", 2, "--fencing-time", 4, "--leadership-ttl", 4)
HEAD = b"GET / HTTP/1.1\r\nX: "
BODY = (
    b'POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"name": "'
)
ATTACKER = """
import resource, socket, sys, time
count, seconds, ports, first = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].split(","), bytes.fromhex(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held = []
for number in range(count):
    for port in ports:
        try:
            held.append(socket.create_connection(("127.0.0.1", int(port)), timeout=20))
            held[-1].sendall(first)
        except OSError:
            pass
print("holding", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    for each in held:
        try:
            each.send(b"a")
        except OSError:
            pass
    time.sleep(1)
"""


@asynccontextmanager
async def attacked(ports: list[int], first: bytes) -> AsyncIterator[None]:
    """Connections to the ports that send `first` and then a byte a second; they are all open once this is entered."""
    most = min(EACH, resource.getrlimit(resource.RLIMIT_NOFILE)[1] // 2 // len(ports))
    counts = [min(most, CONNECTIONS - begun) for begun in range(0, CONNECTIONS, most)]
    attackers = []
    try:
        for count in counts:
            told = (str(count), "600", ",".join(map(str, ports)), first.hex())
            attackers.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-S", "-E", "-c", ATTACKER, *told), stdout=asyncio.subprocess.PIPE
                )
            )
        for attacker in attackers:
            assert attacker.stdout is not None
            async with asyncio.timeout(pace.patience(60)):
                assert await attacker.stdout.readline() == b"holding\n"
        yield
    finally:
        for attacker in attackers:
            attacker.kill()
            await attacker.wait()


def size_of_logs(folder: Path) -> int:
    return sum(path.stat().st_size for path in [*folder.glob("*.out"), *(folder / "data").glob("log*/**/*")])


async def fence(data: Path) -> int:
    done = await well("leader", "-o", "json", HOSTLER_DATA=str(data))
    found: int = json.loads(done.out)["leader"]["fence"]
    return found


@pytest.mark.parametrize("first", [HEAD, BODY], ids=["heads", "bodies"])
async def test_half_open_connections_stop_neither_the_control_plane_nor_its_machines(
    first: bytes, tmp_path: Path
) -> None:
    api, relay = free_ports(2)
    data = tmp_path / "data"
    listen = ("--listen", f"127.0.0.1:{api}", "--agent-listen", f"127.0.0.1:{relay}")
    few_files = ("bash", "-c", 'ulimit -Sn 1024; exec "$@"', "bash")
    up = HostlerProcess("up", "--data", data, *listen, *TIMES, folder=tmp_path, before=few_files)
    try:
        url = await up.url()
        create = ("vm", "create", "web", "--on-node-loss", "fence", "--wait", "-o", "json")
        vm = (await well(*create, HOSTLER_DATA=str(data))).json["id"]
        before, size = await fence(data), size_of_logs(tmp_path)
        token = {"Authorization": f"Bearer {(data / 'admin.token').read_text().strip()}"}
        async with attacked([api, relay], first):
            end = time.monotonic() + HELD_FOR
            while time.monotonic() < end:
                with pace.within(1.0, "another client's request"):
                    async with aiohttp.ClientSession() as client, client.get(f"{url}/v1/vms", headers=token) as answer:
                        assert answer.status == 200
                        await answer.read()
                with pace.within(1.0, "another client's connection to the relay"):
                    there = f"http://127.0.0.1:{relay}/relay/n/v/ssh"
                    async with aiohttp.ClientSession() as client, client.get(there) as answer:
                        assert answer.status == 400
                await asyncio.sleep(0.2)
            assert await fence(data) == before
        assert up.running, up.tail()
        [(_, stopped)] = read_intervals(data / "machines" / "local-1")[vm]
        assert stopped is None, "the fenced machine was stopped"
        assert size_of_logs(tmp_path) - size < LOG_BYTES
    finally:
        up.kill()
