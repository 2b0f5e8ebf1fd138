"""Three etcd members in network namespaces, the leading one cut off from its peers.

python partition_process.py DIR ROUNDS

Run it inside `unshare --net --mount --pid`: all that it makes ends with it. The last line it prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from troupe import ReplicaProcess, Stage, until

from hostler.testing.servers import ServerProcess, find_binary

MEMBERS = (1, 2, 3)


def ip(*arguments: str) -> None:
    subprocess.run([find_binary("ip"), *arguments], check=True)


def address(member: int) -> str:
    return f"10.77.0.{10 + member}"


def build() -> None:
    """A bridge here, and behind it a namespace for each member."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge", "forward_delay", "0")
    ip("addr", "add", "10.77.0.1/24", "dev", "br0")
    ip("link", "set", "br0", "up")
    for member in MEMBERS:
        name = f"n{member}"
        ip("netns", "add", name)
        ip("link", "add", f"p{member}", "type", "veth", "peer", "name", "e0", "netns", name)
        ip("link", "set", f"p{member}", "master", "br0", "up")
        ip("-n", name, "addr", "add", f"{address(member)}/24", "dev", "e0")
        ip("-n", name, "link", "set", "e0", "up")
        ip("-n", name, "link", "set", "lo", "up")


def start(folder: Path, member: int) -> ServerProcess:
    here = f"http://{address(member)}"
    everybody = ",".join(f"n{number}=http://{address(number)}:2380" for number in MEMBERS)
    command = [
        *(find_binary("ip"), "netns", "exec", f"n{member}", find_binary("etcd"), "--name", f"n{member}"),
        *("--data-dir", str(folder / f"n{member}"), "--logger", "zap", "--log-level", "warn"),
        *("--heartbeat-interval", "50", "--election-timeout", "500"),
        *("--listen-peer-urls", f"{here}:2380", "--initial-advertise-peer-urls", f"{here}:2380"),
        *("--listen-client-urls", f"{here}:2379", "--advertise-client-urls", f"{here}:2379"),
        *("--initial-cluster", everybody, "--initial-cluster-state", "new"),
    ]
    return ServerProcess(command, folder / f"n{member}.log")


def asked(member: int, path: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address(member)}:2379{path}", timeout=2) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def leading() -> list[int]:
    return [member for member in MEMBERS if "\netcd_server_is_leader 1\n" in asked(member, "/metrics")]


def cut(member: int, verb: str) -> None:
    """Cut one member off from the others (`add`), or join it again (`del`); clients reach it all the time."""
    for other in MEMBERS:
        if other != member:
            ip("-n", f"n{member}", "route", verb, "blackhole", address(other))


async def main(folder: Path, rounds: int) -> dict[str, object]:
    build()
    members = [start(folder, member) for member in MEMBERS]
    refused = False
    try:
        await until(lambda: all('"true"' in asked(m, "/health") for m in MEMBERS), 30, "three members are healthy")
        url = "etcd://" + ",".join(f"{address(member)}:2379" for member in MEMBERS) + "?timeout=1"
        async with Stage(url, folder) as stage:
            for member in MEMBERS:  # one replica beside each member, that asks it first
                others = [n for n in MEMBERS if n != member]
                own = "etcd://" + ",".join(f"{address(n)}:2379" for n in (member, *others)) + "?timeout=1"
                stage.processes.append(ReplicaProcess(own, f"r{member}:1", folder, ttl=2.0, mode="stubborn"))
            await stage.counted()
            for _ in range(rounds):
                found: list[int] = []
                while len(found) != 1:  # the test's own time ends
                    found = leading()
                [member] = found
                cut(member, "add")
                cut_at = time.monotonic()
                await until(lambda: len(set(leading()) - {member}) == 1, 30, "another member leads")  # noqa: B023
                await stage.written(20)
                refused = refused or '"true"' not in asked(member, "/health")
                await asyncio.sleep(max(0.0, 4 - (time.monotonic() - cut_at)))
                cut(member, "del")
                await stage.written(20)
            stage.check_fences()
            fences = {tally.fence for tally in stage.tallies}
            return {"writes": len(stage.tallies), "fences": len(fences), "refused_while_cut_off": refused}
    finally:
        for process in members:
            process.kill()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))))
