"""One instance: its process and its state."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from hostler.drivers.slices.process.artifact_cache import LIB, PACKAGES
from hostler.drivers.slices.process.instance_dir import TEMPORARY, WORK, Control, Declined, NoConnection, Note
from hostler.drivers.slices.process.privileges import release
from hostler.drivers.slices.process.process import FAMILY, Process, cpu_seconds, end_family, end_user
from hostler.drivers.slices.process.process_handle import has_proc
from hostler.errors import Refused, Unavailable
from hostler.kit.processes import environment
from hostler.kit.tasks import run_to_end
from hostler.model.deployment import SliceSettings
from hostler.ports.slices import LAST_WORDS, Life, Run, Running
from hostler.ports.worker_protocol import GATEWAY, Activate, Deactivate, Look, Order, Quit, State

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostler.drivers.slices.process.artifact_cache import Held
    from hostler.drivers.slices.process.instance_dir import InstanceDir
    from hostler.drivers.slices.process.privileges import Allowed, Allowing
    from hostler.drivers.slices.process.process import Mark
    from hostler.ports.worker_protocol import Control as Question

QUITS_WITHIN = 12.0
"""Seconds for a worker to end by itself."""
ENDS_WITHIN = 30.0
"""Seconds within which a killed process is gone."""
STOPS_WITHIN = 8.0
"""Seconds for `stop` when an instance is deactivated, in addition to those for its calls."""
MAX_LEFT = 1024 * 1024
"""Maximum number of bytes read from a pipe at the end."""
SEEN_WITHIN = 2.0
"""Seconds between the end of a connection and the end of its process."""


class Instance:
    """One instance. `changed` is called when it changed by itself."""

    def __init__(self, run: Run, place: InstanceDir, changed: Callable[[str], None]) -> None:
        self.run, self._place, self._changed = run, place, changed
        self.turn = asyncio.Lock()
        """Held during one operation on the instance."""
        self.uid: int | None = None
        self._process: Process | None = None
        self._control: Control | None = None
        self._groups: tuple[str, ...] = ()
        self._mark: Mark | None = None
        self._family = ""
        self._output = -1
        """The agent's descriptor of the pipe that it prints into; the agent reads what is left there at its end."""
        self._state: State | None = None
        self._ended = ""
        self._about = ""
        self._watching: asyncio.Task[None] | None = None

    @property
    def is_there(self) -> bool:
        """Whether it can be asked for something."""
        return self._process is not None and not self._ended and self._state is not None

    @property
    def has_process(self) -> bool:
        return self._process is not None and not self._process.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether it was running and has ended."""
        return bool(self._ended)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.mark.pid

    def running(self) -> Running:
        """Return the instance as observed."""
        state = self._state
        if not self.is_there or state is None:
            return Running(run=self.run, life=Life.ENDED, detail=self._ended or "it was not loaded")
        return Running(
            run=self.run,
            life=state.life,
            methods=state.methods,
            address=state.address if state.life is Life.ACTIVE else "",
            detail=state.detail,
            about=self._about,
            in_flight=state.in_flight,
        )

    # Start

    async def start(self, held: Held, allowed: Allowed, allowing: Allowing, order: Order, gateway: Path) -> None:
        """Start its process and import the slice.

        Refused: it cannot be started, and why. On failure no process is left.
        """
        self._forget()
        try:
            await self._start(held, allowed, allowing, order, gateway)
            await self._connect()
            await self.ask(Look, doing="was being imported")
        except BaseException:
            await run_to_end(self.end(by_force=True))
            raise
        self._watching = asyncio.create_task(self._watch(), name=f"slice {self.run.id}")

    async def adopt(self, note: Note, *, within: float) -> None:
        """Adopt the process that an earlier agent left, or what is left of it."""
        self.uid, self._groups, self._about = note.uid, note.groups, note.about
        self._mark, self._family = note.process, note.family
        self._process = Process.adopt(note.process, is_confined=note.confined)
        if self._process is None:
            self._ended = "its process ended while no agent was running"
            return
        self._output = _open_pipe(f"/proc/{note.process.pid}/fd/{note.output}")
        try:
            async with asyncio.timeout(within):
                await self._connect()
                state = await self.ask(Look, doing="was adopted")
        except (TimeoutError, Refused):
            self._ended = self._ended or f"its process did not answer within {within:g} s"
            return
        if (state.artifact, state.instance) != (self.run.artifact, self.run.instance):
            self._ended = f"its process says that it is {state.artifact}#{state.instance}"
            return
        self.run = Run(
            artifact=state.artifact, instance=state.instance, template=state.template, settings=state.settings
        )
        self._watching = asyncio.create_task(self._watch(), name=f"slice {self.run.id}")

    # While it runs

    async def activate(self) -> None:
        """Activate the instance. Refused: `start` raised, or it did not become healthy."""
        await self.ask(Activate, doing="was being started")

    async def deactivate(self, grace: float) -> None:
        """Deactivate the instance. Refused: `stop` raised, or did not end; then its process counts as ended."""
        try:
            async with asyncio.timeout(grace + STOPS_WITHIN):
                await self.ask(Deactivate, grace, doing="was being stopped")
        except TimeoutError:
            self._end_as(f"stop has not ended within {STOPS_WITHIN:g} s")
            raise Refused(f"{self.run.id}: {self._ended}") from None

    def cpu_seconds(self) -> float | None:
        """Return the processor time of its process and children; None: it has none."""
        return cpu_seconds(self.pid, self._groups) if self.has_process and self.pid is not None else None

    async def ask(self, question: type[Question], *more: object, doing: str) -> State:
        """Send a request and return the state. Refused: the worker declined, or its process ended."""
        if self._control is None or self._process is None:
            raise Refused(f"{self.run.id}: {self._ended or 'it has no process'}")
        try:
            self._state = await self._control.ask(question, *more)
        except Declined as error:
            raise Refused(f"{self.run.id}: {error}") from None
        except NoConnection:
            with suppress(TimeoutError):
                async with asyncio.timeout(SEEN_WITHIN):
                    await self._process.wait_until_ended()
            self._record_end()
            raise Refused(f"{self.run.id}: while it {doing}, {self._ended}") from None
        return self._state

    def tell(self, question: type[Question], *more: object) -> None:
        """Send a request without waiting for an answer."""
        if self._control is not None:
            self._control.tell(question, *more)

    async def look(self, within: float, disk_mib: int | None = None) -> None:
        """Update the state; an instance that does not answer, or whose folders are too large, counts as ended."""
        if not self.is_there or self._control is None:
            return
        if disk_mib is not None and (why := await asyncio.to_thread(self._place.too_large, disk_mib, self.pid)):
            self._end_as(why)
            return
        try:
            async with asyncio.timeout(within):
                self._state = await self._control.ask(Look)
        except (NoConnection, Declined):
            pass  # its end is noticed elsewhere
        except TimeoutError:
            self._end_as(f"its process has not answered for {within:g} s")

    # End

    async def end(self, *, by_force: bool = False) -> None:
        """End its process, and delete its files. Repeatable. Unavailable: it was killed, and still exists."""
        self._unwatch()
        process = self._process
        if process is not None and not process.has_ended:
            try:
                if not by_force and self._control is not None and not self._ended:
                    self._control.tell(Quit)
                    async with asyncio.timeout(QUITS_WITHIN):
                        await process.wait_until_ended()
            except TimeoutError:
                pass
            finally:
                await run_to_end(self._kill(process))
        await run_to_end(asyncio.to_thread(self._clean))
        self._forget()

    def let_go(self) -> None:
        """Leave it to the next agent."""
        self._unwatch()
        self._close_output()
        if self._process is not None:
            self._process.let_go()
        if self._control is not None:
            self._control.close()

    async def _kill(self, process: Process) -> None:
        if not process.has_ended:
            process.kill()
        try:
            async with asyncio.timeout(ENDS_WITHIN):
                await process.wait_until_ended()
        except TimeoutError:
            raise Unavailable(
                f"{self.run.id}: its process {process.mark.pid} was killed and has not ended within {ENDS_WITHIN:g} s"
            ) from None

    def _clean(self) -> None:
        if self.uid is not None:
            end_user(self.uid)
        elif self._mark is not None:
            end_family(self._mark, self._family, self._groups)
        self._take_output()
        release(self._groups)
        self._groups, self.uid, self._mark, self._family = (), None, None, ""
        self._place.remove()

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._process = self._control = self._state = None
        self._ended = self._about = ""
        self._close_output()

    def _take_output(self) -> None:
        """Append output to the log that the worker did not write there, as far as it is available at once."""
        found = b""
        with suppress(OSError):  # nothing more to read
            while self._output >= 0 and len(found) < MAX_LEFT and _is_readable(self._output):
                if not (text := os.read(self._output, MAX_LEFT)):
                    break
                found += text
        if found:
            self._place.append(found)

    def _close_output(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    # Internal

    async def _start(self, held: Held, allowed: Allowed, allowing: Allowing, order: Order, gateway: Path) -> None:
        self.uid, self._groups, self._family = allowed.uid, allowed.groups, secrets.token_hex(8)
        await run_to_end(asyncio.to_thread(self._place.make, allowed.uid))
        keep: list[int] = []
        try:
            listener = self._place.listen()
            keep.append(listener.detach())
            parts = [part for part in (held.folder / LIB, held.folder / PACKAGES) if part.is_dir()]
            argv, own_root = allowed.argv, False
            if allowed.confinement is not None:
                own_root = allowed.confinement.own_root
                plan = msgspec.structs.replace(
                    allowed.confinement,
                    readable=(*allowed.confinement.readable, *map(str, parts)),
                    work=str(self._place.folder / WORK),
                    temporary=str(self._place.folder / TEMPORARY),
                    gateway=str(gateway.parent),
                )
                argv = (*argv, msgspec.json.encode(plan).decode())
            keep += (logs := self._place.open_logs())
            output, into = os.pipe()
            keep += (output, into)
            order = msgspec.structs.replace(
                order,
                control=keep[0],
                path=tuple(self._reach(part, keep) for part in parts),
                shown=tuple(str(part) for part in parts),
                output=output,
                logs=logs,
                module=held.info.module,
                gateway=f"{GATEWAY if own_root else self._reach(gateway.parent, keep)}/{gateway.name}",
            )
            self._output = _open_pipe(f"/proc/self/fd/{output}", else_copy=output)
            self._process, pipe = Process.start(
                argv,
                cwd=self._place.folder / WORK,
                environment=environment() | {"LC_ALL": "C.UTF-8", FAMILY: self._family},
                output=into,
                keep=[descriptor for descriptor in keep if descriptor != into],
                is_confined=allowed.confinement is not None,
            )
            self._mark = self._process.mark
        except OSError as error:
            raise Unavailable(f"{self.run.id}: {allowed.argv[0]} cannot be run: {error.strerror}") from None
        finally:
            for descriptor in keep:
                os.close(descriptor)
        self._about = allowing.enter(allowed, self._process.mark.pid)
        note = Note(
            artifact=self.run.artifact,
            instance=self.run.instance,
            template=self.run.template,
            process=self._process.mark,
            uid=self.uid,
            groups=self._groups,
            family=self._family,
            output=output,
            confined=allowed.confinement is not None,
            about=self._about,
        )
        with pipe:  # the note first: a process without one never gets its order, and ends
            await run_to_end(asyncio.to_thread(self._place.write, note))
            await asyncio.to_thread(_hand_over, pipe, msgspec.json.encode(order))

    def _reach(self, folder: Path, keep: list[int]) -> str:
        """Return a path of the folder for the worker, which may run as another user without access to the parents."""
        if self.uid is None and (folder.name in (LIB, PACKAGES) or not has_proc()):
            return str(folder.absolute())
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        keep.append(descriptor)
        return f"/proc/self/fd/{descriptor}"

    async def _connect(self) -> None:
        try:
            self._control = await Control.connect(self._place.folder, self._record_state)
        except NoConnection as error:
            self._ended = str(error)
            raise Refused(f"{self.run.id}: {error}") from None

    def _record_state(self, state: State) -> None:
        self._state = state
        if not self._ended:
            self._changed(self.run.id)

    async def _watch(self) -> None:
        process = self._process
        if process is not None:
            await process.wait_until_ended()
            self._record_end()

    def _record_end(self) -> None:
        process = self._process
        how = process.how if process is not None and process.how else "its process ended the connection"
        self._take_output()
        last = self._place.last_words()
        self._end_as(f"{how}, {LAST_WORDS}{last.replace('; ', ', ')}" if last else how)

    def _end_as(self, why: str) -> None:
        if not self._ended:
            self._ended = why
            self._changed(self.run.id)

    def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None


def _open_pipe(path: str, *, else_copy: int = -1) -> int:
    """Open a pipe for non-blocking reads; -1: not a pipe, or it cannot be opened.

    `else_copy`: the descriptor to copy on a host without `/proc`. Reads through a copy block, as the worker's do.
    """
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if else_copy >= 0 and not has_proc():
            return os.dup(else_copy)
    return -1


def _is_readable(descriptor: int) -> bool:
    """Return whether a read would return at once."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _hand_over(pipe: BinaryIO, order: bytes) -> None:
    """Write the order through a duplicate descriptor.

    A caller that gives up closes the other one and ends the process, which ends this write.
    """
    # the process has ended, which is noticed elsewhere
    with suppress(BrokenPipeError), open(os.dup(pipe.fileno()), "wb") as own:
        own.write(order)


def unknown(note: Note) -> Run:
    """Return what is known of an instance that cannot be asked."""
    return Run(artifact=note.artifact, instance=note.instance, template=note.template, settings=SliceSettings())
