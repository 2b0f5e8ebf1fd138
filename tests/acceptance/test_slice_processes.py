"""Slices as processes: started, called, stopped, crashed, adopted."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from slicing import TOKENS, Caller, call, make_wheel, publish

from hostler.drivers.artifacts.folder import FolderArtifacts
from hostler.drivers.artifacts.wheel import describe_wheel
from hostler.drivers.privileges import users_here
from hostler.drivers.slices.process.driver import ProcessSlices, SliceOptions
from hostler.errors import Conflict, NotFound, Refused
from hostler.model.deployment import SliceSettings
from hostler.ports.calls import Failed, Fault
from hostler.ports.slices import ArtifactInfo, Life, Run, Running

GREET = """
    import os, sys, time
    from hostler.slices import context, method

    started = []

    def start():
        started.append("started")

    def stop():
        print("stopped", flush=True)

    @method(idempotent=True)
    async def greet(name: str, times: int = 1) -> str:
        return ("hello " + name) * times

    @method
    def where() -> dict:
        c = context()
        return {"artifact": c.artifact, "instance": c.instance, "node": c.node, "pid": os.getpid(), "uid": os.getuid(),
                "started": started, "colour": os.environ.get("COLOUR", ""), "argv": sys.argv}

    @method
    async def die(code: int) -> None:
        print("about to die", flush=True)
        os._exit(code)

    @method
    def count(to: int):
        yield from range(to)

    @method
    def take(mib: int) -> int:
        return len(bytearray(mib * 1024 * 1024))

    @method
    def nap(seconds: float) -> None:
        print("napping", flush=True)
        time.sleep(seconds)

    @method
    async def block(seconds: float) -> None:
        time.sleep(seconds)
"""
V1, V2 = "shop:greet:1.0", "shop:greet:2.0"


def run_of(artifact: str = V1, instance: int = 1, **settings: Any) -> Run:
    return Run(artifact=artifact, instance=instance, settings=SliceSettings(**settings))


@asynccontextmanager
async def opened(root: Path, artifacts: Any, **options: Any) -> AsyncIterator[ProcessSlices]:
    async with ProcessSlices(root / "slices", artifacts, SliceOptions(node="blade-1", **options)) as slices:
        slices.admit(TOKENS)
        yield slices


async def until(holds: Callable[[], Awaitable[bool] | bool], within: float = 60.0) -> None:
    async with asyncio.timeout(within):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.02)


async def only(slices: ProcessSlices) -> Running:
    (running,) = await slices.list()
    return running


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def test_an_instance_is_loaded_activated_called_stopped_and_unloaded(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, V1, GREET)
    secret = "sesame-open"
    async with opened(tmp_path, artifacts) as slices:
        run = run_of(environment={"COLOUR": secret})
        loaded = await slices.load(run)
        assert (loaded.life, loaded.address) == (Life.LOADED, "")
        assert await slices.load(run) == loaded  # nothing more to do
        active = await slices.activate(run)
        assert active.life is Life.ACTIVE
        assert {one.name: (one.idempotent, one.streams) for one in active.methods}["greet"] == (True, False)
        assert {one.name for one in active.methods if one.streams} == {"count"}
        assert await call(active.address, "greet", name="you", times=2) == "hello youhello you"
        assert await call(active.address, "count", to=3) == [0, 1, 2]
        found = await call(active.address, "where")
        assert (found["artifact"], found["instance"], found["node"]) == (V1, 1, "blade-1")
        assert (found["started"], found["colour"]) == (["started"], secret)
        for file in ("cmdline", "environ"):
            assert secret.encode() not in Path(f"/proc/{found['pid']}/{file}").read_bytes()
        for path in (tmp_path / "slices").rglob("*.json"):
            assert secret not in path.read_text()
        caller = await Caller.connect(active.address)
        stopped = await slices.deactivate(run, grace=1)
        assert (stopped.life, stopped.address) == (Life.LOADED, "")
        refused = await caller.call("greet", name="you")
        assert isinstance(refused, Failed)
        assert refused.fault is Fault.REFUSED
        assert (await slices.activate(run)).life is Life.ACTIVE  # again, in the same process
        assert (await call(active.address, "where"))["pid"] == found["pid"]
        await slices.unload(run)
        assert await slices.list() == []
        assert not is_alive(found["pid"])
        await slices.unload(run)
        assert list((tmp_path / "slices/runs").iterdir()) == []
        assert [path.name for path in (tmp_path / "slices/artifacts").iterdir()] == ["names"]
        assert "stopped" in next((tmp_path / "slices/logs").glob("*.log")).read_text()


async def test_two_versions_run_side_by_side_and_a_crash_takes_down_one_process(tmp_path: Path) -> None:
    await publish(tmp_path, V1, GREET)
    artifacts = await publish(tmp_path, V2, GREET.replace("hello", "good day"))
    async with opened(tmp_path, artifacts) as slices:
        news: list[str] = []
        slices.listen(news.append)
        runs = run_of(V1, 1), run_of(V1, 2), run_of(V2, 1)
        one, two, other = await asyncio.gather(*(slices.activate(run) for run in runs))
        assert await call(two.address, "greet", name="you") == "hello you"
        assert await call(other.address, "greet", name="you") == "good day you"
        caller = await Caller.connect(one.address)
        with pytest.raises((OSError, AssertionError)):
            assert await caller.call("die", code=7) is not None
        await until(lambda: news == [runs[0].id])
        lives = {running.run.id: running for running in await slices.list()}
        assert [lives[run.id].life for run in runs] == [Life.ENDED, Life.ACTIVE, Life.ACTIVE]
        assert "exit code 7" in lives[runs[0].id].detail
        assert "about to die" in lives[runs[0].id].detail
        assert await call(other.address, "greet", name="you") == "good day you"
        again = await slices.activate(runs[0])  # loads it anew
        assert await call(again.address, "greet", name="me") == "hello me"


MARKED = "from hostler.slices import method\n@method\ndef f(): ..."
BROKEN = {
    "import": (f"import nonsense_that_is_not_there\n{MARKED}", "No module named 'nonsense_that_is_not_there'"),
    "empty": (f"{MARKED}\ndel f", "it has no methods"),
    "exits": (f"import os; os._exit(3)\n{MARKED}", "exit code 3"),
    "quits": (f"{MARKED}\nraise SystemExit(4)", "SystemExit"),
    "args": ("from hostler.slices import method\n@method\ndef f(*a): ...", "takes *a"),
}


async def test_what_cannot_be_a_slice_is_refused_with_its_reason_and_leaves_nothing(tmp_path: Path) -> None:
    artifacts = None
    for name, (source, _) in BROKEN.items():
        artifacts = await publish(tmp_path, f"bad:{name}:1", source)
    async with opened(tmp_path, artifacts) as slices:

        async def refusal(name: str) -> str:
            with pytest.raises(Refused) as refused:
                await slices.load(run_of(f"bad:{name}:1"))
            return str(refused.value)

        said = await asyncio.gather(*map(refusal, BROKEN))
        for (name, (_, expected)), found in zip(BROKEN.items(), said, strict=True):
            assert f"bad:{name}:1#1" in found
            assert expected in found
        with pytest.raises(NotFound, match="bad:missing:1"):
            await slices.load(run_of("bad:missing:1"))
        assert await slices.list() == []
        assert list((tmp_path / "slices/runs").iterdir()) == []
        assert [path.name for path in (tmp_path / "slices/artifacts").iterdir()] == ["names"]


HOOKS = """
    import asyncio, os
    from pathlib import Path
    from hostler.slices import method

    async def start():
        do = os.environ["START"]
        if do == "raise":
            raise ValueError("no database")
        if do == "hang":
            await asyncio.sleep(3600)

    looks = 0

    def healthy():
        global looks
        looks += 1
        if os.environ["HEALTHY"] == "raise":
            raise OSError("disk is full")
        return os.environ["HEALTHY"] == "yes" or (os.environ["HEALTHY"] == "later" and looks > 2)

    def stop():
        if os.environ.get("STOP"):
            raise RuntimeError("will not")

    @method
    async def ping() -> str:
        return "pong"
"""


async def test_start_and_health_that_raise_or_hang(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, "a:hooks:1", HOOKS)
    async with opened(tmp_path, artifacts, healthy_within=3.0) as slices:

        def run(number: int, start: str, healthy: str, **more: str) -> Run:
            return run_of("a:hooks:1", number, environment={"START": start, "HEALTHY": healthy, **more})

        async def raising() -> None:
            with pytest.raises(Refused, match="start raised ValueError: no database"):
                await slices.activate(run(1, "raise", "yes"))
            assert {one.life for one in await slices.list() if one.run.instance == 1} == {Life.LOADED}

        async def hanging() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.5):
                    await slices.activate(run(2, "hang", "yes"))
            async with asyncio.timeout(20):
                await slices.unload(run(2, "hang", "yes"))
            assert 2 not in {one.run.instance for one in await slices.list()}

        async def unwell() -> None:
            with pytest.raises(Refused, match="not healthy: healthy raised OSError: disk is full, after 3 s"):
                await slices.activate(run(3, "fine", "raise"))

        async def later() -> None:
            active = await slices.activate(run(4, "fine", "later", STOP="1"))
            assert await call(active.address, "ping") == "pong"
            with pytest.raises(Refused, match="stop raised RuntimeError: will not"):
                await slices.deactivate(active.run, grace=0)

        await asyncio.gather(raising(), hanging(), unwell(), later())


async def test_calls_under_way_have_the_grace_and_then_end(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, V1, GREET)
    async with opened(tmp_path, artifacts) as slices:
        run = run_of()
        active = await slices.activate(run)
        short, long = await Caller.connect(active.address), await Caller.connect(active.address)
        answers = [
            asyncio.create_task(short.call("nap", seconds=0.3)),
            asyncio.create_task(long.call("nap", seconds=30)),
        ]
        (log,) = (tmp_path / "slices/logs").glob("*.log")
        await until(lambda: log.read_text().count("napping") == 2)
        assert (await slices.deactivate(run, grace=2)).life is Life.LOADED
        assert await answers[0] is None
        stopped = await answers[1]
        assert isinstance(stopped, Failed)
        assert stopped.error == "Stopped"


HOLDER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from slicing import TOKENS
from hostler.drivers.artifacts.folder import FolderArtifacts
from hostler.drivers.slices.process.driver import ProcessSlices, SliceOptions
from hostler.model.deployment import SliceSettings
from hostler.ports.slices import Run

async def main():
    root = Path({root!r})
    options = SliceOptions(node="blade-1")
    slices = ProcessSlices(root / "slices", FolderArtifacts(root / "repository"), options)
    await slices.open()
    slices.admit(TOKENS)
    settings = SliceSettings(environment={{"COLOUR": "red"}})
    run = Run(artifact="shop:greet:1.0", instance=1, template=4, settings=settings)
    print((await slices.activate(run)).address, flush=True)
    await slices.load(Run(artifact="shop:greet:1.0", instance=2))
    doomed = await slices.activate(Run(artifact="shop:greet:1.0", instance=3))
    print(doomed.address, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_what_an_agent_that_was_killed_left_running_is_adopted(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, V1, GREET)
    source = HOLDER.format(root=str(tmp_path), tests=str(Path(__file__).parent.parent))
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", source, stdout=asyncio.subprocess.PIPE)
    assert holder.stdout is not None
    address = (await holder.stdout.readline()).decode().strip()
    doomed = (await holder.stdout.readline()).decode().strip()
    before = await call(address, "where")
    with pytest.raises(Conflict, match="another process"):
        await ProcessSlices(tmp_path / "slices", artifacts).open()
    holder.kill()
    await holder.wait()
    assert await call(address, "greet", name="you") == "hello you"  # nobody is needed for that
    pid = (await call(doomed, "where"))["pid"]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not is_alive(pid))
    async with opened(tmp_path, artifacts) as slices:
        one, two, three = sorted(await slices.list(), key=lambda running: running.run.instance)
        assert (one.life, two.life, three.life) == (Life.ACTIVE, Life.LOADED, Life.ENDED)
        assert one.address == address
        assert (one.run.template, one.run.settings.environment) == (4, {"COLOUR": "red"})
        assert "while no agent was running" in three.detail
        assert (await slices.activate(one.run)).address == address  # as it is
        assert (await call(address, "where"))["pid"] == before["pid"]
        assert (await slices.activate(two.run)).life is Life.ACTIVE
        assert (await slices.activate(three.run)).life is Life.ACTIVE
    assert not is_alive(before["pid"])  # a clean end stops them
    assert list((tmp_path / "slices/runs").iterdir()) == []


async def test_a_worker_that_nobody_asks_ends_by_itself_and_one_that_hangs_counts_as_ended(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, V1, GREET)
    slices = ProcessSlices(
        tmp_path / "slices", artifacts, SliceOptions(orphaned_after=3.0, look_every=0.3, answers_within=3.5)
    )
    await slices.open()
    slices.admit(TOKENS)
    news: list[str] = []
    slices.listen(news.append)
    alone, stuck = await asyncio.gather(slices.activate(run_of(instance=1)), slices.activate(run_of(instance=2)))
    pid = (await call(alone.address, "where"))["pid"]
    caller = await Caller.connect(stuck.address)
    blocked = asyncio.create_task(caller.call("block", seconds=40))
    await until(lambda: news == [stuck.run.id])  # the other was asked all the time, for longer than it waits
    ended = next(running for running in await slices.list() if running.run == stuck.run)
    assert (ended.life, "has not answered" in ended.detail) == (Life.ENDED, True)
    blocked.cancel()
    assert is_alive(pid)
    await slices.unload(stuck.run)
    await slices.aclose(stop=False)
    await until(lambda: not is_alive(pid))
    os.waitpid(pid, 0)  # as whoever adopts orphans does


async def test_memory_is_limited_and_a_change_of_settings_is_another_process(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, V1, GREET)
    async with opened(tmp_path, artifacts) as slices:
        active = await slices.activate(run_of(memory_mib=200, cpus=0.5))
        assert "memory: 200 MiB by" in active.about
        assert "cpus: " in active.about
        pid = (await call(active.address, "where"))["pid"]
        assert await call(active.address, "take", mib=50) == 50 * 2**20
        if "by prlimit, for each of its processes" in active.about:  # a control group ends the process instead
            failed = await call(active.address, "take", mib=400)
            assert isinstance(failed, Failed)
            assert failed.error == "MemoryError"
        more = await slices.activate(Run(artifact=V1, instance=1, template=1))
        assert (await call(more.address, "where"))["pid"] != pid
        assert await call(more.address, "take", mib=400) == 400 * 2**20


SYSTEM = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")


def users_of_their_own() -> range:
    uids = users_here(None)
    if uids is None:
        pytest.fail("this test changes users: run it as root", pytrace=False)
    return uids


async def test_under_root_each_instance_has_a_user_of_its_own(tmp_path: Path) -> None:
    if not SYSTEM.exists():
        pytest.fail(f"{SYSTEM}: there is no Python that other users can run; install python3", pytrace=False)
    artifacts = await publish(tmp_path, V1, GREET)
    tmp_path.chmod(0o700)
    async with opened(tmp_path, artifacts, python=str(SYSTEM), uids=users_of_their_own()) as slices:
        one, two = await asyncio.gather(*(slices.activate(run_of(instance=number)) for number in (1, 2)))
        users = [(await call(running.address, "where"))["uid"] for running in (one, two)]
        assert 0 not in users
        assert len(set(users)) == 2
        for path in (tmp_path / "slices").rglob("*"):
            assert path.lstat().st_uid in (0, *users)
            assert path.name in ("work", "tmp") or path.lstat().st_uid == 0


@pytest.fixture
def hidden(tmp_path: Path) -> str:
    """A Python that other users cannot run."""
    folder = tmp_path / "hidden"
    folder.mkdir(mode=0o700)
    (folder / "python").symlink_to(sys.executable)
    return str(folder / "python")


def below(pid: int) -> list[int]:
    """A process and all that it started."""
    found = [pid]
    for one in found:
        found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


def rights_of(pid: int) -> tuple[int, int, int]:
    """The user, and all capabilities that it has or can get."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    said = dict(line.split(":", 1) for line in lines)
    sets = [int(said[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")]
    return int(said["Uid"].split()[0]), max(sets), int(said["NoNewPrivs"])


async def test_where_others_cannot_run_our_python_that_of_the_system_is_taken(tmp_path: Path, hidden: str) -> None:
    artifacts = await publish(tmp_path, V1, GREET)
    uids = users_of_their_own()
    async with opened(tmp_path, artifacts, python=hidden, uids=uids, users_required=True) as slices:
        active = await slices.activate(run_of())
        assert active.about == ""
        outer = slices.pid_of(active.run)
        assert outer is not None
        *_, worker = found = below(outer)
        assert len(found) == 3  # unshare, the first of its namespaces, and the worker
        uid, capabilities, no_new = rights_of(worker)
        assert (uid in uids, capabilities, no_new) == (True, 0, 1)


async def test_where_no_python_can_be_run_by_others_that_is_told_or_refused(
    tmp_path: Path, hidden: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hostler.drivers.slices.process.privileges._SYSTEM", "/usr/bin/python-that-is-not-there")
    artifacts = await publish(tmp_path, V1, GREET)
    async with opened(tmp_path, artifacts, python=hidden, uids=users_of_their_own()) as slices:
        for number in (1, 2):
            loaded = await slices.load(run_of(instance=number))
            assert "it runs as the agent does, without capabilities: other users can run neither" in loaded.about
        pid = slices.pid_of(loaded.run)
        assert pid is not None
        assert rights_of(pid) == (0, 0, 1)
    assert [record.levelname for record in caplog.records if "they run as the agent does" in record.message] == [
        "WARNING"
    ]
    more = {"python": hidden, "uids": users_of_their_own(), "users_required": True}
    async with opened(tmp_path, artifacts, **more) as slices:
        with pytest.raises(Refused, match=r"needs a separate user, but other users can run neither .*; install"):
            await slices.load(run_of())
        assert await slices.list() == []
    async with opened(tmp_path, artifacts, users_required=True) as slices:
        with pytest.raises(Refused, match="users cannot be changed here"):
            await slices.load(run_of())


class Lying:
    """A repository whose files are not what it says."""

    def __init__(self, artifacts: FolderArtifacts) -> None:
        self._artifacts = artifacts

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        info = await self._artifacts.fetch(artifact, to)
        with (to / info.file).open("a") as file:
            file.write("\n")
        return info


async def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, V1, GREET)
    async with opened(tmp_path, Lying(artifacts)) as slices:
        with pytest.raises(Refused, match="SHA-256"):
            await slices.load(run_of())
        assert await slices.list() == []


async def test_a_wheel_with_requirements(tmp_path: Path) -> None:
    needs = """
        from hostler.slices import method
        import spice

        @method
        async def taste() -> str:
            return spice.TASTE
    """
    artifacts = FolderArtifacts(tmp_path / "repository")
    wheel = make_wheel(tmp_path / "made", "stew", "1.0", needs, ("spice>=2", "msgspec"))
    await artifacts.publish(describe_wheel(wheel, "kitchen:stew:1.0"), wheel)
    odd = make_wheel(tmp_path / "made", "odd", "1.0", needs)
    elsewhere = msgspec.structs.replace(describe_wheel(odd, "kitchen:odd:1.0"), requires=("spice @ file:///tmp/spice",))
    await artifacts.publish(elsewhere, odd)
    shelf = tmp_path / "shelf"
    make_wheel(shelf, "spice", "2.1", "TASTE = 'hot'")
    make_wheel(shelf, "spice", "1.0", "TASTE = 'mild'")
    run = run_of("kitchen:stew:1.0")
    async with opened(tmp_path, artifacts) as slices:
        with pytest.raises(Refused, match=r"requires spice>=2, msgspec.*set slice_packages"):
            await slices.load(run)
        with pytest.raises(Refused, match="is not a package name"):
            await slices.load(run_of("kitchen:odd:1.0"))
    await asyncio.to_thread(make_wheel, shelf, "msgspec", "99.0", "")
    async with opened(tmp_path, artifacts, packages=str(shelf)) as slices:
        active = await slices.activate(run)
        assert await call(active.address, "taste") == "hot"
    assert msgspec.__version__ != "99.0"
