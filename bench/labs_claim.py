"""Claims of pre-started labs on real guests: from a request in Redis until its record is `available`.

Lab guests are on a bridge. So everything, including a Redis, runs in a separate network namespace that ends with it:
`unshare … python -m bench.labs_claim FOLDER CLAIMS`. The last line that it prints is the result.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench.child import child_environ
from bench.labs_worker import at_work
from bench.machines_plane import MEMORY_MIB, TINY, have_image, kill_below
from bench.plane_http import until
from bench.report import Row
from hostler.client import Client
from hostler.errors import Conflict, Unavailable
from hostler.keys.lab import LabNames
from hostler.model.lab import ORG, POOL_ORG, LabDecommission, LabRequest, LabServer
from hostler.settings import load
from hostler.wiring import open_images

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

from bench.labs_worker import Crew

WANTED = 1
LAB_ID, WARM = 5, 2
PORT = 6379
LOOK = 0.005
PATIENCE = 180.0
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
TOOLS = ("qemu-system-x86_64", "redis-server", "unshare", "ip")
NAMES = LabNames()


def refusal() -> str:
    """Return why the benchmark cannot run here; empty: it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not measured: {', '.join(missing)} not installed"
    tried = subprocess.run([*_unshare(), "true"], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = tried.stderr.strip().partition("\n")[0]
    return f"not measured: cannot create a network namespace here ({said}); run as root" if tried.returncode else ""


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *NAMESPACES, *user]


async def measure(folder: Path, images: Path | None, claims: int, tell: Callable[[str], None]) -> list[Row]:
    """Claim labs one after another from a pool of two. The state of the booted tiny guest is saved first."""
    data = folder / "claim"
    data.mkdir(mode=0o700)
    await have_image(data / "images", images, tell)
    settings = load({"data": str(data), "machines": "qemu"}, {**os.environ, "HOSTLER_CONFIG": os.devnull})
    warmed = open_images(data / "images", settings=settings)
    await warmed.warm(TINY, cpus=1, memory_mib=MEMORY_MIB, progress=lambda what, *_: tell(f"warm: {what}"))
    tell(f"{claims} claims")
    process = await asyncio.create_subprocess_exec(
        *(*_unshare(), sys.executable, "-m", __name__, str(data), str(claims)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=child_environ(),
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        kill_below(data)
    if process.returncode:
        raise Unavailable(f"bench: labs on QEMU: {output.decode(errors='replace')[-1000:]}")
    return rows(msgspec.json.decode(output.splitlines()[-1], type=list[float]))


def rows(seconds: Sequence[float]) -> list[Row]:
    """Return the rows of the claims."""
    ordered = sorted(seconds)
    p95 = ordered[max(0, -(-len(ordered) * 95 // 100) - 1)]
    return [
        Row(what=f"{len(ordered)} warm claims on QEMU: p95", found=p95, unit="s", wanted=WANTED, at_most=True),
        Row(what="… p50", found=ordered[len(ordered) // 2], unit="s"),
        Row(what="… the slowest", found=ordered[-1], unit="s"),
    ]


# Internal


async def _claims(data: Path, count: int) -> list[float]:
    from redis.asyncio import Redis

    toml = data / "labs.toml"
    toml.write_text(f'[default]\nimage = "{TINY}"\nmemory = "{MEMORY_MIB}M"\n[labs.{LAB_ID}]\nwarm = {WARM}\n')
    url = f"redis://127.0.0.1:{PORT}/0"
    environ = {
        "HOSTLER_CONFIG": os.devnull,
        "HOSTLER_DATA": str(data),
        "HOSTLER_REDIS": url,
        "HOSTLER_LABS": str(toml),
        "HOSTLER_CPU_OVERCOMMIT": "100",
    }
    up = [sys.executable, "-m", "hostler", "up", "--machines", "qemu", "--listen", "127.0.0.1:0"]
    async with (
        _redis(data),
        Redis.from_url(url) as redis,
        at_work([*up, "--log-level", "warning"], environ, data) as crew,
    ):
        await until("Redis", lambda: _answers(redis), PATIENCE)
        await until("hostler up", lambda: _said(crew, "ready http"), PATIENCE)
        address = crew.output().partition("ready ")[2].split()[0]
        token = (data / "admin.token").read_text(encoding="ascii").strip()
        async with Client(address, token) as client:
            return [await _claim(redis, client, crew) for _ in range(count)]


async def _claim(redis: Any, client: Client, crew: Crew) -> float:
    """Measure one lab, from its request until it is available; stop it afterwards."""
    ahead: set[str] = set()

    async def ready() -> bool:
        crew.check()
        views = [view async for view in client.vms.list(POOL_ORG, str(LAB_ID))]
        ahead.clear()
        ahead.update(view.id for view in views if view.available)
        return len(ahead) == WARM

    await until("machines that are ready ahead", ready, PATIENCE)
    user = str(uuid.uuid4())
    began = time.perf_counter()
    await redis.rpush(NAMES.provision, LabRequest(webuserid=user, lab_id=LAB_ID).encode())
    while True:
        value = await redis.get(NAMES.server(user))
        if value is not None and LabServer.decode(value).available:
            break
        if time.perf_counter() - began > PATIENCE:
            raise Unavailable(f"lab of {user}: not available within {PATIENCE:g} s: {crew.output()[-500:]}")
        await asyncio.sleep(LOOK)
    took = time.perf_counter() - began
    if not ahead.issuperset([view.id async for view in client.vms.list(ORG, user)]):
        raise Conflict(f"lab of {user}: its machine was not one of the pre-started ones")
    await redis.rpush(NAMES.decommission, LabDecommission(webuserid=user, lab_id=LAB_ID).encode())

    async def gone() -> bool:
        return not await redis.exists(NAMES.server(user))

    await until("the end of a lab", gone, PATIENCE)
    return took


@asynccontextmanager
async def _redis(folder: Path) -> AsyncIterator[None]:
    place = folder / "redis"
    place.mkdir()
    options = ["--port", str(PORT), "--bind", "127.0.0.1", "--dir", str(place), "--save", ""]
    async with at_work(["redis-server", *options], {}, place):
        yield


async def _answers(redis: Any) -> bool:
    from redis.exceptions import RedisError

    with suppress(RedisError, OSError):
        return bool(await redis.ping())
    return False


async def _said(crew: Crew, text: str) -> bool:
    crew.check()
    return text in crew.output()


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    found = asyncio.run(_claims(Path(sys.argv[1]), int(sys.argv[2])))
    print(json.dumps(found))
