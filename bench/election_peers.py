"""Election recipes that a Python team could use instead, as contestants: python election_peers.py KIND URL TTL

Runs in a separate environment with the peers and without Hostler (scripts/bench-elections creates it). The protocol is
that of election_contestant.py. Each peer is used as its documentation shows, with its defaults except for the ttl.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import uuid
from importlib import import_module
from typing import Any, Protocol

NAME = "hostler-bench-election"


class Peer(Protocol):
    """The operations of each recipe."""

    def stand(self) -> None:
        """Wait until it leads."""

    def release(self) -> None:
        """Give up the leadership."""


class ToozLock:
    """tooz: a lock of its coordinator, kept alive by heartbeats. Waits by polling."""

    def __init__(self, url: str, ttl: float) -> None:
        coordination = import_module("tooz.coordination")
        if url.startswith("etcd"):
            url = url.replace("etcd://", "etcd3+http://") + f"?api_version=v3&lock_timeout={ttl:.0f}"
        else:
            url += f"?lock_timeout={ttl:.0f}&membership_timeout={ttl:.0f}"
        self._coordinator: Any = coordination.get_coordinator(url, uuid.uuid4().hex.encode())
        self._coordinator.start()
        threading.Thread(target=self._beat, args=(ttl / 4,), daemon=True).start()
        self._lock: Any = self._coordinator.get_lock(NAME.encode())

    def _beat(self, every: float) -> None:
        while True:
            self._coordinator.heartbeat()
            time.sleep(every)

    def stand(self) -> None:
        self._lock.acquire(blocking=True)

    def release(self) -> None:
        self._lock.release()


class RedisLock:
    """redis-py: a lock that its holder extends. Waits by polling every 0.1 s."""

    def __init__(self, url: str, ttl: float) -> None:
        client: Any = import_module("redis").Redis.from_url(url)
        self._ttl = ttl
        self._lock: Any = client.lock(NAME, timeout=ttl, thread_local=False)
        self._held = threading.Event()
        threading.Thread(target=self._extend, daemon=True).start()

    def _extend(self) -> None:
        while True:
            time.sleep(self._ttl / 4)
            if self._held.is_set():
                self._lock.reacquire()

    def stand(self) -> None:
        self._lock.acquire(blocking=True)
        self._held.set()

    def release(self) -> None:
        self._held.clear()
        self._lock.release()


class KazooElection:
    """kazoo: the election recipe of ZooKeeper. Waits by watching."""

    def __init__(self, url: str, ttl: float) -> None:
        client: Any = import_module("kazoo.client").KazooClient(hosts=url.removeprefix("zookeeper://"), timeout=ttl)
        client.start()
        self._election: Any = client.Election(f"/{NAME}", uuid.uuid4().hex)
        self._leads, self._ends = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def _lead(self) -> None:
        self._leads.set()
        self._ends.wait()

    def stand(self) -> None:
        self._leads.clear()
        self._ends.clear()
        self._thread = threading.Thread(target=self._election.run, args=(self._lead,), daemon=True)
        self._thread.start()
        self._leads.wait()

    def release(self) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()


PEERS: dict[str, type[ToozLock | RedisLock | KazooElection]] = {
    "tooz": ToozLock,
    "redis-py": RedisLock,
    "kazoo": KazooElection,
}


def say(what: str) -> None:
    """Answer with the current time."""
    print(json.dumps({what: time.monotonic()}), flush=True)


def main() -> None:
    """Execute commands until the input ends."""
    peer: Peer = PEERS[sys.argv[1]](sys.argv[2], float(sys.argv[3]))
    say("ready")
    for line in sys.stdin:
        if line.strip() == "stand":
            peer.stand()
            say("leading")
        else:
            say("releasing")
            peer.release()
            say("released")


if __name__ == "__main__":
    main()
