"""What two nodes say to each other about a machine that moves, and what is done to the QEMU that it leaves."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import pytest
from qemu_record import record

from hostler.drivers.machines.qemu.folder import MachineFolder
from hostler.drivers.machines.qemu.migration import incoming as arrivals
from hostler.drivers.machines.qemu.migration import outgoing as departures
from hostler.drivers.machines.qemu.migration import send as sending
from hostler.drivers.machines.qemu.migration.incoming import IncomingDisk, IncomingMigration, IncomingState
from hostler.drivers.machines.qemu.migration.outgoing import JOB, THERE, OutgoingMigration
from hostler.drivers.machines.qemu.migration.protocol import (
    LINE_BYTES,
    Answer,
    FirstLine,
    Gate,
    HostTraits,
    Manifest,
    Request,
    Seal,
    ask,
    objection,
    processor,
)
from hostler.drivers.machines.qemu.state import MemoryFit
from hostler.errors import Invalid, Refused, Unavailable
from hostler.model.vm import VmSpec

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

HERE = HostTraits(accelerator="tcg", version="7.2", processor="max", network="user")


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "vm": "v", "number": 3, "live": True, "spec": VmSpec(cpus=1, memory_mib=128),
        "fit": MemoryFit(cpus=1, memory_mib=128, accelerator="tcg", version="7.2"), "processor": "max",
        "network": "user",
        "digest": "0" * 64, "disk_bytes": 2**30, "mac": "52:54:00:00:00:01", "instance": "i",
        "host_key": "secret-of-the-server",
    }  # fmt: skip
    return Manifest(**(fields | changes))


class Wire:
    """A channel with a script at its other end."""

    def __init__(self, *said: bytes) -> None:
        self.said, self.heard = list(said), b""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return self.said.pop(0) if self.said else b""

    async def write(self, data: bytes) -> None:
        self.heard += data


class TestWhatIsAgreed:
    def test_a_machine_that_fits_is_welcome(self) -> None:
        assert objection(manifest(), "v", 3, HERE) == ""

    @pytest.mark.parametrize("field", ["accelerator", "version", "processor", "network"])
    def test_memory_that_does_not_fit_is_refused_and_the_disk_alone_is_not(self, field: str) -> None:
        here = HostTraits(**({name: getattr(HERE, name) for name in HERE.__struct_fields__[1:]} | {field: "other"}))
        assert "does not fit there" in objection(manifest(), "v", 3, here)
        assert "'other'" in objection(manifest(), "v", 3, here)
        assert objection(manifest(live=False), "v", 3, here) == ""

    @pytest.mark.parametrize("other", [{"vm": "w"}, {"number": 2}, {"number": 4}])
    def test_another_move_is_refused(self, other: dict[str, Any]) -> None:
        assert "is expected" in objection(manifest(**other), "v", 3, HERE)
        assert "is expected" in objection(manifest(**other, live=False), "v", 3, HERE)

    def test_the_servers_key_is_in_the_line_and_in_no_log(self) -> None:
        request = Request(manifest=manifest())
        assert b"secret-of-the-server" in request.encode()
        assert "secret-of-the-server" not in repr(request)
        assert Request.decode(request.encode()) == request

    @pytest.mark.parametrize("mac", ["", "52:54:00:00:00", "52:54:00:00:00:01,x=y", "zz:54:00:00:00:01"])
    def test_what_would_go_on_a_command_line_is_checked(self, mac: str) -> None:
        text = Request(manifest=manifest()).encode().replace(b"52:54:00:00:00:01", mac.encode())
        with pytest.raises(Invalid, match="mac"):
            Request.decode(text)

    def test_with_kvm_the_processor_is_the_hosts_own(self) -> None:
        info = "vendor_id\t: A\ncpu family\t: 6\nmodel\t: 1\nstepping\t: 2\nflags\t: x y\n\nvendor_id\t: B\n"
        assert processor("kvm", info) == "A 6 1 2 x y"
        assert processor("tcg", info) == "max"


class TestTheFirstLine:
    @pytest.mark.parametrize("size", [1, 3, 1000])
    def test_it_may_come_in_pieces_and_what_follows_is_kept(self, size: int) -> None:
        data, lines, found = b'{"a":1}\nstream', FirstLine("x"), None
        for at in range(0, len(data), size):
            found = lines.add(data[at : at + size])
            if found:
                break
        assert found is not None
        line, rest = found
        assert line == b'{"a":1}'
        assert data.startswith(line + b"\n" + rest)

    def test_one_that_never_ends_is_refused(self) -> None:
        lines = FirstLine("x")
        assert lines.add(b"x" * LINE_BYTES) is None
        with pytest.raises(Invalid, match="longer than"):
            lines.add(b"x")

    async def test_the_answer_names_the_attempt(self) -> None:
        wire = Wire(b'{"attem', b'pt":"a1"}\n')
        assert await ask(wire, Request(seal=Seal(vm="v", attempt="a1")), "x") == "a1"
        assert wire.heard.endswith(b"\n")

    @pytest.mark.parametrize(
        ("answer", "error"),
        [
            (Answer(refused="no image"), Refused),
            (Answer(unavailable="busy"), Unavailable),
            (Answer(), Unavailable),
            (None, Unavailable),
        ],
    )
    async def test_what_the_other_side_says_is_what_is_raised(self, answer: Answer | None, error: type) -> None:
        said = [] if answer is None else [answer.encode() + b"\n"]
        with pytest.raises(error) as raised:
            await ask(Wire(*said), Request(), "x")
        assert type(raised.value) is error


class TestTheGate:
    async def test_bytes_go_both_ways_and_the_end_of_the_process_is_noticed(self, tmp_path: Path) -> None:
        wire = Wire(b"from there")
        gate = Gate(tmp_path / "g", wire, "x")
        await gate.open(None)
        assert (tmp_path / "g").stat().st_mode & 0o777 == 0o600
        reader, writer = await asyncio.open_unix_connection(tmp_path / "g")
        assert await reader.readexactly(10) == b"from there"
        gate.check()
        writer.write(b"from here")
        writer.close()
        async with asyncio.timeout(5):
            while True:
                try:
                    gate.check()
                except Unavailable:
                    break
                await asyncio.sleep(0.001)
        assert wire.heard == b"from here"
        await gate.aclose()
        assert not (tmp_path / "g").exists()

    async def test_it_lets_in_one_only(self, tmp_path: Path) -> None:
        gate = Gate(tmp_path / "g", Wire(), "x")
        await gate.open(None)
        first = await asyncio.open_unix_connection(tmp_path / "g")
        second, writer = await asyncio.open_unix_connection(tmp_path / "g")
        assert await asyncio.wait_for(second.read(), 5) == b""
        gate.check()
        await gate.aclose()
        first[1].close()
        writer.close()


class TestWhatMayBeSent:
    @pytest.mark.parametrize("alive", [True, False])
    @pytest.mark.parametrize("state", ["arriving", "departed"])
    async def test_one_that_is_on_its_way_is_not_sent_as_another_move(self, state: str, *, alive: bool) -> None:
        there = SimpleNamespace(record=record(moved=1, **{state: True}), vm="v", alive=alive, status="running")
        with pytest.raises(Refused, match="start or stop it first"):
            await sending.send(there, 2, lambda _: Wire(), live=False)  # type: ignore[arg-type]


class TestTheDoorsOfAnArrival:
    @pytest.mark.parametrize("kind", [IncomingDisk, IncomingState])
    async def test_a_link_to_another_socket_is_not_followed(
        self, kind: type[IncomingDisk | IncomingState], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who is in the process that waits for a machine could have the agent talk to anybody."""
        monkeypatch.setattr(arrivals, "CONNECTS_WITHIN", 0.05)
        came: list[object] = []
        elsewhere = await asyncio.start_unix_server(lambda *ends: came.append(ends), tmp_path / "elsewhere")
        folder = MachineFolder(tmp_path / "m")
        folder.create()
        for gate in (arrivals.STATE_GATE, arrivals.DISK_GATE):
            (folder.path / gate).symlink_to(tmp_path / "elsewhere")
        expected = SimpleNamespace(record=SimpleNamespace(arrived=False), folder=folder, vm="v", alive=True)
        arrival = IncomingMigration(expected)  # type: ignore[arg-type]
        arrival.attempt = "a"
        with pytest.raises(Unavailable, match="does not accept its"):
            async with kind(arrival) as door:
                await door._connect(arrivals.STATE_GATE)
        await asyncio.sleep(0.01)
        assert came == []
        elsewhere.close()
        folder.close()


class Qemu:
    """As much of QEMU as a departure asks for."""

    def __init__(self, **scripts: list[str]) -> None:
        self.did: list[str] = []
        self.job: str | None = None
        self.job_error = ""
        self.migration = "none"
        self.status = "running"
        self.there = False
        self.kvm = False
        self.scripts = scripts

    async def execute(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        if not command.startswith("query"):
            self.did.append(command)
        return getattr(self, "_" + command.replace("-", "_"), lambda _: {})(arguments or {})

    def _blockdev_add(self, _: dict[str, Any]) -> None:
        self.there = True

    def _blockdev_del(self, _: dict[str, Any]) -> None:
        assert self.job is None, "the job still uses it"
        self.there = False

    def _blockdev_mirror(self, _: dict[str, Any]) -> None:
        self.job = "running"

    def _query_jobs(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        if self.job is None:
            return []
        if self.scripts.get("job"):
            self.job = self.scripts["job"].pop(0)
        error = {"error": self.job_error} if self.job == "concluded" and self.job_error else {}
        return [{"id": JOB, "status": self.job, "current-progress": 0} | error]

    def _block_job_cancel(self, arguments: dict[str, Any]) -> None:
        if not arguments.get("force"):
            assert self.status != "running", "the guest may still write"
        self.job = "concluded"

    def _job_dismiss(self, _: dict[str, Any]) -> None:
        assert self.job == "concluded"
        self.job = None

    def _migrate(self, _: dict[str, Any]) -> None:
        assert self.job == "ready", "the disk is not equal"
        assert self.kvm or self.status == "paused", "QEMU does not see all that an emulated guest writes"
        self.migration = "active"

    def _query_migrate(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.scripts.get("migration") and self.migration not in ("none", "completed"):
            self.migration = self.scripts["migration"].pop(0)
            self.status = {"pre-switchover": "finish-migrate", "failed": "running"}.get(self.migration, self.status)
        return {"status": self.migration}

    def _migrate_continue(self, _: dict[str, Any]) -> None:
        assert (self.job, self.there) == (None, False), "the disk's copy has not ended"
        self.migration, self.status = "completed", "postmigrate"

    def _migrate_cancel(self, _: dict[str, Any]) -> None:
        self.migration = "cancelled"

    def _query_status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"status": self.status, "running": self.status == "running"}

    def _query_named_block_nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"node-name": "disk"}, *([{"node-name": THERE}] if self.there else [])]

    def _query_kvm(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"enabled": self.kvm, "present": True}

    def _stop(self, _: dict[str, Any]) -> None:
        if self.status == "running":
            self.status = "paused"

    def _cont(self, _: dict[str, Any]) -> None:
        self.status = "running"


class TestTheDeparture:
    async def test_the_disk_is_equal_before_memory_goes_and_its_copy_ends_while_the_guest_is_stopped(self) -> None:
        qemu = Qemu(job=["running", "ready"], migration=["active", "pre-switchover"])
        departure = OutgoingMigration(qemu, "x")
        await departure.copy_disk()
        await departure.hold()
        await departure.send_memory()
        await departure.switch()
        assert qemu.status == "postmigrate"
        order = [word for word in qemu.did if not word.startswith("migrate-set")]
        assert order == [
            "blockdev-add", "blockdev-mirror", "stop", "migrate", "block-job-cancel", "job-dismiss", "blockdev-del",
            "migrate-continue",
        ]  # fmt: skip

    async def test_a_copy_that_failed_is_not_gone_on_with(self) -> None:
        qemu = Qemu(job=["running", "concluded"])
        qemu.job_error = "Input/output error"
        with pytest.raises(Unavailable, match="Input/output error"):
            await OutgoingMigration(qemu, "x").copy_disk()

    async def test_a_copy_that_fails_at_its_very_end_is_not_gone_on_with(self) -> None:
        qemu = Qemu(job=["ready"], migration=["pre-switchover"])
        departure = OutgoingMigration(qemu, "x")
        await departure.copy_disk()
        await departure.hold()
        await departure.send_memory()
        qemu.job_error = "No space left on device"
        with pytest.raises(Unavailable, match="No space left"):
            await departure.switch()
        assert "migrate-continue" not in qemu.did

    async def test_memory_that_could_not_be_sent_is_said(self) -> None:
        qemu = Qemu(job=["ready"], migration=["active", "failed"])
        departure = OutgoingMigration(qemu, "x")
        await departure.copy_disk()
        await departure.hold()
        with pytest.raises(Unavailable, match="memory failed"):
            await departure.send_memory()

    async def test_a_way_that_has_ended_is_noticed_though_qemu_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(departures, "TOLD_WITHIN", 0.01)

        class Cut:
            def check(self) -> None:
                raise Unavailable("the connection ended")

        with pytest.raises(Unavailable, match="the connection ended"):
            await OutgoingMigration(Qemu(job=["running"]), "x", disk=Cut()).copy_disk()

    async def test_one_that_does_not_move_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(departures, "STALLED_AFTER", 0.02)
        with pytest.raises(Unavailable, match="no progress of its disk"):
            await OutgoingMigration(Qemu(job=["running"]), "x").copy_disk()

    async def test_one_that_does_not_converge_is_given_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(departures, "CONVERGES_WITHIN", 0.05)
        departure = OutgoingMigration(Qemu(job=["ready"], migration=["active"]), "x")
        await departure.copy_disk()
        await departure.hold()
        with pytest.raises(Unavailable, match="faster than it can be sent"):
            await departure.send_memory()

    async def test_with_kvm_the_guest_runs_while_its_memory_goes(self) -> None:
        qemu = Qemu(job=["ready"], migration=["active", "pre-switchover"])
        qemu.kvm = True
        departure = OutgoingMigration(qemu, "x")
        await departure.copy_disk()
        await departure.hold()
        assert qemu.status == "running"
        await departure.send_memory()
        await departure.switch()
        assert "stop" not in qemu.did

    @pytest.mark.parametrize("status", ["shutdown", "io-error"])
    async def test_one_that_stopped_by_itself_is_not_sent(self, status: str) -> None:
        """It was stopped by nobody, and might go on by itself while its memory goes."""
        qemu = Qemu(job=["ready"])
        departure = OutgoingMigration(qemu, "x")
        await departure.copy_disk()
        qemu.status = status
        with pytest.raises(Unavailable, match=f"it is {status}"):
            await departure.hold()

    @pytest.mark.parametrize("kvm", [True, False])
    @pytest.mark.parametrize("steps", range(6))
    async def test_whatever_was_done_is_undone(self, steps: int, *, kvm: bool) -> None:
        qemu = Qemu(job=["ready"], migration=["active", "pre-switchover"])
        qemu.kvm = kvm
        departure = OutgoingMigration(qemu, "x")
        if steps == 1:
            qemu.there = True
        if steps >= 2:
            await departure.copy_disk()
        if steps >= 3:
            await departure.hold()
        if steps >= 4:
            await departure.send_memory()
        if steps >= 5:
            await departure.switch()
        stopped = qemu.status != "running"
        assert stopped is (steps >= (4 if kvm else 3))
        assert await departure.undo(runs=True) is stopped, "who was stopped does not know how long"
        assert qemu.status == "running"
        assert qemu.job is None
        assert not qemu.there
        assert qemu.migration in ("none", "cancelled", "completed")
        assert not await departure.undo(runs=True)

    @pytest.mark.parametrize("status", ["shutdown", "io-error"])
    async def test_a_guest_that_stopped_by_itself_is_not_let_run(self, status: str) -> None:
        qemu = Qemu()
        qemu.status = status
        await OutgoingMigration(qemu, "x").undo(runs=True)
        assert qemu.status == status

    @pytest.mark.parametrize("status", ["running", "paused", "postmigrate"])
    async def test_a_guest_that_was_stopped_for_it_is_told_the_time(self, status: str) -> None:
        qemu, told = Qemu(), []
        qemu.status = status

        async def send(text: str) -> None:
            told.append(text)

        there = SimpleNamespace(
            vm="v",
            execute=qemu.execute,
            guest=SimpleNamespace(send=send),
            site=SimpleNamespace(clock=SimpleNamespace(wall=lambda: 1000.0)),
        )
        await departures.undo(there)  # type: ignore[arg-type]
        assert qemu.status == "running"
        assert told == ([] if status == "running" else ["clock 1000"])
