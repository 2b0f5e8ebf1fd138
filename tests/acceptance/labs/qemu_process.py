"""A front end, Redis and `hostler up` with real guests, alone in a network of their own.

python qemu_process.py FOLDER

Run it inside `unshare --net --mount --pid`: all that it makes ends with it. The last line it prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncssh
from guests import KEY, KEYS
from harness.pace import check, patience
from labman import LabMan, Server
from real_plane import RealPlane, working_below
from terminal_guest import Browser
from up_process import HostlerProcess
from warm_image import CPUS, FOLDER, MEMORY_MIB

from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.model.lab import utc_time
from hostler.testing.servers import find_binary
from hostler.testing.ttl_servers import RedisServer

PATIENCE = patience(20.0)
"""For what a quiet machine does in some seconds."""
WARM, COLD = 5, 7
WITHOUT = ("--inh-caps=-net_admin", "--bounding-set=-net_admin")


def catalogue(*, warm: int) -> str:
    """One lab whose guests go on from a saved state, and one whose guests have to boot."""
    return f"""
        [default]
        image = "tiny"
        cpus = {CPUS}
        memory = "{MEMORY_MIB}M"
        provider = "qemu"
        ssh_keys = {json.dumps(KEYS)}
        [labs.{WARM}]
        warm = {warm}
        [labs.{COLD}]
        memory = "{MEMORY_MIB + 8}M"
    """


class Student:
    """Logs in as a front end does, and remembers when and what it saw there."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.hosts: list[str] = []

    async def __call__(self, user: str, address: str) -> None:
        self.at.append(time.monotonic())
        async with (
            asyncio.timeout(PATIENCE),
            asyncssh.connect(
                address,
                22,
                username=user,
                client_keys=[KEY],
                known_hosts=None,
                server_host_key_algs=["ssh-ed25519"],
                config=None,
                agent_path=None,
            ) as connection,
        ):
            name, host = str((await connection.run("id -un; hostname", check=True)).stdout).split()
        assert name == user == "student"
        self.hosts.append(host)


class Labs(RealPlane):
    """`hostler up` with a Redis."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        super().__init__(folder, ImageFolder(FOLDER))
        self.toml = folder / "labs.toml"
        self.environ |= {"HOSTLER_REDIS": redis.url, "HOSTLER_LABS": str(self.toml)}

    @asynccontextmanager
    async def running(self, toml: str, *before: str) -> AsyncIterator[HostlerProcess]:
        """It, until this is left."""
        self.toml.write_text(toml)
        arguments = ("up", "--machines", "qemu", "--listen", "127.0.0.1:0")
        self.up = up = HostlerProcess(*arguments, folder=self.folder, environ=self.environ, before=before)
        try:
            await up.says("ready http", PATIENCE)
            yield up
            await self.stop()
            assert "Traceback" not in up.text, up.text
        except BaseException:
            print(up.text, *(log.read_text()[-8000:] for log in self.data.glob("log/hostler.log")), flush=True)
            raise
        finally:
            up.kill()

    async def ready_ahead(self, number: int) -> list[str]:
        """The ids of the machines that wait for somebody, once there are so many and all can be logged into."""

        async def found() -> list[str] | None:
            async with self.client() as client:
                views = [view async for view in client.vms.list("labs-pool", str(WARM))]
            return (
                [view.id for view in views] if len(views) == number and all(view.available for view in views) else None
            )

        return await until(found)

    def machines(self) -> tuple[int, list[str]]:
        """Processes of guests, and the folders of machines."""
        return len(working_below(self.data)), sorted(path.name for path in self.data.glob("machines/*/vms/*"))

    @asynccontextmanager
    async def terminal(self, user: str) -> AsyncIterator[Browser]:
        """A page with the lab's terminal, until it is left."""
        assert self.up is not None
        url, token = await self.up.url(), (self.data / "admin.token").read_text(encoding="ascii").strip()
        async with (
            aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
            session.ws_connect(f"{url}/v1/labs/{user}/terminal") as socket,
        ):
            yield Browser(socket, patience=PATIENCE)


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    """What it finds, once that is not None."""
    async with asyncio.timeout(PATIENCE):
        while (found := await look()) is None:
            await asyncio.sleep(0.05)
    return found


async def claimed(labman: LabMan, labs: Labs, user: str) -> Server:
    """A first lab that was ready ahead: it can be logged into at once."""
    (ahead,) = await labs.ready_ahead(1)
    student, begun = Student(), time.monotonic()
    found = await labman.first_time(user, WARM, student)
    assert student.hosts[0].startswith("warm-"), student.hosts
    async with labs.client() as client:
        lab = await client.labs.get(user)
        vm = await client.vms.get("labs", user, ahead)
    assert lab.vm == ahead
    assert lab.expires_at is not None
    assert found == {
        "user": "student",
        "address": vm.address,
        "status": "running",
        "available": True,
        "cloudStatus": "running",
        "serverId": lab.server_id,
        "expiresAt": utc_time(lab.expires_at),
        "webUserId": user,
        "labId": WARM,
    }
    check(student.at[0] - begun, 0.5, since=begun, what="a lab that was ready ahead")
    return found


async def in_the_browser(labs: Labs, user: str) -> None:
    """A shell that is typed into, left and found again."""
    async with labs.terminal(user) as page:
        await page.until(kind="connected")
        await page.type("kept=still-$((40+1))\r")
        await page.type("echo hello-$((40+2))\r")
        await page.until(said="hello-42")
    # Meanwhile, for long enough that a shell which ends with its connection is gone:
    said = await labs.cli("lab", "ssh", user, "--", "id", "-un")
    assert said.out == "student\n"
    await labs.cli("lab", "ssh", user, "--", "exit 7", code=7)
    async with labs.terminal(user) as page:
        await page.until(kind="connected")
        await page.type("echo $kept $(id -un)\r")
        await page.until(said="still-41 student")


async def goes_while_it_is_made(labman: LabMan, user: str) -> None:
    """A machine that boots is ended, and nothing comes of it later."""
    await labman.ask(user, COLD)
    found = await labman.until(user, lambda found: found is not None and found["status"] == "running")
    assert found is not None
    assert not found["available"], found
    await labman.ask_to_end(user, COLD)
    await labman.gone(user)


async def again_while_it_stops(labman: LabMan, user: str) -> None:
    before = await labman.server(user)
    assert before is not None
    await labman.ask_to_end(user, WARM)
    await labman.until(user, lambda found: found is None or found["status"] == "stopping")
    await labman.ask(user, WARM)
    found = await labman.until(user, lambda found: found is not None and found["available"])
    assert found is not None
    assert (found["labId"], found["serverId"] == before["serverId"]) == (WARM, False)
    await Student()(found["user"], found["address"])


async def with_a_bridge(labman: LabMan, labs: Labs) -> None:
    """The scenarios, on machines that were ready ahead and on ones that had to boot."""
    student = Student()
    async with labs.running(catalogue(warm=1)) as up:
        assert "labs from redis" in up.text
        first = await claimed(labman, labs, "ada")
        assert await labman.reconnect("ada", WARM, student) == first
        second = await claimed(labman, labs, "bob")
        assert len({first["serverId"], second["serverId"], first["address"], second["address"]}) == 4
        await in_the_browser(labs, "bob")
        cold = await labman.switch("ada", WARM, COLD, student)
        assert student.hosts[-1] == f"lab-{COLD}-2", "its second lab"
        assert cold["cloudStatus"] == "running"
        await again_while_it_stops(labman, "bob")
        await labman.disconnect_and_time_out("ada", COLD)
        await goes_while_it_is_made(labman, "cyd")
        await labman.ask_to_end("bob", None)
        await labman.gone("bob")
        ahead = await labs.ready_ahead(1)
        assert labs.machines() == (1, ahead)
    async with labs.running(catalogue(warm=0)):
        await until(lambda: none_left(labs))


async def none_left(labs: Labs) -> bool | None:
    return labs.machines() == (0, []) or None


async def without_a_bridge(labs: Labs) -> str:
    """What is said of the door; labs are taken elsewhere, and logged into through a port of the host."""
    async with labs.running(catalogue(warm=0), find_binary("setpriv"), *WITHOUT) as up:
        (why,) = (line for line in up.text.splitlines() if "Redis" in line)
        await labs.cli("lab", "start", "eve", WARM, "--wait")
        assert (await labs.cli("lab", "ssh", "eve", "--", "id", "-un")).out == "student\n"
        await labs.cli("lab", "stop", "eve", "--wait")
        assert labs.machines() == (0, [])
        return why


async def main(folder: Path) -> dict[str, object]:
    subprocess.run([find_binary("ip"), "link", "set", "lo", "up"], check=True)
    with RedisServer() as redis:
        async with LabMan(redis.url, patience=PATIENCE) as labman:
            await with_a_bridge(labman, Labs(folder / "bridge", redis))
            await labman.ask("eve", WARM)  # of whom nobody takes it
            refused = await without_a_bridge(Labs(folder / "none", redis))
            return {"refused": refused, "left in the queue": await labman.redis.llen("vmmanager:provision")}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
