"""Slices as processes of this host."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.slices.process.artifact_cache import Library, Packages
from hostler.drivers.slices.process.instance import Instance, unknown
from hostler.drivers.slices.process.instance_dir import InstanceDir, forget_logs, read_notes
from hostler.drivers.slices.process.log import read_log
from hostler.drivers.slices.process.privileges import Allowing
from hostler.errors import Closed, Conflict, HostlerError, NotFound, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.file_lock import FileLock
from hostler.ports.slices import Life, Run
from hostler.ports.worker_protocol import Admit, Gateway, Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    from hostler.drivers.slices.process.instance_dir import Note
    from hostler.kit.clock import Clock
    from hostler.ports.slices import Artifacts, Printed, Running

    OpenGateway: TypeAlias = Callable[[Path, str], AbstractAsyncContextManager[object]]

LOOK_EVERY = 5.0
ANSWERS_WITHIN = 30.0
"""Seconds after which a worker that does not answer counts as ended."""
ADOPTED_WITHIN = 5.0
STOPS_WITHIN = 5.0
"""Seconds for calls in progress when the agent ends."""
ALL_STOPPED_WITHIN = 15.0
"""Seconds after which an instance is killed when the agent ends."""
_log = logging.getLogger("hostler.agent")


class SliceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the slices of a node run."""

    node: str = ""
    host: str = "127.0.0.1"
    """The address at which their workers listen."""
    packages: str = ""
    """Folder or index that required packages are taken from; empty: only installed ones."""
    python: str = sys.executable
    uids: range | None = None
    """Users of their own; None: they run as the agent's user."""
    users_required: bool = False
    as_owner: bool = False
    """Run them as the agent's user even where they cannot be confined."""
    hidden: Path | None = None
    """Folder that they cannot see; by default their own."""
    disk_mib: int | None = None
    healthy_within: float = 50.0
    orphaned_after: float = 600.0
    look_every: float = LOOK_EVERY
    """Seconds between two examinations of an instance."""
    answers_within: float = ANSWERS_WITHIN


class ProcessSlices:
    """The slices of one node, to be entered with `async with`; leaving it stops them.

    One process at a time uses a folder. `open_gateway` opens the socket for their calls of other slices, at the given
    path and for the given token; without it they cannot call other slices.
    """

    def __init__(
        self,
        folder: Path,
        artifacts: Artifacts,
        options: SliceOptions | None = None,
        *,
        clock: Clock | None = None,
        open_gateway: OpenGateway | None = None,
    ) -> None:
        self._folder, self._clock = Path(folder).absolute(), clock or SystemClock()
        self._options = options = options or SliceOptions()
        self._gateway, self._gateway_token = self._folder / "gateway" / "calls.sock", secrets.token_urlsafe(32)
        self._open_gateway, self._open_gateways = open_gateway, AsyncExitStack()
        self._library = Library(self._folder / "artifacts", artifacts, Packages(options.python, options.packages))
        self._allowing = Allowing(
            str(self._folder),
            options.python,
            options.uids,
            required=options.users_required,
            owner=options.as_owner,
            hidden=options.hidden or self._folder,
            disk_mib=options.disk_mib,
        )
        self._instances: dict[str, Instance] = {}
        self._tokens: frozenset[str] = frozenset()
        self._listeners: list[Callable[[str], None]] = []
        self._lock: FileLock | None = None
        self._is_open = False
        self._opening = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self._looks: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *ended: object) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Adopt running instances. Conflict: another process uses the folder. Does nothing if nothing ever ran."""
        self._is_open = True
        if await asyncio.to_thread((self._folder / "runs").is_dir):
            async with self._opening:
                await self._have()

    async def _have(self) -> None:
        """Open the folder and adopt the instances that run there."""
        if self._lock is not None:
            return
        try:
            await asyncio.to_thread(self._open)
            notes = await asyncio.to_thread(read_notes, self._folder)
            if self._open_gateway is not None:
                await self._open_gateways.enter_async_context(self._open_gateway(self._gateway, self._gateway_token))
            await self._adopt(notes)
        except BaseException as error:  # undo everything: the next attempt starts over
            for instance in self._instances.values():
                instance.let_go()
            self._instances.clear()
            await self._open_gateways.aclose()
            self._unlock()
            if isinstance(error, OSError):
                why = error.strerror or error
                raise Unavailable(f"{self._folder}: cannot be used: {why}; check the disk") from None
            raise
        self._looking = asyncio.create_task(self._look(), name="slices: looking")

    async def _adopt(self, notes: Sequence[Note]) -> None:
        for note in notes:
            run = unknown(note)
            self._instances[run.id] = instance = Instance(run, InstanceDir.of(self._folder, run), self._notify)
            instance.uid = note.uid
        found = zip(list(self._instances.values()), notes)
        await asyncio.gather(*(instance.adopt(note, within=ADOPTED_WITHIN) for instance, note in found))
        for instance in self._instances.values():
            instance.tell(Gateway, self._gateway_token)

    async def aclose(self, *, stop: bool = True) -> None:
        """Stop all instances, or leave them to the next process that opens the folder."""
        self._is_open = False
        if self._lock is None:
            return
        if self._looking is not None:
            looking = (self._looking, *self._looks.values())
            for task in looking:
                task.cancel()
            await asyncio.wait(looking)
        try:
            if stop:
                await asyncio.gather(*(self._stop(one) for one in list(self._instances.values())))
                with suppress(OSError):
                    await self._library.release(self._used_artifacts)
        finally:
            for instance in self._instances.values():
                instance.let_go()
            self._instances.clear()
            await self._open_gateways.aclose()
            self._unlock()

    # The port

    async def load(self, run: Run) -> Running:
        async with self._turn(run) as instance:
            await self._load(instance, run)
            return instance.running()

    async def activate(self, run: Run) -> Running:
        async with self._turn(run) as instance:
            await self._load(instance, run)
            await instance.activate()
            return instance.running()

    async def deactivate(self, run: Run, *, grace: float) -> Running:
        if run.id not in self._instances:
            raise NotFound(f"{run.id}: not on this node; load it first")
        async with self._turn(run) as instance:
            if instance.is_there:
                await instance.deactivate(grace)
            return instance.running()

    async def unload(self, run: Run) -> None:
        if run.id not in self._instances:
            return
        async with self._turn(run) as instance:
            await instance.end()
            await self._forget(instance)

    async def list(self) -> Sequence[Running]:
        if not self._is_open:
            raise Closed("slices: their folder is not open")
        return [instance.running() for instance in self._instances.values() if _is_known(instance)]

    async def printed(self, artifact: str, instance: int = 0, *, after: str = "") -> Printed:
        if not self._is_open:
            raise Closed("slices: their folder is not open")
        return await asyncio.to_thread(read_log, self._folder, artifact, instance, after)

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    def admit(self, tokens: frozenset[str]) -> None:
        if tokens != self._tokens:
            self._tokens = tokens
            for instance in self._instances.values():
                instance.tell(Admit, tokens)

    def pid_of(self, run: Run) -> int | None:
        """Return the pid of its process; None: it has none."""
        instance = self._instances.get(run.id)
        return None if instance is None or not instance.has_process else instance.pid

    def cpu_seconds(self) -> dict[str, float]:
        """Implement `hostler.ports.slices.CpuTimes`."""
        found = ((name, instance.cpu_seconds()) for name, instance in self._instances.items())
        return {name: seconds for name, seconds in found if seconds is not None}

    # Internal

    @asynccontextmanager
    async def _turn(self, run: Run) -> AsyncIterator[Instance]:
        """Yield the instance, for one operation at a time."""
        if not self._is_open:
            raise Closed("slices: their folder is not open")
        async with self._opening:
            await self._have()
        while True:
            instance = self._instances.get(run.id)
            if instance is None:
                self._instances[run.id] = instance = Instance(run, InstanceDir.of(self._folder, run), self._notify)
            async with instance.turn:
                if self._instances.get(run.id) is instance:  # the previous operation has not removed it
                    yield instance
                    return

    async def _load(self, instance: Instance, run: Run) -> None:
        """Load the instance, unless it already runs with these settings."""
        if instance.is_there and _with(instance.run) == _with(run) and instance.running().life is not Life.ENDED:
            return
        try:
            await instance.end(by_force=not instance.is_there)
            instance.run = run
            held = await self._library.hold(run.artifact)
            taken = {other.uid for other in self._instances.values() if other is not instance}
            allowed = await self._allowing.allow(run.id, run.settings, taken)
            order = Order(
                artifact=run.artifact,
                instance=run.instance,
                template=run.template,
                settings=run.settings,
                module=held.info.module,
                node=self._options.node,
                host=self._options.host,
                tokens=self._tokens,
                gateway_token=self._gateway_token,
                orphaned_after=self._options.orphaned_after,
                healthy_within=self._options.healthy_within,
            )
            await instance.start(held, allowed, self._allowing, order, self._gateway)
        except BaseException:
            if not instance.has_process:
                await self._forget(instance)
            raise
        instance.tell(Admit, self._tokens)  # the tokens may have changed in the meantime

    def _used_artifacts(self) -> set[str]:
        return {one.run.artifact for one in self._instances.values()}

    async def _forget(self, instance: Instance) -> None:
        if self._instances.get(instance.run.id) is instance:
            del self._instances[instance.run.id]
        with suppress(OSError):
            await self._library.release(self._used_artifacts)

    async def _stop(self, instance: Instance) -> None:
        has_turn = False
        try:
            with suppress(TimeoutError, HostlerError):
                async with asyncio.timeout(ALL_STOPPED_WITHIN):
                    has_turn = await instance.turn.acquire()
                    if instance.is_there:
                        await instance.deactivate(STOPS_WITHIN)
            with suppress(HostlerError):  # it stays in the folder, for the next process
                await instance.end(by_force=not has_turn)
                self._instances.pop(instance.run.id, None)
        finally:
            if has_turn:
                instance.turn.release()

    def _notify(self, name: str) -> None:
        for changed in self._listeners:
            changed(name)

    async def _look(self) -> None:
        """Check all instances periodically: a worker that is not asked for long ends by itself."""
        while True:
            await self._clock.sleep(self._options.look_every)
            for name, instance in self._instances.items():
                if name not in self._looks:  # an instance that does not answer does not delay the others
                    look = asyncio.create_task(
                        instance.look(self._options.answers_within, self._options.disk_mib),
                        name=f"slices: look at {name}",
                    )
                    self._looks[name] = look
                    look.add_done_callback(partial(self._finish_look, name))
            kept = {InstanceDir(self._folder, name).name for name in self._instances}
            await asyncio.to_thread(forget_logs, self._folder, kept)

    def _finish_look(self, name: str, look: asyncio.Task[None]) -> None:
        del self._looks[name]
        if not look.cancelled() and (error := look.exception()) is not None:
            _log.error("slices: %s could not be checked", name, exc_info=error)

    def _open(self) -> None:
        for name in ("", "runs", "logs", "gateway"):
            (self._folder / name).mkdir(parents=True, mode=0o700, exist_ok=True)
        for name in ("", "gateway"):  # workers run as other users, and have descriptors of these folders
            (self._folder / name).chmod(0o711)
        lock = FileLock.acquire(self._folder / "lock")
        if lock is None:
            raise Conflict(f"{self._folder}: another process runs the slices of this node; end it first")
        self._lock = lock
        self._library.open()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _is_known(instance: Instance) -> bool:
    """Return whether it is not just being loaded for the first time."""
    return instance.is_there or instance.has_ended


def _with(run: Run) -> tuple[object, ...]:
    """Return the settings that an instance runs with, as far as they are known here."""
    settings = run.settings
    return run.template, settings.environment, settings.memory_mib, settings.cpus, settings.concurrency
