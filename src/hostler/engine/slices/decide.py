"""The next single step of one instance, as a pure function of its record, what runs, and what the agent remembers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.model.deployment import SliceInstance, SliceState
from hostler.ports.slices import Life

if TYPE_CHECKING:
    from hostler.ports.slices import Run, Running

RESTARTS = 5
"""Restarts of a process within `WINDOW` seconds before its instance counts as failed."""
WINDOW = 120.0
MAX_WHY = 1000
LEFT = "the agent was restarted and it does not run"
AGAIN = "it is tried again: "
"""Separates the reason for the placement of an instance from the error that delays it."""
SHOWN = (SliceState.ACTIVATING, SliceState.ACTIVE, SliceState.DEACTIVATE)
"""States in which an instance may have endpoints."""

_S = SliceState
_replace = msgspec.structs.replace


class Do(enum.StrEnum):
    """Action of a step."""

    REST = "rest"
    TELL = "tell"
    """Write the given status of the instance."""
    LOAD = "load"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    UNLOAD = "unload"
    WITHDRAW = "withdraw"
    """Delete the endpoints of an instance whose key is gone."""
    RESTART = "restart"
    """Load and activate an instance whose process exited."""


class Show(enum.StrEnum):
    """What happens to the endpoints when the status of an instance is written."""

    KEEP = "keep"
    PUT = "put"
    DROP = "drop"


class Step(msgspec.Struct, frozen=True):
    """One step of an instance."""

    do: Do
    instance: SliceInstance | None = None
    """For TELL: the status to write; None removes the instance."""
    show: Show = Show.KEEP
    at: float | None = None
    """For REST: when to decide again; None: on the next change."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent remembers about an instance in its present state. It is recorded nowhere else."""

    inherited: bool = False
    """An earlier process of this agent left the instance in this state."""
    shown: bool = False
    """Endpoints may exist: this process or an earlier one published them and has not deleted them."""
    right: bool = False
    """The endpoints match the running process and are attached to the current session's lease."""
    failed: str = ""
    """Why the step of this state cannot be completed."""
    untold: bool = False
    """The last status could not be written to the store."""
    falls: int = 0
    """Restarts within the window."""
    restarted: int = 0
    """Restarts that are not yet recorded in the store."""
    detail: str = ""
    """The last error."""
    tries: int = 0
    """Consecutive failures of the step."""
    ended: str = ""
    """Why the process last exited."""
    due_at: float = 0.0
    """No step is tried before this instant."""
    now: float = 0.0


REST = Step(Do.REST)


def decide(run: Run, instance: SliceInstance | None, running: Running | None, memory: Memory) -> Step:
    """Return the next step; REST exactly when the leader must act next, or the step is not due yet."""
    if instance is None:
        if memory.shown:
            return _when_due(Do.WITHDRAW, memory)
        return _when_due(Do.UNLOAD, memory) if running is not None else REST
    if memory.shown and instance.state not in SHOWN:
        return Step(Do.TELL, instance, Show.DROP)
    return _STATES.get(instance.state, _at_rest)(run, instance, running, memory)


def _load(_run: Run, instance: SliceInstance, _running: Running | None, _memory: Memory) -> Step:
    return _to(instance, _S.LOADING)


def _loading(run: Run, instance: SliceInstance, running: Running | None, memory: Memory) -> Step:
    if running is not None and running.run == run and running.life is Life.LOADED:
        return _to(instance, _S.LOADED, why=_besides(_here(instance), running))
    if memory.failed or (memory.inherited and not _runs(running)):
        return _failed(instance, memory)
    if running is not None and (running.run != run or running.life is Life.ACTIVE):
        return _when_due(Do.UNLOAD, memory)  # left over from an earlier instance with the same number
    return _hindered(instance, memory) or _when_due(Do.LOAD, memory)


def _at_rest(_run: Run, _instance: SliceInstance, _running: Running | None, _memory: Memory) -> Step:
    return REST


def _activate(_run: Run, instance: SliceInstance, running: Running | None, memory: Memory) -> Step:
    if memory.inherited and not _runs(running):
        return _failed(instance, memory)
    return _to(instance, _S.ACTIVATING)


def _activating(run: Run, instance: SliceInstance, running: Running | None, memory: Memory) -> Step:
    if running is not None and running.run == run and running.life is Life.ACTIVE:
        return _to(instance, _S.ACTIVE, Show.PUT, why=_besides(_here(instance), running))
    if memory.failed or (memory.inherited and not _runs(running)):
        return _failed(instance, memory)
    if running is not None and running.run != run:
        return _when_due(Do.UNLOAD, memory)
    return _hindered(instance, memory) or _when_due(Do.ACTIVATE, memory)


def _active(_run: Run, instance: SliceInstance, running: Running | None, memory: Memory) -> Step:
    if running is not None and running.life is Life.ACTIVE:
        if instance.ready and memory.right and not memory.restarted:
            return REST
        restarts, why = instance.restarts + memory.restarted, instance.why
        if memory.restarted and memory.ended:
            why = _besides("", running, f"restarted: {memory.ended}")
        return Step(Do.TELL, _replace(instance, ready=True, restarts=restarts, why=why), Show.PUT)
    if memory.failed or (memory.inherited and not _runs(running)):
        return _failed(instance, memory)
    if memory.falls >= RESTARTS:
        detail = memory.detail or (running.detail if running is not None else "")
        why = f"the process exited again after {memory.falls} restarts within {WINDOW:g} s"
        return _to(instance, _S.FAILED, Show.DROP, why=f"{why}: {detail}" if detail else why)
    if instance.ready and not memory.untold:
        detail = memory.ended or memory.detail
        why = f"restarting: {detail}"[:MAX_WHY] if detail else instance.why
        return Step(Do.TELL, _replace(instance, ready=False, why=why), Show.DROP)
    return _when_due(Do.RESTART, memory)


def _deactivate(_run: Run, instance: SliceInstance, running: Running | None, memory: Memory) -> Step:
    if memory.inherited and not _runs(running):
        return _failed(instance, memory)
    return _to(instance, _S.DEACTIVATING, Show.DROP)


def _deactivating(_run: Run, instance: SliceInstance, running: Running | None, memory: Memory) -> Step:
    if memory.failed or (memory.inherited and not _runs(running)):
        return _failed(instance, memory)
    if running is None or running.life is not Life.ACTIVE:
        return _to(instance, _S.LOADED)  # an ended process need not be stopped: activating loads it again
    return _when_due(Do.DEACTIVATE, memory)


def _unload(_run: Run, instance: SliceInstance, _running: Running | None, _memory: Memory) -> Step:
    return _to(instance, _S.UNLOADING, Show.DROP)


def _unloading(_run: Run, instance: SliceInstance, running: Running | None, memory: Memory) -> Step:
    if running is None:
        return Step(Do.TELL, None, Show.DROP)
    if memory.failed:
        return _failed(instance, memory)
    return _when_due(Do.UNLOAD, memory)


_STATES = {
    _S.LOAD: _load,
    _S.LOADING: _loading,
    _S.LOADED: _at_rest,
    _S.ACTIVATE: _activate,
    _S.ACTIVATING: _activating,
    _S.ACTIVE: _active,
    _S.DEACTIVATE: _deactivate,
    _S.DEACTIVATING: _deactivating,
    _S.UNLOAD: _unload,
    _S.UNLOADING: _unloading,
    _S.FAILED: _at_rest,
}


def _runs(running: Running | None) -> bool:
    return running is not None and running.life is not Life.ENDED


def _to(instance: SliceInstance, state: SliceState, show: Show = Show.KEEP, *, why: str | None = None) -> Step:
    new = _replace(instance, state=state, ready=True, why=instance.why if why is None else why)
    return Step(Do.TELL, new, show)


def _besides(why: str, running: Running, then: str = "") -> str:
    """Join the placement reason, the driver's remarks about user and limits of the process, and what happened."""
    about = running.about if running.about not in why else ""
    return "; ".join(part for part in (why, about, then) if part)[:MAX_WHY]


def _hindered(instance: SliceInstance, memory: Memory) -> Step | None:
    """Report the error that delays an instance once it has occurred twice: it may last until the step's timeout."""
    if memory.tries < 2 or memory.untold:
        return None
    why = "; ".join(part for part in (_here(instance), f"{AGAIN}{memory.detail}") if part)[:MAX_WHY]
    return None if why == instance.why else _to(instance, instance.state, why=why)


def _here(instance: SliceInstance) -> str:
    """Return the placement reason without the error that delays the instance."""
    return instance.why.partition(AGAIN)[0].removesuffix("; ")


def _failed(instance: SliceInstance, memory: Memory) -> Step:
    return _to(instance, _S.FAILED, Show.DROP, why=memory.failed or LEFT)


def _when_due(do: Do, memory: Memory) -> Step:
    return Step(do) if memory.due_at <= memory.now else Step(Do.REST, at=memory.due_at)
