"""What a slice may do to its node: print without end, hang, leave processes. And a gateway that will not open."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from harness import pace
from slicing import TOKENS, call, publish
from test_slice_processes import SYSTEM, below, is_alive, only, opened, run_of, until, users_of_their_own

import hostler
from hostler.drivers.slices.process.driver import ProcessSlices, SliceOptions
from hostler.drivers.slices.process.instance import Instance
from hostler.errors import Refused, Unavailable
from hostler.ports.calls import Failed
from hostler.ports.slices import Life
from hostler.ports.worker_protocol import MAX_LOG
from hostler.testing import servers

NAME = "bad:harm:1"
HARM = """
    import os, subprocess, sys, time
    from hostler.slices import method

    def stop():
        if os.environ.get("STOP") == "hang":
            time.sleep(1000)

    @method
    def spam(mib: int) -> int:
        for _ in range(mib * 16):
            print("x" * 65535)
        print("that was all", flush=True)
        subprocess.run(["sh", "-c", "echo so says another"], check=True)
        return os.getpid()

    @method
    def leave() -> list[int]:
        same = subprocess.Popen(["/bin/sleep", "1000"], env={})
        other = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"], start_new_session=True,
                                 stdout=subprocess.PIPE)
        return [same.pid, other.pid, int(other.stdout.readline())]

    @method
    async def die() -> None:
        print("about to die", flush=True)
        os._exit(3)

    @method
    def fail() -> None:
        raise RuntimeError("on purpose")
"""


def size_of_logs(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "slices/logs").iterdir())


async def test_what_it_prints_never_takes_more_than_its_share_of_the_disk(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, NAME, HARM)
    async with opened(tmp_path, artifacts, look_every=3600) as slices:
        active = await slices.activate(run_of(NAME))
        spamming, most = asyncio.create_task(call(active.address, "spam", mib=40)), 0
        while not spamming.done():
            most = max(most, size_of_logs(tmp_path))
            await asyncio.sleep(0.005)
        assert isinstance(await spamming, int)
        most = max(most, size_of_logs(tmp_path))
        assert MAX_LOG < most <= 2 * MAX_LOG
        log = next((tmp_path / "slices/logs").glob("*.log"))
        await until(lambda: log.read_bytes().endswith(b"that was all\nso says another\n"))
        await call(active.address, "die")
        async with asyncio.timeout(60):
            while (ended := await only(slices)).life is not Life.ENDED:
                await asyncio.sleep(0.02)
        assert ended.detail.endswith("its last words: about to die")


async def test_a_stop_that_hangs_does_not_keep_the_agent_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.drivers.slices.process.driver.STOPS_WITHIN", 0.1)
    monkeypatch.setattr("hostler.drivers.slices.process.instance.STOPS_WITHIN", 0.3)
    artifacts = await publish(tmp_path, NAME, HARM)
    hanging = {"STOP": "hang"}
    async with asyncio.timeout(100):
        async with opened(tmp_path, artifacts) as slices:
            runs = [run_of(NAME, number, environment=hanging) for number in (1, 2)]
            await asyncio.gather(*map(slices.activate, runs))
            pids = [slices.pid_of(run) for run in runs]
            with pytest.raises(Refused, match=r"stop has not ended within 0.3 s"):
                await slices.deactivate(runs[0], grace=0)
            ended = next(one for one in await slices.list() if one.run == runs[0])
            assert (ended.life, ended.detail) == (Life.ENDED, "stop has not ended within 0.3 s")
            begun_at = time.monotonic()
        pace.check(time.monotonic() - begun_at, 2.0, since=begun_at, what="the end of the agent")
    assert not any(pid is None or is_alive(pid) for pid in pids)
    assert list((tmp_path / "slices/runs").iterdir()) == []


async def test_one_who_holds_an_instances_turn_does_not_keep_the_agent_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.drivers.slices.process.driver.ALL_STOPPED_WITHIN", 0.3)
    artifacts = await publish(tmp_path, NAME, HARM)
    async with asyncio.timeout(100):
        async with opened(tmp_path, artifacts) as slices:
            active = await slices.activate(run_of(NAME, environment={"STOP": "hang"}))
            pid = slices.pid_of(active.run)
            stopping = asyncio.create_task(slices.deactivate(active.run, grace=1000))
            await asyncio.sleep(0.1)
        assert pid is not None
        assert not is_alive(pid)
        with pytest.raises(Refused):
            await stopping


@pytest.mark.parametrize("ends", ["crash", "unload", "adopted"])
async def test_no_process_that_it_started_outlives_it(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = await publish(tmp_path, NAME, HARM)
    slices = ProcessSlices(tmp_path / "slices", artifacts)
    await slices.open()
    slices.admit(TOKENS)
    active = await slices.activate(run_of(NAME))
    pid = slices.pid_of(active.run)
    assert pid is not None
    left = await call(active.address, "leave")
    alive = [is_alive(one) for one in left]
    if ends == "adopted":
        await slices.aclose(stop=False)
        monkeypatch.setattr("hostler.drivers.slices.process.process._children", set())  # as if another had started it
        slices = ProcessSlices(tmp_path / "slices", artifacts)
        await slices.open()
    if ends == "unload":
        await slices.unload(active.run)
    else:
        os.kill(pid, signal.SIGKILL)
        await until(lambda: slices.pid_of(active.run) is None)
        await slices.load(active.run)
    try:
        assert alive == [True] * 3
        await until(lambda: not any(map(is_alive, left)))
    finally:
        for one in left:
            if is_alive(one):
                os.kill(one, signal.SIGKILL)
        await slices.aclose()
        if ends == "adopted":
            os.waitpid(pid, 0)


async def test_one_that_does_not_answer_keeps_nobody_else_from_being_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = await publish(tmp_path, NAME, HARM)
    looks = {1: 0, 2: 0}
    look = Instance.look

    async def counted(one: Instance, *limits: Any) -> None:
        looks[one.run.instance] += 1
        await look(one, *limits)

    monkeypatch.setattr(Instance, "look", counted)
    async with opened(tmp_path, artifacts, look_every=0.05, answers_within=3600) as slices:
        runs = [run_of(NAME, number) for number in looks]
        await asyncio.gather(*map(slices.load, runs))
        pid = slices.pid_of(runs[0])
        assert pid is not None
        servers.suspend(pid)
        try:
            stuck, asked = looks[1], looks[2]
            await until(lambda: looks[2] > asked + 3)
            assert looks[1] <= stuck + 1  # it is not asked again before it has answered
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_tracebacks_name_files_by_which_they_are_found(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, NAME, HARM)
    async with opened(tmp_path, artifacts, python=str(SYSTEM), uids=users_of_their_own()) as slices:
        active = await slices.activate(run_of(NAME))
        assert active.about == ""  # or it would not be another user
        assert isinstance(await call(active.address, "fail"), Failed)
        log = next((tmp_path / "slices/logs").glob("*.log"))
        await until(lambda: "on purpose" in log.read_text())
        said = log.read_text()
        (file,) = (tmp_path / "slices/artifacts").glob("*/lib/harm.py")
        assert f'File "{file}", line' in said
        assert 'raise RuntimeError("on purpose")' in said  # with what stands there
        assert "/proc/self/fd" not in said


async def test_a_gateway_that_cannot_be_opened_is_opened_later_and_all_is_adopted(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, NAME, HARM)
    before = ProcessSlices(tmp_path / "slices", artifacts)
    await before.open()
    active = await before.activate(run_of(NAME))
    pid = before.pid_of(active.run)
    await before.aclose(stop=False)
    broken: list[Exception] = [OSError(28, "No space left on device"), Unavailable("not now"), OSError(98, "in use")]
    opened_gateways: list[Path] = []

    @asynccontextmanager
    async def open_gateway(path: Path, token: str) -> AsyncIterator[None]:
        assert token
        if broken:
            raise broken.pop()
        opened_gateways.append(path)
        yield

    slices = ProcessSlices(tmp_path / "slices", artifacts, open_gateway=open_gateway)
    for why in ("in use", "not now"):
        with pytest.raises(Unavailable, match=why):
            await slices.open()
    with pytest.raises(Unavailable, match="No space left"):
        await slices.load(active.run)
    await slices.open()
    assert slices.pid_of(active.run) == pid
    assert (await slices.load(active.run)).life is Life.ACTIVE  # the very same
    assert slices.pid_of(active.run) == pid
    assert len(opened_gateways) == 1
    await slices.aclose()


LOOK = """
    import os, signal, socket, subprocess
    from hostler.slices import method

    @method
    def read(path: str) -> str:
        try:
            with open(path) as file:
                return file.read()
        except OSError as error:
            return type(error).__name__

    @method
    def write(path: str, mib: int) -> str:
        try:
            with open(path, "wb") as file:
                for _ in range(mib):
                    file.write(bytes(2**20))
            return ""
        except OSError as error:
            return type(error).__name__

    held = []

    @method
    def write_deleted(mib: int) -> None:
        held.append(open("deleted", "wb"))
        os.unlink("deleted")
        for _ in range(mib):
            held[-1].write(bytes(2**20))
        held[-1].flush()

    @method
    def seal(name: str) -> None:
        os.mkdir(name)
        with open(f"{name}/file", "wb") as file:
            file.write(bytes(2**20))
        os.chmod(name, 0)

    @method
    def see() -> dict:
        with open("/proc/self/status") as file:
            status = dict(line.rstrip().split(":", 1) for line in file)
        return {"processes": [name for name in os.listdir("/proc") if name.isdecimal()],
                "capabilities": int(status["CapPrm"], 16) | int(status["CapBnd"], 16), "uid": os.getuid(),
                "folders": [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                            if os.path.isdir(f"/proc/self/fd/{fd}") and fd.isdecimal()],
                "mounts": subprocess.run(["unshare", "-Urm", "umount", "/proc"], capture_output=True).returncode == 0}

    @method
    def reach(path: str) -> str:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(path)
            return one.recv(100).decode()

    @method
    def orphan() -> None:
        subprocess.run(["sh", "-c", "setsid sleep 1000 & exit 0"], env={}, check=True)

    @method
    async def die_by(what: int) -> None:
        print("about to die", flush=True)
        os.kill(os.getpid(), what)
"""
AS_NOBODY = """
import asyncio, sys
from contextlib import asynccontextmanager
from pathlib import Path
sys.path[:0] = sys.argv[3:4] + sys.argv[5:]
from slicing import TOKENS, call, publish
from hostler.drivers.slices.process import privileges
from hostler.drivers.slices.process.driver import ProcessSlices, SliceOptions
from hostler.errors import Refused
from hostler.model.deployment import SliceSettings
from hostler.ports.slices import Run

@asynccontextmanager
async def open_gateway(path, token):
    async def greet(reader, writer):
        writer.write(b"a gateway")
        writer.close()

    async with await asyncio.start_unix_server(greet, path):
        yield

async def main(root):
    artifacts = await publish(root, "bad:look:1", SOURCE)
    (root / "admin.token").write_text("a-secret")
    run = Run(artifact="bad:look:1", instance=1, settings=SliceSettings())
    options = SliceOptions(hidden=root)
    async with ProcessSlices(root / "slices", artifacts, options, open_gateway=open_gateway) as slices:
        if sys.argv[2]:
            slices._allowing._paths += ":" + sys.argv[2]
        slices.admit(TOKENS)
        active = await slices.activate(run)
        found = await call(active.address, "see")
        work = root / "slices/runs"
        (work,) = [path / "work" for path in work.iterdir()]
        others = root / "slices/logs" / (work.parent.name + ".log")
        for path in (root / "admin.token", others, work.parent / "run.json", Path.home() / ".profile",
                     Path(f"{work}/../../../../admin.token")):
            assert await call(active.address, "read", path=str(path)) == "FileNotFoundError", path
        assert await call(active.address, "read", path=sys.argv[4] + "/hostler.toml") == "for everybody"
        assert await call(active.address, "read", path=sys.argv[4] + "/etcd.password") == "PermissionError"
        assert await call(active.address, "read", path=sys.argv[4] + "/keys/tls.key") == "FileNotFoundError"
        for path in (f"/proc/1/root{root}/admin.token", "/proc/1/cwd/../../../../admin.token", "/proc/1/mem"):
            assert await call(active.address, "read", path=path) == "PermissionError", path
        assert await call(active.address, "write", path="mine", mib=1) == ""
        assert await call(active.address, "write", path="/var/tmp/mine", mib=1) == ""
        for path in (str(root / "new"), "/etc/new", sys.argv[5] + "/new"):
            said = await call(active.address, "write", path=path, mib=1)
            assert said in ("OSError", "PermissionError"), (path, said)
        assert (found["processes"], found["capabilities"], found["folders"]) == (["1", "2"], 0, []), found
        assert not found["mounts"]
        assert active.about == ""
        assert await call(active.address, "reach", path="/run/hostler/calls.sock") == "a gateway"
        await slices.unload(run)
    more = {"python": sys.executable, "hidden": root, "disk_mib": 64, "look_every": 0.05}
    async with ProcessSlices(root / "slices", artifacts, SliceOptions(**more)) as slices:
        slices.admit(TOKENS)
        active = await slices.activate(run)
        await call(active.address, "seal", name="sealed")
        for _ in range(200):
            (seen,) = await slices.list()
            if seen.detail:
                break
            await asyncio.sleep(0.05)
        assert "its folder 'work/sealed' cannot be read" in seen.detail, seen
        await slices.unload(run)
    privileges._NAMESPACES = ("--no-such-option",)
    for owner in (False, True):
        privileges._answers.clear()
        async with ProcessSlices(root / "slices", artifacts, SliceOptions(as_owner=owner)) as slices:
            slices.admit(TOKENS)
            try:
                loaded = await slices.load(run)
                assert owner and loaded.about == "it runs as the agent does, and can read its data folder", loaded
            except Refused as error:
                assert not owner and "could read its data folder" in str(error), error
                assert 'or set slice_users = "owner"' in str(error), error
    print("held")

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users reach, as those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="hostler-shared-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def configured() -> Iterator[Path]:
    """A folder below /etc as docs/operating.md and docs/cli.md have it: some of it only the agent's user can read."""
    folder = Path(tempfile.mkdtemp(prefix="hostler-test-", dir="/etc"))
    folder.chmod(0o755)
    (folder / "hostler.toml").write_text("for everybody")
    (folder / "etcd.password").write_text("a-secret")
    (folder / "keys").mkdir(mode=0o700)
    (folder / "keys/tls.key").write_text("a-secret")
    (folder / "etcd.password").chmod(0o600)
    for path in (folder / "etcd.password", folder / "keys", folder / "keys/tls.key"):
        os.chown(path, 12345, 12345)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("visible", [False, True], ids=["elsewhere", "below a folder that slices see"])
async def test_where_the_agent_is_not_root_a_slice_does_not_reach_the_data_folder(
    shared: Path, configured: Path, visible: bool
) -> None:
    """A slice read `admin.token` there once, and so could do all that the administrator can."""
    users_of_their_own()  # fails where this is not run as root
    root = shared / "data"
    root.mkdir(mode=0o700)
    os.chown(root, 12345, 12345)
    script = f"SOURCE = {LOOK!r}\n{AS_NOBODY}"
    paths = [
        str(Path(__file__).parents[1]),
        str(configured),
        *(str(Path(one.__file__).parents[1]) for one in (hostler, msgspec)),
    ]
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "--inh-caps=-all", "--"),
        *(str(SYSTEM), "-c", script, str(root), str(shared) if visible else "", *paths),
        cwd="/",
        env={"PATH": os.environ["PATH"], "HOME": "/root"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert (process.returncode, said.decode().splitlines()[-1:]) == (0, ["held"]), said.decode()


async def test_a_slice_with_a_user_of_its_own_sees_no_other_process_and_leaves_none(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, "bad:look:1", LOOK)
    options = {"python": str(SYSTEM), "uids": users_of_their_own()}
    first = ProcessSlices(tmp_path / "slices", artifacts, SliceOptions(**options))
    await first.open()
    await first.activate(run_of("bad:look:1"))
    await first.aclose(stop=False)
    async with opened(tmp_path, artifacts, **options) as slices:
        active = await only(slices)  # it was adopted
        found = await call(active.address, "see")
        assert (found["processes"], found["capabilities"]) == (["1", "2"], 0)
        assert found["uid"] in users_of_their_own()
        outer = slices.pid_of(active.run)
        assert outer is not None
        await call(active.address, "orphan")
        family = below(outer)
        assert len(family) == 4  # and what has no parent any more but the first process
        with suppress(AssertionError, ConnectionError):
            await call(active.address, "die_by", what=int(signal.SIGKILL))
        await until(lambda: slices.pid_of(active.run) is None)
        assert "its process was ended by SIGKILL" in (await only(slices)).detail
        await until(lambda: not any(map(is_alive, family)))


async def test_files_of_a_slice_are_limited(tmp_path: Path) -> None:
    artifacts = await publish(tmp_path, "bad:look:1", LOOK)
    options = {"python": str(SYSTEM), "uids": users_of_their_own(), "disk_mib": 8, "look_every": 0.05}
    async with opened(tmp_path, artifacts, **options) as slices:
        active = await slices.activate(run_of("bad:look:1"))
        assert await call(active.address, "write", path="too-large", mib=9) == "OSError"
        await call(active.address, "write", path="too-large", mib=0)
        assert (await only(slices)).life is Life.ACTIVE
        for number in range(3):
            with suppress(AssertionError, ConnectionError):
                await call(active.address, "write", path=f"part-{number}", mib=4)
        await until(lambda: slices.pid_of(active.run) is None or ended(slices))
        detail = (await only(slices)).detail
        assert detail == "its folders hold more than 8 MiB, the limit of slice_disk_mib"
        again = await slices.activate(active.run)  # with empty folders
        assert again.life is Life.ACTIVE
        for _ in range(3):
            with suppress(AssertionError, ConnectionError):
                await call(again.address, "write_deleted", mib=4)
        await until(lambda: slices.pid_of(active.run) is None or ended(slices))
        assert (await only(slices)).detail == detail, "files that were deleted and are open count, too"


def ended(slices: ProcessSlices) -> bool:
    return all(one.has_ended for one in slices._instances.values())
