"""Machines that are processes, each in a folder, which is its disk.

    lock                    locked while a driver has the place open
    id                      the id of the place
    machines/HASH/          one machine; HASH is of its id
        record.json         its record, replaced by a rename
        running             locked by the process and its children: the machine runs exactly while it is locked
        pid                 of the process, written by itself
        ending              the process was told to end; it may run for a moment
        log                 its output
        disk-N, snapshot-N  folders; the record says which is what
    retained/HASH/          a machine out of service; retained.json describes it
    gone/                   folders that are being deleted

Every change is one rename, made without an `await`, so that a verb that is cut leaves no half machine.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import math
import os
import secrets
import shutil
import signal
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.machines import validation
from hostler.errors import Closed, NotFound, Refused, Unavailable
from hostler.model.inventory import Capacity
from hostler.model.vm import MachineState, Readiness, Step, VmSpec
from hostler.ports.machines import ChannelKind, Label, Machine, Offer, RetainedMachine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from hostler.ports.machines import Channel, MachinePlan

EVERY = 0.02
"""Seconds between two looks at a process that starts or ends."""
WATCH_EVERY = 0.2
LOG_BYTES = 64 * 1024
BOOT = 'echo >>boots; echo $$ >pid.new; mv pid.new pid; ulimit -v "$1"; cd "$2"; shift 2; exec "$@"'
"""Run in the machine's folder; its output is the log, and descriptor 3 the lock."""
_spawned: set[int] = set()
"""Children of this process, which it has to reap; they outlive their driver."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a machine."""

    id: str
    label: Label
    spec: VmSpec
    name: str = ""
    tags: dict[str, str] = {}
    disk: str
    snapshots: dict[str, str] = {}
    """The folder of each snapshot."""
    resets: int = 0
    restored: int = 0
    resetting: int = 0
    """The reset that was begun: the machine is off only for a moment."""


class ProcessMachines:
    """The processes of one node. They are not fenced and cannot be migrated, so those verbs are absent."""

    def __init__(self, folder: str | Path, *, command: Sequence[str]) -> None:
        self._folder, self._command = Path(folder), tuple(command)
        self._locks: dict[str, asyncio.Lock] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._lock: int | None = None
        self._watching: asyncio.Task[None] | None = None
        self._place = ""
        self._on: set[str] = set()

    @property
    def name(self) -> str:
        return "process"

    @property
    def place(self) -> str:
        return self._place

    async def __aenter__(self) -> Self:
        for name in ("machines", "retained", "gone"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(descriptor):
            os.close(descriptor)
            raise Unavailable(f"machines in {self._folder}: another process has them open; stop it first")
        self._lock = descriptor
        file = self._folder / "id"
        if not file.exists():
            _replace(file, f"process-{secrets.token_hex(8)}".encode())
        self._place = file.read_text()
        self._clear()
        self._on = {vm for vm, folder in self._machines() if _runs(folder)}
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is None or self._watching is None:
            return
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        lock, self._lock = self._lock, None
        fcntl.flock(lock, fcntl.LOCK_UN)  # a child that has not yet executed its program has a copy of the descriptor
        os.close(lock)

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    async def offer(self) -> Offer:
        self._check()
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
        disk = shutil.disk_usage(self._folder).total // 2**30
        capacity = Capacity(cpus=os.cpu_count() or 1, memory_mib=memory, disk_gib=disk)
        return Offer(capacity=capacity, images=("",), facts={"command": " ".join(self._command)})

    # The verbs

    async def create(self, plan: MachinePlan) -> Machine:
        validation.check_plan(plan, ("",))
        if plan.fenced:
            raise Refused(f"machine {plan.label.vm!r}: a process does not stop by itself; do not fence it")
        async with self._verb(plan.label.vm) as folder:
            record = _read(folder)
            if record is None:
                record = Record(
                    id=secrets.token_hex(8),
                    label=plan.label,
                    spec=plan.spec,
                    name=plan.name,
                    tags=plan.tags,
                    disk=_fresh("disk"),
                )
                new = self._folder / "gone" / _fresh("new")
                (new / record.disk).mkdir(parents=True)
                _write(new, record)
                new.rename(folder)
            elif record.label != plan.label:
                raise Refused(f"machine {plan.label.vm!r}: another machine has this id: {record.label}")
            elif _state(folder, record) is MachineState.STOPPED:
                _write(folder, msgspec.structs.replace(record, spec=plan.spec, name=plan.name, tags=plan.tags))
            return self._seen(folder)

    async def mark(self, plan: MachinePlan) -> Machine:
        validation.check_plan(plan, None)
        async with self._verb(plan.label.vm) as folder:
            record = _expected(folder, plan.label.vm)
            validation.check_markable(record.label, plan.label)
            _write(folder, msgspec.structs.replace(record, label=plan.label, tags=plan.tags))
            return self._seen(folder)

    async def start(self, vm: str) -> Machine:
        async with self._verb(vm) as folder:
            await self._start(folder, _expected(folder, vm))
            return self._seen(folder)

    async def stop(self, vm: str, *, grace: float) -> Machine:
        validation.check_seconds("grace", grace)
        async with self._verb(vm) as folder:
            _expected(folder, vm)
            await self._end(folder, grace=grace)
            record = _expected(folder, vm)
            if record.resetting:
                _write(folder, msgspec.structs.replace(record, resets=record.resetting, resetting=0))
            return self._seen(folder)

    async def reset(self, vm: str, number: int) -> Machine:
        validation.check_number(number)
        async with self._verb(vm) as folder:
            record = _expected(folder, vm)
            if record.resets < number and _state(folder, record) is MachineState.STOPPED:
                _write(folder, msgspec.structs.replace(record, resets=number))
            elif record.resets < number:
                _write(folder, msgspec.structs.replace(record, resetting=number))
                await self._end(folder)
                await self._start(folder, _expected(folder, vm))
            return self._seen(folder)

    async def delete(self, vm: str) -> None:
        validation.check_text("machine", vm)
        async with self._verb(vm) as folder:
            if folder.exists():
                await self._end(folder)
                self._remove(folder)

    async def retain(self, vm: str, name: str) -> RetainedMachine | None:
        validation.check_text("retained machine", name)
        async with self._verb(vm) as folder:
            to = self._at("retained", name)
            record = _read(folder)
            if record is None:
                kept = _described(to)
                return kept if kept is not None and kept.label.vm == vm else None
            if to.exists():
                raise Refused(f"machine {vm!r}: another one is retained as {name!r}; take another name")
            await self._end(folder)
            record = _expected(folder, vm)
            kept = RetainedMachine(
                name=name,
                label=record.label,
                machine_name=record.name,
                spec=record.spec,
                snapshots=tuple(record.snapshots),
                retained_at=time.time(),
            )
            _replace(folder / "retained.json", msgspec.json.encode(kept))
            folder.rename(to)
            return kept

    async def retained(self) -> Sequence[RetainedMachine]:
        self._check()
        found = (_described(folder) for folder in sorted((self._folder / "retained").iterdir()))
        return [kept for kept in found if kept is not None]

    async def reinstate(self, name: str, plan: MachinePlan) -> Machine:
        validation.check_text("retained machine", name)
        validation.check_plan(plan, None)
        vm = plan.label.vm
        async with self._verb(vm) as folder:
            kept, there = self._at("retained", name), _read(folder)
            record = _read(kept)
            if record is None and there is None:
                raise NotFound(f"machine {vm!r}: nothing is retained as {name!r} here")
            if record is not None:
                if there is not None:
                    raise Refused(f"machine {vm!r}: it exists; retain or delete it first")
                described = _described(kept)
                same = described is not None and described.label.vm == vm
                numbers = {} if same else {"resets": 0, "restored": 0}
                back = msgspec.structs.replace(record, label=plan.label, tags=plan.tags, name=plan.name, **numbers)
                _write(kept, back)
                kept.rename(folder)
            return self._seen(folder)

    async def discard(self, name: str) -> None:
        validation.check_text("retained machine", name)
        self._check()
        kept = self._at("retained", name)
        if kept.exists():
            self._remove(kept)

    async def inspect(self, vm: str) -> Machine | None:
        self._check()
        validation.check_text("machine", vm)
        folder = self._at("machines", vm)
        return None if _read(folder) is None else self._seen(folder)

    async def list(self) -> Sequence[Machine]:
        self._check()
        return [self._seen(folder) for _, folder in self._machines()]

    async def snapshot(self, vm: str, name: str) -> Machine:
        validation.check_text("snapshot", name)
        async with self._verb(vm) as folder:
            record = _expected(folder, vm)
            if name not in record.snapshots:
                copy = _fresh("snapshot")
                shutil.copytree(folder / record.disk, folder / copy, symlinks=True)
                _write(folder, msgspec.structs.replace(record, snapshots={**record.snapshots, name: copy}))
            return self._seen(folder)

    async def restore(self, vm: str, name: str, number: int) -> Machine:
        validation.check_text("snapshot", name)
        validation.check_number(number)
        async with self._verb(vm) as folder:
            record = _expected(folder, vm)
            if record.restored < number:
                if name not in record.snapshots:
                    raise Refused(f"machine {vm!r}: no snapshot {name!r}")
                await self._end(folder)
                disk = _fresh("disk")
                shutil.copytree(folder / record.snapshots[name], folder / disk, symlinks=True)
                _write(folder, msgspec.structs.replace(record, disk=disk, restored=number))
                self._remove(folder / record.disk)
            return self._seen(folder)

    async def drop_snapshot(self, vm: str, name: str) -> Machine:
        validation.check_text("snapshot", name)
        async with self._verb(vm) as folder:
            record = _expected(folder, vm)
            if name in record.snapshots:
                rest = {each: copy for each, copy in record.snapshots.items() if each != name}
                _write(folder, msgspec.structs.replace(record, snapshots=rest))
                self._remove(folder / record.snapshots[name])
            return self._seen(folder)

    def channel(self, vm: str, door: ChannelKind) -> Channel:
        return _Log(lambda: self._logged(vm, door))

    def disk(self, vm: str) -> Path:
        """Return the folder that is the disk of a machine."""
        folder = self._at("machines", vm)
        return folder / _expected(folder, vm).disk

    # Processes

    async def _start(self, folder: Path, record: Record) -> None:
        if (folder / "ending").exists():  # a verb that was cut had begun to end it
            await self._end(folder)
        if not _runs(folder):
            (folder / "pid").unlink(missing_ok=True)
            self._spawn(folder, record)
            if record.resetting:
                _write(folder, msgspec.structs.replace(record, resets=record.resetting, resetting=0))
        while not (folder / "pid").exists() and _runs(folder):
            await asyncio.sleep(EVERY)
        self._on.add(record.label.vm)

    def _spawn(self, folder: Path, record: Record) -> None:
        lock = os.open(folder / "running", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not _locked(lock):
                return
            limit = str(max(record.spec.memory_mib, 16) * 1024)
            words = ["sh", "-c", f'cd "$0"; {BOOT}', str(folder), limit, record.disk, *self._command]
            dup = os.POSIX_SPAWN_DUP2
            actions = [(dup, nothing, 0), (dup, log, 1), (dup, log, 2), (dup, lock, 3)]
            _spawned.add(os.posix_spawn("/bin/sh", words, dict(os.environ), file_actions=actions, setsid=True))
        finally:
            for descriptor in (lock, log, nothing):
                os.close(descriptor)

    async def _end(self, folder: Path, *, grace: float = 0.0) -> None:
        record = _read(folder)
        if record is not None:
            self._on.discard(record.label.vm)  # it does not go off by itself
        (folder / "ending").touch()
        if not grace or not await self._gone(folder, signal.SIGTERM, grace):
            await self._gone(folder, signal.SIGKILL, math.inf)
        (folder / "ending").unlink()

    async def _gone(self, folder: Path, number: signal.Signals, within: float) -> bool:
        end = time.monotonic() + within
        sent = False
        while _runs(folder):
            if time.monotonic() > end:
                return False
            if not sent and (folder / "pid").exists():
                with suppress(ProcessLookupError):
                    os.killpg(int((folder / "pid").read_text()), number)
                sent = True
            await asyncio.sleep(EVERY)
        _reap()
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY)
            _reap()
            for vm in sorted(self._on):
                if not _runs(self._at("machines", vm)):
                    self._on.discard(vm)
                    for listener in self._listeners:
                        listener(vm)

    # Records

    @asynccontextmanager
    async def _verb(self, vm: str) -> AsyncIterator[Path]:
        self._check()
        validation.check_text("machine", vm)
        async with self._locks.setdefault(vm, asyncio.Lock()):
            self._check()
            yield self._at("machines", vm)

    def _check(self) -> None:
        if self._lock is None:
            raise Closed(f"machines in {self._folder}: not open")

    def _at(self, where: str, name: str) -> Path:
        return self._folder / where / hashlib.sha256(name.encode()).hexdigest()

    def _machines(self) -> list[tuple[str, Path]]:
        found = [(_read(folder), folder) for folder in sorted((self._folder / "machines").iterdir())]
        return [(record.label.vm, folder) for record, folder in found if record is not None]

    def _seen(self, folder: Path) -> Machine:
        record = msgspec.json.decode((folder / "record.json").read_bytes(), type=Record)
        state = _state(folder, record)
        readiness = None
        if state is MachineState.RUNNING and (folder / "pid").exists():
            readiness = Readiness(step=Step.AVAILABLE, since=(folder / "pid").stat().st_mtime)
        return Machine(
            label=record.label,
            id=record.id,
            state=state,
            spec=record.spec,
            tags=record.tags,
            resets=record.resets,
            restored=record.restored,
            snapshots=tuple(record.snapshots),
            readiness=readiness,
        )

    def _logged(self, vm: str, door: ChannelKind) -> bytes:
        folder = self._at("machines", vm)
        record = _read(folder)
        if record is None or (door is not ChannelKind.LOG and _state(folder, record) is not MachineState.RUNNING):
            raise NotFound(f"machine {vm!r}: not there, or off")
        if door is not ChannelKind.LOG:
            raise Refused(f"machine {vm!r}: a process has no {door}, only a log")
        return (folder / "log").read_bytes()[-LOG_BYTES:] if (folder / "log").exists() else b""

    def _remove(self, folder: Path) -> None:
        gone = self._folder / "gone" / _fresh("gone")
        folder.rename(gone)
        shutil.rmtree(gone)

    def _clear(self) -> None:
        """Delete what an interrupted verb left: no record names it."""
        for rest in (self._folder / "gone").iterdir():
            shutil.rmtree(rest)


class _Log:
    """A channel that gives the recorded output, then ends."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read, self._rest = read, b""

    async def __aenter__(self) -> Self:
        self._rest = self._read()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    async def read(self) -> bytes:
        data, self._rest = self._rest, b""
        return data

    async def write(self, data: bytes) -> None:
        del data


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _runs(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / "running", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor)
    finally:
        os.close(descriptor)


def _state(folder: Path, record: Record) -> MachineState:
    if _runs(folder):
        return MachineState.STOPPING if (folder / "ending").exists() else MachineState.RUNNING
    return MachineState.STARTING if record.resetting else MachineState.STOPPED


def _reap() -> None:
    for pid in list(_spawned):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _spawned.discard(pid)


def _read(folder: Path) -> Record | None:
    try:
        return msgspec.json.decode((folder / "record.json").read_bytes(), type=Record)
    except FileNotFoundError:
        return None


def _expected(folder: Path, vm: str) -> Record:
    record = _read(folder)
    if record is None:
        raise NotFound(f"machine {vm!r}: there is none on this node")
    return record


def _described(folder: Path) -> RetainedMachine | None:
    try:
        return msgspec.json.decode((folder / "retained.json").read_bytes(), type=RetainedMachine)
    except FileNotFoundError:
        return None


def _fresh(what: str) -> str:
    return f"{what}-{secrets.token_hex(6)}"


def _write(folder: Path, record: Record) -> None:
    _replace(folder / "record.json", msgspec.json.encode(record))


def _replace(file: Path, data: bytes) -> None:
    new = file.with_name(f".{file.name}.new")
    with new.open("wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())
    new.rename(file)
