"""Every claim of the machines suite, over a stand-in of Hetzner Cloud."""

from __future__ import annotations

import socketserver
import threading
from typing import TYPE_CHECKING

import pytest
from hetzner.opened import hetzner, setup_of
from hetzner.standin import StandIn

from hostler.testing import MachineClaim, machine_claims

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Greeting(socketserver.BaseRequestHandler):
    """What is behind every server's port."""

    def handle(self) -> None:
        self.request.sendall(b"SSH-2.0-standin\r\n")


class Greeter(socketserver.TCPServer):
    """One after the other, for no thread of it may outlive the test that asked."""

    address_family = socketserver.socket.AF_INET6  # type: ignore[attr-defined]
    request_queue_size = 100


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with Greeter(("::1", 0), Greeting) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("claim", machine_claims(), ids=str)
async def test_claim(claim: MachineClaim, port: int, tmp_path: Path) -> None:
    takes = {"create_server": 2, "start_server": 1, "stop_server": 1, "delete_server": 2, "create_image": 2}
    with StandIn(network="::/64", takes=takes, by_calls=True) as standin:
        await claim.check(lambda: hetzner(tmp_path / "node", standin, ssh_port=port), setup=setup_of(standin))
        assert standin.cloud.servers == {}, "servers are left"
        assert standin.cloud.images == {}, "snapshots are left"
    for name in ("specs", "ready"):
        assert list((tmp_path / "node" / name).iterdir()) == [], "files are left"
