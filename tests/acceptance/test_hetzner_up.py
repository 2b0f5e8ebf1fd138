"""`hostler up --machines hetzner` as its users meet it, on a stand-in of Hetzner Cloud."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from hetzner.standin import TOKEN, StandIn
from up_process import HostlerProcess, hostler, until, well

if TYPE_CHECKING:
    from pathlib import Path


async def test_machines_are_rented_survive_a_kill_and_are_given_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with StandIn() as standin:
        environ = {
            "HCLOUD_TOKEN": TOKEN,
            "HCLOUD_ENDPOINT": standin.endpoint,
            "HCLOUD_DEFAULT_LOCATION": "nbg1,fsn1",
            "HOSTLER_HCLOUD_PROBE": "off",
            "HOSTLER_NODE_TTL": "10",
        }
        ours = {"HOSTLER_DATA": str(data), **environ}
        arguments = ("up", "--data", data, "--listen", "127.0.0.1:0", "--machines", "hetzner", "--nodes", 1)
        up = HostlerProcess(*arguments, folder=tmp_path, environ=environ)
        try:
            await up.url()
            standin.cloud.sold_out.add(("*", "nbg1"))
            made = await well("vm", "create", "web", "--cpus", 2, "--memory", "1G", "--wait", **ours)
            assert made.out.startswith("web: running on local-1")
            [server] = standin.cloud.servers.values()
            assert (server.status, server.location) == ("running", "fsn1")
            [view] = (await well("vm", "list", "-o", "json", **ours)).json
            assert (view["access"]["host"], view["access"]["user"]) == (server.ipv6.replace("/64", "1"), "student")
            assert view["access"]["host_keys"]
            up.kill()
            server.status = "off"  # by itself, while nobody looks
            up = HostlerProcess(*arguments, folder=tmp_path, environ=environ)
            await up.url()
            await until(lambda: server.status == "running", 90, lambda: up.text)
            assert list(standin.cloud.servers) == [server.id], "it was made again"
            doctor = await hostler("doctor", HOSTLER_MACHINES="hetzner", **ours)
            assert "the token is accepted: 1 server" in doctor.out
            shown = await well("config", "show", **ours)
            await well("vm", "delete", "web", "--wait", **ours)
            assert standin.cloud.servers == {}
            standin.token_is_good = False
            refused = await hostler("doctor", HOSTLER_MACHINES="hetzner", **ours)
            assert "rejects the token" in refused.out
            standin.token_is_good, standin.slow = True, 60
            calls = len(standin.calls)
            standin.inject("slow", times=-1)
            await until(lambda: len(standin.calls) > calls, 90, lambda: up.text)
            up.signal(signal.SIGTERM)
            assert await up.ends(40) == 0, "it waits for Hetzner Cloud"
            logs = "".join(path.read_text() for path in (data / "log").iterdir())
            assert TOKEN not in shown.out + doctor.out + refused.out + refused.err + up.text + logs
        finally:
            up.kill()
