"""The same parts on several processes and a cluster: replicas, agents, which store is chosen, a store that is away."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest
from up_process import HostlerProcess, hostler, token_told, until, well

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.testing.servers import EtcdServer

TIMES = ("--node-ttl", 6, "--fencing-time", 12)


class Company:
    """An etcd, and processes of ours on it."""

    def __init__(self, etcd: EtcdServer, folder: Path) -> None:
        self.etcd, self.folder = etcd, folder
        self.processes: list[HostlerProcess] = []

    def start(self, *arguments: object, environ: dict[str, str] | None = None) -> HostlerProcess:
        self.processes.append(HostlerProcess(*arguments, folder=self.folder, environ=environ))
        return self.processes[-1]

    def replica(self) -> HostlerProcess:
        listen = ("--listen", "127.0.0.1:0", "--leadership-ttl", 4, "--data", self.folder / "replica")
        return self.start("replica", "--store", self.etcd.url, *listen, *TIMES)

    def agent(self, node: str) -> HostlerProcess:
        return self.start("agent", "--node", node, "--store", self.etcd.url, "--data", self.folder / node, *TIMES)

    async def admin(self, process: HostlerProcess) -> dict[str, str]:
        """What a command needs to ask this one."""
        told = "the administrator's token is kept in "
        for each in self.processes:
            if told in each.text:
                token = token_told(each.text)
        return {"HOSTLER_SERVER": await process.url("serving"), "HOSTLER_TOKEN": token}


@pytest.fixture
def company(etcd: EtcdServer, tmp_path: Path) -> Iterator[Company]:
    company = Company(etcd, tmp_path)
    try:
        yield company
    finally:
        for process in company.processes:
            process.signal(signal.SIGCONT)
            process.kill()


async def test_replicas_and_agents_on_one_cluster_are_one_control_plane(company: Company) -> None:
    first = company.replica()
    await first.says("leading with fence")
    second = company.replica()
    await second.says("leads with fence")
    for node in ("r1-a", "r1-b"):
        await company.agent(node).says("registered\n")
    standby = await company.admin(second)
    made = await well("vm", "create", "web", "--wait", **standby)
    assert "running on r1-" in made.out
    scene = (await well("leader", "-o", "json", **standby)).json
    assert [each["address"] for each in scene["standing_by"]] == [standby["HOSTLER_SERVER"].partition("//")[2]]
    first.kill()
    await second.says("leading with fence")
    assert "running" in (await well("vm", "create", "db", "--wait", **standby)).out
    second.signal(signal.SIGTERM)
    assert await second.ends() == 0


async def test_an_agent_that_ends_leaves_its_machines_and_the_next_one_goes_on(company: Company) -> None:
    replica = company.replica()
    await replica.says("leading with fence")
    agent = company.agent("r1-a")
    await agent.says("registered\n")
    admin = await company.admin(replica)
    before = (await well("vm", "create", "web", "--wait", "-o", "json", **admin)).json
    agent.signal(signal.SIGTERM)
    assert await agent.ends() == 0
    assert (await well("vm", "show", "web", "-o", "json", **admin)).json["phase"] == "silent"
    again = company.agent("r1-a")
    await again.says("registered\n")
    await well("vm", "start", "web", "--wait", **admin)
    after = (await well("vm", "show", "web", "-o", "json", **admin)).json
    assert (after["address"], after["phase"]) == (before["address"], "running")
    other = await hostler("agent", "--node", "r1-a", "--store", company.etcd.url, "--data", company.folder / "r1-a")
    assert (other.code, "another process has them open" in other.err) == (5, True), other


async def test_while_the_store_is_away_reads_say_how_old_they_are_and_writes_are_refused(company: Company) -> None:
    up = company.start("up", "--store", company.etcd.url, "--data", company.folder / "d", "--listen", "127.0.0.1:0")
    await up.url()
    data = {"HOSTLER_DATA": str(company.folder / "d")}
    await well("vm", "create", "web", "--wait", **data)
    company.etcd.suspend()
    try:
        stale = await well("vm", "list", "-o", "json", **data)
        assert "unreachable" in stale.err
        assert " s ago" in stale.err
        assert [view["name"] for view in stale.json] == ["web"]
        refused = await hostler("vm", "create", "second", **data)
        assert refused.code in (5, 6), refused
    finally:
        company.etcd.resume()

    async def fresh() -> Any:
        return await hostler("vm", "list", "-o", "json", **data)

    found = await fresh()
    while found.code or found.err:
        found = await fresh()

    async def phase() -> Any:
        return (await well("vm", "show", "web", "-o", "json", **data)).json["phase"]

    # Where the store was away for long, the lease of its node expired, and the agent registers again.
    while (seen := await phase()) == "silent":
        await asyncio.sleep(0.05)
    assert seen == "running"


# The choice of the backend


async def test_what_a_state_file_holds_is_moved_into_the_cluster_once(company: Company) -> None:
    state, folder = company.folder / "state.json", company.folder / "d"
    data = {"HOSTLER_DATA": str(folder)}
    file_mode = {"PLASMAVMC_STORAGE_BACKEND": "file", "PLASMAVMC_STATE_PATH": str(state)}
    up = ("up", "--data", folder, "--listen", "127.0.0.1:0", "--leadership-ttl", 4, *TIMES)
    first = company.start(*up, environ=file_mode)
    await first.url()
    before = (await well("vm", "create", "web", "--wait", "-o", "json", **data)).json
    first.signal(signal.SIGTERM)
    assert await first.ends() == 0
    endpoint = company.etcd.url.replace("etcd://", "http://")
    cluster = {"PLASMAVMC_CHAINFIRE_ENDPOINT": endpoint, "PLASMAVMC_STATE_PATH": str(state)}
    second = company.start(*up, environ=cluster)
    await second.url()
    await second.says("1 machine was moved into the cluster")
    after = (await well("vm", "show", "web", "-o", "json", **data)).json
    assert after["id"] == before["id"]
    await well("vm", "delete", "web", "--wait", **data)
    second.signal(signal.SIGTERM)
    assert await second.ends() == 0
    third = company.start(*up, environ=cluster)
    await third.url()
    assert "moved" not in third.text
    assert (await well("vm", "list", "-o", "json", **data)).json == [], "a deleted machine came back"


async def test_nothing_starts_on_a_state_file_whose_machines_were_moved_until_it_is_activated(
    company: Company,
) -> None:
    state = company.folder / "state.json"
    up = ("up", "--data", company.folder / "d", "--listen", "127.0.0.1:0", "--leadership-ttl", 4, *TIMES)
    file_mode = {"PLASMAVMC_STORAGE_BACKEND": "file", "PLASMAVMC_STATE_PATH": str(state)}
    endpoint = company.etcd.url.replace("etcd://", "http://")
    cluster = {"PLASMAVMC_CHAINFIRE_ENDPOINT": endpoint, "PLASMAVMC_STATE_PATH": str(state)}
    for environ in (file_mode, cluster):
        process = company.start(*up, environ=environ)
        await process.url()
        process.signal(signal.SIGTERM)
        assert await process.ends() == 0
    away = cluster | {"PLASMAVMC_CHAINFIRE_ENDPOINT": "http://127.0.0.1:1", "HOSTLER_STORAGE_FALLBACK": "true"}
    other = ("up", "--data", company.folder / "e", *up[3:])
    for refused in await asyncio.gather(hostler(*up, **file_mode), hostler(*other, **away)):
        assert refused.code != 0
        assert "its records were moved" in refused.err, refused
        command = refused.err.partition("hostler store activate ")[2].split()
        assert command == ["--store", f"file://{state}"]
    await well("store", "activate", "--yes", *command)
    process = company.start(*up, environ=file_mode)
    await process.url()
    process.signal(signal.SIGTERM)
    assert await process.ends() == 0


async def test_two_hosts_on_one_cluster_need_names_of_their_own(company: Company) -> None:
    def up(folder: str, *more: object) -> HostlerProcess:
        data = ("--data", company.folder / folder, "--listen", "127.0.0.1:0", "--leadership-ttl", 8)
        return company.start("up", "--store", company.etcd.url, *data, *TIMES, *more)

    first = up("one")
    await first.url()
    await well("vm", "create", "web", "--wait", HOSTLER_DATA=str(company.folder / "one"))
    second = up("two")
    await second.says("waiting for its lease to expire")  # true for as long as the first one runs
    first.kill()
    await second.says("node local-1 has machines in other storage")
    second.kill()
    third = up("two", "--rack", "attic")
    await third.url()
    token = (company.folder / "one" / "admin.token").read_text().strip()
    nodes = (
        await well("node", "list", "-o", "json", HOSTLER_DATA=str(company.folder / "two"), HOSTLER_TOKEN=token)
    ).json
    assert [(each["node"], each["rack"], each["alive"]) for each in nodes] == [
        ("attic-1", "attic", True),
        ("local-1", "local", False),
    ]


async def test_a_cluster_that_is_away_at_start_is_an_error_unless_the_file_is_allowed(tmp_path: Path) -> None:
    away = {"PLASMAVMC_CHAINFIRE_ENDPOINT": "http://127.0.0.1:1", "PLASMAVMC_STATE_PATH": str(tmp_path / "s.json")}
    allowed = HostlerProcess(
        *("up", "--data", tmp_path / "d", "--listen", "127.0.0.1:0"),
        folder=tmp_path,
        environ=away | {"HOSTLER_STORAGE_FALLBACK": "true"},
    )
    try:
        refused = await hostler("up", "--data", tmp_path / "e", "--listen", "127.0.0.1:0", **away)
        assert (refused.code, "HOSTLER_STORAGE_FALLBACK" in refused.err) == (5, True), refused
        await allowed.url()
        await until(lambda: "WARNING" in allowed.text, 10, lambda: allowed.text)
        assert "state file" in allowed.text
        made = await well("vm", "create", "web", "--wait", HOSTLER_DATA=str(tmp_path / "d"))
        assert "running" in made.out
        assert "/plasmavmc/vms/default/default/" in (tmp_path / "s.json").read_text()
    finally:
        allowed.kill()
