"""The store is away for longer than every ttl: machines run on, nobody is told what is not so, and then all goes on."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from dose import dose
from harness import pace
from harness.artefacts import safe
from up_process import HostlerProcess, hostler, well

from hostler.drivers.machines.simulated import read_intervals
from hostler.testing.servers import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

VMS = "/v1/orgs/default/projects/default/vms"
FENCING_TIME = 5
TIMES = ("--node-ttl", 2, "--fencing-time", FENCING_TIME, "--leadership-ttl", 2)
WITHIN = 15.0
"""Seconds for what takes a few; waits are longer where the machine is slow."""
AWAY = ("suspended", "killed")


class Answer:
    """What the API said."""

    def __init__(self, status: int, headers: Any, body: Any) -> None:
        self.status, self.headers, self.body = status, headers, body

    def __repr__(self) -> str:
        return f"{self.status} {dict(self.headers)} {self.body}"

    @property
    def problem(self) -> str:
        """The last word of the problem's type."""
        return str(self.body["type"]).rpartition("/")[2]


class Scene:
    """`up` on two nodes, its etcd, and somebody who asks."""

    def __init__(self, etcd: EtcdServer, folder: Path) -> None:
        self.etcd, self.folder, self.data = etcd, folder, folder / "data"
        self.environ = {"HOSTLER_DATA": str(self.data)}
        store = etcd.url_of(etcd.endpoints, timeout="2")
        arguments = ("--store", store, "--data", self.data, "--listen", "127.0.0.1:0", "--nodes", 2)
        self.up = HostlerProcess("up", *arguments, *TIMES, folder=folder)
        self.http: aiohttp.ClientSession
        self.by_command = 0
        """The code of the command that tried to create a machine before anybody had noticed."""

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, path, json=body, headers=headers) as answer:
            json = "json" in answer.content_type
            return Answer(answer.status, answer.headers, await (answer.json() if json else answer.text()))

    async def create(self, name: str, key: str) -> Answer:
        body = {"name": name, "spec": {"cpus": 1, "memory_mib": 64}}
        return await self.call("POST", VMS, body, Idempotency_Key=key)

    async def answers(self, path: str, status: int) -> None:
        """Wait until it does."""
        end = time.monotonic() + pace.patience(WITHIN)
        while (found := await self.call("GET", path)).status != status:
            assert time.monotonic() < end, f"{path}: {found}"
            await asyncio.sleep(0.1)

    async def settled(self) -> dict[str, Any]:
        """The machines by name, once all of them are as wished."""
        end = time.monotonic() + pace.patience(WITHIN)
        while True:
            found = await self.call("GET", VMS)
            if found.status == 200 and all(view["settled"] for view in found.body["items"]):
                return {view["name"]: view for view in found.body["items"]}
            assert time.monotonic() < end, found
            await asyncio.sleep(0.1)

    def away(self, how: str) -> None:
        if how == "suspended":
            self.etcd.suspend()
        else:
            self.etcd.kill()

    def back(self, how: str) -> None:
        if how == "suspended":
            self.etcd.resume()
        else:
            self.etcd.restart()

    async def until_last_end(self, vm: str, wanted: Callable[[float | None], bool]) -> float | None:
        """Wait for the end of a machine's last run to be as wanted; None: it runs."""
        limit = time.monotonic() + pace.patience(WITHIN)
        while not wanted(end := self.ran()[vm][-1][1]):
            assert time.monotonic() < limit, self.ran()[vm]
            await asyncio.sleep(0.1)
        return end

    def ran(self) -> dict[str, Sequence[tuple[float, float | None]]]:
        """When each machine ran, as the machines tell it."""
        folders = [self.data / "machines" / node for node in ("local-1", "local-2")]
        return {vm: list(spans) for folder in folders for vm, spans in read_intervals(folder).items()}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Scene]:
    with EtcdServer() as etcd:
        scene = Scene(etcd, tmp_path)
        try:
            yield scene
        finally:
            scene.up.kill()


@pytest.fixture
async def scene(process: Scene) -> AsyncIterator[Scene]:
    url = await process.up.url()
    token = (process.data / "admin.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(url, headers=headers, timeout=aiohttp.ClientTimeout(60)) as process.http:
        yield process


@pytest.mark.parametrize("how", AWAY)
async def test_machines_run_on_and_everybody_is_told_the_truth(scene: Scene, how: str) -> None:
    await well("vm", "create", "web", "--wait", **scene.environ)
    await well("vm", "create", "db", "--wait", **scene.environ)
    await well("vm", "stop", "db", "--wait", **scene.environ)
    before, ran = await scene.settled(), scene.ran()
    assert [end for _, end in ran[before["web"]["id"]]] == [None]
    scene.away(how)
    began = time.monotonic()
    try:
        told = await _first_moments(scene)
        await scene.answers("/readyz", 503)
        assert (await scene.call("GET", "/healthz")).status == 200
        await _reads_are_old_and_say_so(scene)
        told |= await _writes_are_refused(scene)
        await _commands_say_so(scene)
        ages = [await _age(scene)]
        while time.monotonic() < began + dose(test=9 if how == "suspended" else 7, full=60):
            assert (await scene.call("GET", "/healthz")).status == 200
            assert (await scene.call("GET", "/readyz")).status == 503
            ages.append(await _age(scene))
            safe(scene.ran() == ran, "a machine was started or stopped while the store was away", ran=scene.ran())
            await asyncio.sleep(0.2)
        assert ages == sorted(ages), "old news do not get younger"
    finally:
        scene.back(how)
    await scene.answers("/readyz", 200)
    assert (await scene.call("GET", f"{VMS}?stale=true")).headers.get("Hostler-Stale") is None
    await _promises_were_kept(scene, told)
    after = await scene.settled()
    for name in ("web", "db"):
        assert after[name] == before[name], "it was touched"
    still = scene.ran()
    safe({vm: still[vm] for vm in ran} == ran, "a machine was started anew, needlessly", ran=still)
    assert "running on local-" in (await well("vm", "create", "last", "--wait", **scene.environ)).out
    assert scene.up.running


async def _first_moments(scene: Scene) -> dict[str, Answer]:
    """Writes and a read before anybody has noticed; the answers of the writes, by name."""
    creates = [scene.create(name, f"key-{name}") for name in ("early-1", "early-2", "early-3")]
    command = hostler("vm", "create", "by-command", **scene.environ)
    *written, read, done = await asyncio.gather(*creates, scene.call("GET", f"{VMS}/web"), command)
    assert (read.status, read.problem) == (503, "unavailable")
    told = {f"early-{number}": answer for number, answer in enumerate(written, 1)}
    assert done.code in (5, 6), done
    assert done.code == 5 or "may be written" in done.err, done
    scene.by_command = done.code
    return told


async def _reads_are_old_and_say_so(scene: Scene) -> None:
    paths = (f"{VMS}/web", VMS, "/v1/vms", "/v1/nodes", "/v1/nodes/local-1")
    plain = await asyncio.gather(*(scene.call("GET", path) for path in paths))
    for answer in plain:
        assert (answer.status, answer.problem) == (503, "unavailable"), answer
        assert answer.headers["Retry-After"]
    for path in paths:
        old = await scene.call("GET", f"{path}?stale=true")
        assert old.status == 200, path
        assert float(old.headers["Hostler-Stale"]) > 0, path
    old = await scene.call("GET", f"{VMS}/web?stale=true")
    assert old.body["name"] == "web"


async def _age(scene: Scene) -> float:
    return float((await scene.call("GET", f"{VMS}/web?stale=true")).headers["Hostler-Stale"])


async def _writes_are_refused(scene: Scene) -> dict[str, Answer]:
    late = {f"late-{number}": await scene.create(f"late-{number}", f"key-late-{number}") for number in (1, 2)}
    others = [
        await scene.call("PATCH", f"{VMS}/web", {"cpus": 2}),
        *[await scene.call("POST", f"{VMS}/web/{verb}") for verb in ("start", "stop", "reset")],
        await scene.call("POST", f"{VMS}/web/snapshot", {"name": "s"}),
        await scene.call("DELETE", f"{VMS}/web"),
        await scene.call("POST", "/v1/nodes/local-1/drain", {}),
        await scene.call("PUT", "/v1/orgs/default/projects/default/quota", {"vms": 1}),
        await scene.call("POST", "/v1/users", {"name": "eve"}),
    ]
    for answer in (*late.values(), *others):
        assert (answer.status, answer.problem) == (503, "unavailable"), answer
        assert answer.headers["Retry-After"]
        assert "nothing was written" in answer.body["title"]
    return late


async def _commands_say_so(scene: Scene) -> None:
    listed, shown, nodes, refused = await asyncio.gather(
        well("vm", "list", "-o", "json", **scene.environ),
        well("vm", "show", "web", "-o", "json", **scene.environ),
        well("node", "list", **scene.environ),
        hostler("vm", "stop", "web", **scene.environ),
    )
    for done in (listed, shown, nodes):
        assert "note: the store is unreachable; this is the state of " in done.err
        assert "state of 0 s ago" not in done.err
    assert {"web", "db"} <= {view["name"] for view in listed.json}
    assert shown.json["name"] == "web"
    assert refused.code == 5, refused
    what, advice = refused.err.splitlines()
    assert what.startswith("hostler: store: out of reach")
    assert "nothing was written" in advice


async def _promises_were_kept(scene: Scene, told: dict[str, Answer]) -> None:
    """What was certainly not written is not there; whatever is repeated with its key is there once."""
    page = await scene.call("GET", VMS)
    there = {view["name"] for view in page.body["items"]}
    for name, answer in told.items():
        assert answer.status == 503
        assert answer.problem in ("unavailable", "uncertain")
        if answer.problem == "unavailable":
            safe(name not in there, f"{name} was made, though it was told: {answer}")
    ids: dict[str, set[str]] = {name: set() for name in told}
    for name, _ in itertools.product(told, range(2)):
        again = await scene.create(name, f"key-{name}")
        assert again.status == 201, again
        ids[name].add(again.body["id"])
    assert {name: len(found) for name, found in ids.items()} == dict.fromkeys(told, 1)
    page = await scene.call("GET", VMS)
    names = [view["name"] for view in page.body["items"]]
    if scene.by_command == 6 and "by-command" in names:
        names.remove("by-command")
    assert sorted(names) == sorted(["web", "db", *told])


async def test_a_machine_that_is_to_be_fenced_stops_in_time_and_comes_back(scene: Scene) -> None:
    await well("vm", "create", "web", "--wait", **scene.environ)
    await well("vm", "create", "kept", "--on-node-loss", "fence", "--wait", **scene.environ)
    views = await scene.settled()
    kept, web = views["kept"]["id"], views["web"]["id"]
    ran = scene.ran()
    scene.etcd.suspend()
    began = time.monotonic()
    try:
        end = await scene.until_last_end(kept, lambda end: end is not None)
        assert end is not None
        safe(end - began <= FENCING_TIME, "it ran longer without the store than it promised", ran=scene.ran())
        assert scene.ran()[web] == ran[web]
    finally:
        scene.etcd.resume()
    await scene.until_last_end(kept, lambda end: end is None)
    await scene.answers("/readyz", 200)
    assert (await scene.settled())["kept"]["phase"] == "running"
    spans = scene.ran()
    assert spans[web] == ran[web]
    assert [end is None for _, end in spans[kept]] == [False, True]
