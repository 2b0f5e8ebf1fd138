"""QEMU's monitor, with somebody else at the other end of the socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.pace import patience
from qemu_scene import PATIENCE, Peer, listening

from hostler.drivers.machines.qemu import process
from hostler.drivers.machines.qemu.folder import ALIVE, QMP_SOCKET, MachineFolder
from hostler.drivers.machines.qemu.process import reach
from hostler.drivers.machines.qemu.qmp import JOBS, MESSAGE_BYTES, Monitor
from hostler.errors import NotFound, Refused, Unavailable, Uncertain

GREETING = {"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[MachineFolder]:
    # Longer than a socket's path may be: it must not matter.
    made = MachineFolder(tmp_path / ("deep" * 20) / ("deeper" * 20))
    made.path.mkdir(parents=True)
    yield made
    made.close()


class Qemu:
    """A monitor that is connected, and who answers it."""

    def __init__(self, monitor: Monitor, peer: Peer) -> None:
        self.monitor, self.peer = monitor, peer
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.closed = 0

    async def answering(
        self, work: Awaitable[Any], *answers: dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]
    ) -> Any:
        """What the work comes to when each of its commands is answered in turn."""
        task = asyncio.ensure_future(work)
        try:
            for answer in answers:
                asked = await self.peer.asked()
                self.peer.say((answer(asked) if callable(answer) else answer) | {"id": asked["id"]})
            async with asyncio.timeout(PATIENCE):
                return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def qemu(folder: MachineFolder) -> AsyncIterator[Qemu]:
    async with listening(folder, QMP_SOCKET) as peer:
        found: Qemu

        def event(name: str, data: dict[str, Any]) -> None:
            found.events.append((name, data))

        def closed() -> None:
            found.closed += 1

        monitor = Monitor(folder, event=event, closed=closed)
        found = Qemu(monitor, peer)
        connecting = asyncio.ensure_future(monitor.connect(PATIENCE))
        await peer.came.wait()
        peer.say(GREETING)
        await found.answering(connecting, {"return": {}})
        yield found
        await monitor.aclose()


# Reaching


async def test_a_socket_that_comes_later_is_waited_for(folder: MachineFolder) -> None:
    reaching = asyncio.ensure_future(reach(folder, "late.sock", within=PATIENCE))
    await asyncio.sleep(0.02)
    async with listening(folder, "late.sock"):
        (await reaching).close()


async def test_nobody_there_is_said_in_time_and_a_process_that_ended_at_once(folder: MachineFolder) -> None:
    with pytest.raises(Unavailable, match="No such file.*0.05 s"):
        await reach(folder, QMP_SOCKET, within=0.05)
    (folder.path / ALIVE).touch()
    (folder.path / "qemu.log").write_text("cannot set up guest memory")
    with pytest.raises(Unavailable, match="has ended: cannot set up guest memory"):
        await reach(folder, QMP_SOCKET, within=PATIENCE)


async def test_a_link_to_another_socket_is_not_followed(folder: MachineFolder) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        other = MachineFolder(Path(short))
        async with listening(other, "precious.sock") as peer:
            (folder.path / QMP_SOCKET).symlink_to(Path(short) / "precious.sock")
            with pytest.raises(Unavailable, match="not a socket"):
                await reach(folder, QMP_SOCKET, within=0.05)
            assert not peer.came.is_set()
        other.close()


# The monitor


async def test_a_command_is_answered_and_a_refusal_names_it_and_nothing_that_was_said(qemu: Qemu) -> None:
    execute = qemu.monitor.execute
    assert await qemu.answering(execute("query-status"), {"return": {"status": "running"}}) == {"status": "running"}
    refusal = {"error": {"class": "GenericError", "desc": "no such thing"}}
    with pytest.raises(Refused, match="cont: no such thing") as refused:
        await qemu.answering(execute("cont", {"password": "secret"}), refusal)
    assert "secret" not in str(refused.value)
    with pytest.raises(NotFound):
        await qemu.answering(execute("cont"), {"error": {"class": "DeviceNotFound", "desc": "no disk"}})
    with pytest.raises(Refused):
        await qemu.answering(execute("cont"), {"error": "?"})


async def test_arguments_reach_qemu(qemu: Qemu) -> None:
    seen: list[dict[str, Any]] = []
    await qemu.answering(
        qemu.monitor.execute("set_link", {"name": "n0", "up": False}),
        lambda asked: seen.append(asked) or {"return": {}},
    )
    assert (seen[0]["execute"], seen[0]["arguments"]) == ("set_link", {"name": "n0", "up": False})


async def test_no_answer_leaves_a_change_uncertain_and_a_question_unavailable_and_comes_too_late_for_the_next(
    qemu: Qemu,
) -> None:
    with pytest.raises(Uncertain, match="cont: no answer within"):
        await qemu.monitor.execute("cont", within=0.01)
    with pytest.raises(Unavailable, match="query-status: no answer within"):
        await qemu.monitor.execute("query-status", within=0.01)
    for _ in range(2):
        qemu.peer.say({"return": "late", "id": (await qemu.peer.asked())["id"]})
    assert await qemu.answering(qemu.monitor.execute("query-status"), {"return": "in time"}) == "in time"


async def test_one_who_goes_away_does_not_disturb_the_next(qemu: Qemu) -> None:
    tasks = [asyncio.ensure_future(qemu.monitor.execute("query-status")) for _ in range(20)]
    for turn, task in enumerate(tasks):
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert qemu.monitor._waiting == {}
    while True:
        asked = asyncio.ensure_future(qemu.peer.asked())
        done, _ = await asyncio.wait([asked], timeout=0.05)
        if not done:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            break
        qemu.peer.say({"return": "for nobody", "id": asked.result()["id"]})
    assert await qemu.answering(qemu.monitor.execute("query-status"), {"return": "mine"}) == "mine"


async def test_answers_out_of_order_find_who_asked(qemu: Qemu) -> None:
    tasks = [asyncio.ensure_future(qemu.monitor.execute(f"query-{name}")) for name in "abc"]
    asked = [await qemu.peer.asked() for _ in tasks]
    for each in reversed(asked):
        qemu.peer.say({"return": each["execute"], "id": each["id"]})
    assert await asyncio.gather(*tasks) == ["query-a", "query-b", "query-c"]


async def test_what_qemu_tells_is_passed_on_and_a_listener_that_fails_stops_nothing(
    qemu: Qemu, caplog: pytest.LogCaptureFixture
) -> None:
    qemu.peer.say({"event": "STOP", "timestamp": {}})
    qemu.peer.say(json.dumps({"event": "RESET", "data": {"guest": True}}).encode()[:20])
    qemu.monitor._event = lambda _name, _data: 1 / 0  # type: ignore[assignment, return-value]
    qemu.peer.say(json.dumps({"event": "RESET", "data": {"guest": True}}).encode()[20:] + b"\r\n")
    assert await qemu.answering(qemu.monitor.execute("query-status"), {"return": 1}) == 1
    assert "cannot process QEMU's event RESET" in caplog.text


async def test_who_waits_is_told_when_qemu_hangs_up_and_the_driver_is_told_once(qemu: Qemu) -> None:
    tasks = [asyncio.ensure_future(qemu.monitor.execute(name)) for name in ("cont", "query-status", "quit")]
    for _ in tasks:
        await qemu.peer.asked()
    qemu.peer.hang_up()
    changed, asked, quitted = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(changed, Uncertain)
    assert isinstance(asked, Unavailable)
    assert quitted == {}
    assert qemu.closed == 1
    with pytest.raises(Unavailable, match="not connected"):
        await qemu.monitor.execute("cont")
    await qemu.monitor.aclose()
    assert qemu.closed == 1


async def test_hanging_up_ourselves_is_no_news_and_takes_no_time_though_qemu_reads_nothing(qemu: Qemu) -> None:
    waiting = asyncio.ensure_future(qemu.monitor.execute("cont", {"fill": "x" * 900_000}))
    await asyncio.sleep(0)
    more = asyncio.ensure_future(qemu.monitor.execute("cont", {"fill": "x" * 900_000}))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match="does not read"):
        await qemu.monitor.execute("cont")
    async with asyncio.timeout(PATIENCE):
        await qemu.monitor.aclose()
        found = await asyncio.gather(waiting, more, return_exceptions=True)
    assert all(isinstance(each, Uncertain) for each in found)
    assert qemu.closed == 0


@pytest.mark.parametrize("garbage", [b"SSH-2.0-\n", b"[1]\n", b"x" * (MESSAGE_BYTES + 2)])
async def test_what_is_not_qmp_is_hung_up_on(qemu: Qemu, garbage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.ensure_future(qemu.monitor.execute("query-status"))
    await qemu.peer.asked()
    monkeypatch.setattr(qemu.monitor._wire, "_throttle", process.Throttle(2**40, 2**40))
    qemu.peer.say(garbage)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable):
            await waiting
    assert qemu.closed == 1


async def test_a_greeting_that_does_not_come_is_not_waited_for_for_ever(folder: MachineFolder) -> None:
    monitor = Monitor(folder, event=lambda *_: None, closed=lambda: None)
    async with listening(folder, QMP_SOCKET) as peer:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(Unavailable, match="no greeting from QEMU within"):
            await monitor.connect(0.05)
        await peer.came.wait()
        peer.came.clear()
        connecting = asyncio.ensure_future(monitor.connect(PATIENCE))
        await peer.came.wait()
        peer.hang_up()
        with pytest.raises(Unavailable, match="closed the connection"):
            await connecting
        peer.came.clear()
        connecting = asyncio.ensure_future(monitor.connect(0.2))
        await peer.came.wait()
        peer.say(GREETING)  # and no more
        with pytest.raises(Unavailable):
            await connecting
        assert not monitor.connected
        peer.hang_up()
        await asyncio.sleep(0.01)
        assert len(os.listdir("/proc/self/fd")) <= before + 1  # the first peer's end


async def test_connecting_may_be_cancelled_at_any_point(folder: MachineFolder) -> None:
    monitor = Monitor(folder, event=lambda *_: None, closed=lambda: None)
    async with listening(folder, QMP_SOCKET) as peer:
        for turns in range(8):
            peer.came.clear()
            connecting = asyncio.ensure_future(monitor.connect(PATIENCE))
            for turn in range(turns):
                await asyncio.sleep(0.002)
                if turn == 3:
                    peer.say(GREETING)
            connecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await connecting
            assert not monitor.connected
        peer.came.clear()
        connecting = asyncio.ensure_future(monitor.connect(PATIENCE))
        await peer.came.wait()
        peer.say(GREETING)
        peer.say({"return": {}, "id": (await peer.asked())["id"]})
        await connecting
        await monitor.aclose()


async def test_a_descriptor_goes_along_with_its_command(folder: MachineFolder) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{folder.descriptor}/{QMP_SOCKET}")
    listener.listen()
    monitor = Monitor(folder, event=lambda *_: None, closed=lambda: None)
    connecting = asyncio.ensure_future(monitor.connect(PATIENCE))
    listener.setblocking(False)
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    connection.setblocking(False)
    connection.sendall(json.dumps(GREETING).encode() + b"\n")
    asked = json.loads(await asyncio.get_running_loop().sock_recv(connection, 4096))
    connection.sendall(json.dumps({"return": {}, "id": asked["id"]}).encode() + b"\n")
    await connecting
    with tempfile.TemporaryFile() as file:
        file.write(b"memory")
        file.flush()
        sending = asyncio.ensure_future(monitor.execute("getfd", {"fdname": "f"}, fds=[file.fileno()]))
        await asyncio.sleep(0.01)
        data, descriptors, _, _ = socket.recv_fds(connection, 4096, 4)
    assert os.pread(descriptors[0], 10, 0) == b"memory"
    os.close(descriptors[0])
    connection.sendall(json.dumps({"return": {}, "id": json.loads(data)["id"]}).encode() + b"\n")
    await sending
    await monitor.aclose()
    connection.close()
    listener.close()


# Jobs


class Jobs:
    """A QEMU that does jobs."""

    def __init__(self, qemu: Qemu) -> None:
        self.qemu, self.jobs, self.dismissed = qemu, dict[str, dict[str, Any]](), list[str]()
        self.then: Callable[[], object] = lambda: None
        """What happens a moment after a job has begun."""

    async def serve(self) -> None:
        while True:
            asked = await self.qemu.peer.asked()
            arguments = asked.get("arguments", {})
            if asked["execute"] == "snapshot-save":
                self.jobs[arguments["job-id"]] = {"id": arguments["job-id"], "status": "running"}
                asyncio.get_running_loop().call_later(0.02, self.then)
            elif asked["execute"] == "job-dismiss":
                self.dismissed.append(arguments["id"])
                del self.jobs[arguments["id"]]
            found = list(self.jobs.values()) if asked["execute"] == "query-jobs" else {}
            self.qemu.peer.say({"return": found, "id": asked["id"]})

    def end(self, error: str = "") -> None:
        for job in self.jobs.values():
            job["status"] = "concluded"
            if error:
                job["error"] = error
            self.qemu.peer.say({"event": "JOB_STATUS_CHANGE", "data": {"id": job["id"], "status": "concluded"}})


@pytest.fixture
async def jobs(qemu: Qemu) -> AsyncIterator[Jobs]:
    made = Jobs(qemu)
    serving = asyncio.ensure_future(made.serve())
    yield made
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_a_job_is_waited_for_without_looking_all_the_time(
    qemu: Qemu, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hostler.drivers.machines.qemu.qmp._LOOK_EVERY", 10 * PATIENCE)
    jobs.then = jobs.end
    before = next(qemu.monitor._numbers)
    await qemu.monitor.job("snapshot-save", {"tag": "s1"}, PATIENCE)
    assert jobs.jobs == {}
    assert next(qemu.monitor._numbers) - before <= 6


async def test_a_job_that_fails_says_why_and_is_gone(qemu: Qemu, jobs: Jobs) -> None:
    jobs.then = lambda: jobs.end("No space left on device")
    with pytest.raises(Refused, match="snapshot-save: No space left"):
        await qemu.monitor.job("snapshot-save", {"tag": "s1"}, PATIENCE)
    assert jobs.jobs == {}


async def test_a_job_that_takes_too_long_is_uncertain_and_can_be_settled_later(qemu: Qemu, jobs: Jobs) -> None:
    jobs.jobs["departure"] = {"id": "departure", "status": "running"}
    with pytest.raises(Uncertain, match="not finished within"):
        await qemu.monitor.job("snapshot-save", {"tag": "s1"}, patience(0.1))  # enough to be told that it has begun
    with pytest.raises(Unavailable, match="still running"):
        await qemu.monitor.settle_jobs(within=0.02)
    asyncio.get_running_loop().call_later(0.02, jobs.end)
    await qemu.monitor.settle_jobs(within=PATIENCE)
    assert list(jobs.jobs) == ["departure"]
    assert jobs.dismissed[0].startswith(JOBS)


async def test_a_job_whose_qemu_is_lost_is_uncertain_and_one_that_never_began_is_not(qemu: Qemu, jobs: Jobs) -> None:
    jobs.then = qemu.peer.hang_up
    with pytest.raises(Uncertain):
        await qemu.monitor.job("snapshot-save", {"tag": "s1"}, PATIENCE)
    with pytest.raises(Unavailable):
        await qemu.monitor.job("snapshot-save", {"tag": "s1"}, PATIENCE)
