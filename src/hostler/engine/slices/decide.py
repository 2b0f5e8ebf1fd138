"""The next single step of one instance. Pure: the record, what runs and what is remembered come in, a step goes out."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from hostler.model.deployment import SliceInstance, SliceState
from hostler.ports.slices import Life

if TYPE_CHECKING:
    from hostler.ports.slices import Run, Running

RESTARTS = 5
"""How often a process is started again within `WINDOW` before its instance counts as failed."""
WINDOW = 120.0
MAX_WHY = 1000
LEFT = "the agent was restarted and it does not run"
AGAIN = "it is tried again: "
"""Before what keeps an instance from going on, behind why it is here."""
SHOWN = (SliceState.ACTIVATING, SliceState.ACTIVE, SliceState.DEACTIVATE)
"""States in which there may be endpoints."""

_S = SliceState
_replace = msgspec.structs.replace


class Do(enum.StrEnum):
    """What a step does."""

    REST = "rest"
    TELL = "tell"
    """Write the instance as it shall stand."""
    LOAD = "load"
    ACTIVATE = "activate"
    DEACTIVATE = "deactivate"
    UNLOAD = "unload"
    WITHDRAW = "withdraw"
    """Take away the endpoints of what has no key any more."""
    RESTART = "restart"
    """Load and activate what ended by itself."""


class Show(enum.StrEnum):
    """What becomes of the endpoints when an instance is told of."""

    KEEP = "keep"
    PUT = "put"
    DROP = "drop"


class Step(msgspec.Struct, frozen=True):
    """One step."""

    do: Do
    instance: SliceInstance | None = None
    """TELL: as it shall stand; None: it is gone."""
    show: Show = Show.KEEP
    at: float | None = None
    """REST: when to look again; None: news will come."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of an instance in its present state, and is known of nowhere else."""

    inherited: bool = False
    """An earlier process of this agent left it in this state."""
    shown: bool = False
    """There may be endpoints of it: published by this process, or by one before it, and not taken away."""
    right: bool = False
    """They are those of what runs, and hang on the present session."""
    failed: str = ""
    """Why the step of this state cannot be done."""
    untold: bool = False
    """The store could not be told of what happened."""
    falls: int = 0
    """How often it was started again within the window."""
    restarted: int = 0
    """How often it was, without the store having been told."""
    detail: str = ""
    """What went wrong last."""
    tries: int = 0
    """How often in a row its step failed."""
    ended: str = ""
    """Why it ended by itself, the last time."""
    due_at: float = 0.0
    """No step is tried before."""
    now: float = 0.0


REST = Step(Do.REST)


def decide(run: Run, instance: SliceInstance | None, running: Running | None, memory: Memory) -> Step:
    """What to do next; REST exactly when it is the leader's turn, or a step's time has not come."""
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
        return _when_due(Do.UNLOAD, memory)  # left over from an earlier life of the same number
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
            why = _besides("", running, f"it was started again: {memory.ended}")
        return Step(Do.TELL, _replace(instance, ready=True, restarts=restarts, why=why), Show.PUT)
    if memory.failed or (memory.inherited and not _runs(running)):
        return _failed(instance, memory)
    if memory.falls >= RESTARTS:
        detail = memory.detail or (running.detail if running is not None else "")
        why = f"it ended by itself after {memory.falls} restarts within {WINDOW:g} s"
        return _to(instance, _S.FAILED, Show.DROP, why=f"{why}: {detail}" if detail else why)
    if instance.ready and not memory.untold:
        detail = memory.ended or memory.detail
        why = f"it is being started again: {detail}"[:MAX_WHY] if detail else instance.why
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
        return _to(instance, _S.LOADED)  # what ended need not be stopped: activating loads it again
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
    """Why it is here, as whom it runs and what holds it, where that is not as it should be, and what happened to it."""
    about = running.about if running.about not in why else ""
    return "; ".join(part for part in (why, about, then) if part)[:MAX_WHY]


def _hindered(instance: SliceInstance, memory: Memory) -> Step | None:
    """Tell what keeps it from going on once that happened again: it may be so until its time is over."""
    if memory.tries < 2 or memory.untold:
        return None
    why = "; ".join(part for part in (_here(instance), f"{AGAIN}{memory.detail}") if part)[:MAX_WHY]
    return None if why == instance.why else _to(instance, instance.state, why=why)


def _here(instance: SliceInstance) -> str:
    """Why it is here, without what kept it from going on."""
    return instance.why.partition(AGAIN)[0].removesuffix("; ")


def _failed(instance: SliceInstance, memory: Memory) -> Step:
    return _to(instance, _S.FAILED, Show.DROP, why=memory.failed or LEFT)


def _when_due(do: Do, memory: Memory) -> Step:
    return Step(do) if memory.due_at <= memory.now else Step(Do.REST, at=memory.due_at)
