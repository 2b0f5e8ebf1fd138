"""What many clients asked about a few machines, and whether one service, asked one thing at a time, would answer so.

A name is absent, or a machine has it. Every write of a machine has a revision, so the order of the writes is known, and
three things are left to see:

* each write made of the state before it exactly what its verb says (`replayed`): else an update was lost;
* the order agrees with real time, reads included (`check_linearizable`);
* each refusal was right at some instant while its request was under way (`refused_rightly`).

A request whose answer was lost, or not waited for, happened or did not; the memory that goes with its Idempotency-Key
tells which, once everything is quiet.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

import msgspec

from hostler.model.vm import Power
from hostler.model.vm_api import VmPhase
from hostler.ports.store import KeyValue, ModRevision, Version
from hostler.testing import Call, check_linearizable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hostler.model.vm_api import VmView

Verb = Literal[
    "create", "get", "count", "mark", "resize", "start", "stop", "reset", "snapshot", "restore", "drop", "delete"
]
COUNTER = "count"
"""The label that `count` raises by one, under If-Match."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is wished for, as far as clients are told of it."""

    id: str
    count: int = 0
    mark: str = ""
    memory_mib: int
    power: Power = Power.ON
    snapshots: tuple[str, ...] = ()
    restores: int = 0
    deleting: bool = False
    generation: int = 1


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked. `key` is its Idempotency-Key; `if_match` the revision that it has read."""

    client: int
    key: str
    name: str
    verb: Verb
    value: int | str = ""
    """The new count, mark or size; the name of a snapshot."""
    if_match: int | None = None


class Told(msgspec.Struct, kw_only=True):
    """A request and what its client was told: a wish, a refusal, or that there is none of the name (`missed`).

    `gave_up`: it did not wait for the answer, at least once; what it was told of a repetition may not be all.
    """

    request: Request
    called_at: int
    ended_at: int
    wish: Wish | None = None
    revision: int = 0
    refusal: str = ""
    missed: bool = False
    gave_up: bool = False
    writes: bool = False
    """It was this one that made `revision`; else it only read it."""

    def __str__(self) -> str:
        said = self.refusal or ("not found" if self.missed else f"{self.wish} at {self.revision}")
        return f"{self.request} [{self.called_at}, {self.ended_at}] {'wrote' if self.writes else 'was told'} {said}"


def wish_of(view: VmView) -> Wish:
    """What a client was shown."""
    return Wish(
        id=view.id,
        count=int(view.labels.get(COUNTER, "0")),
        mark=view.spec.user_data,
        memory_mib=view.spec.memory_mib,
        power=view.power,
        snapshots=tuple(view.snapshots),
        restores=0 if view.restore is None else view.restore.number,
        deleting=view.phase is VmPhase.DELETING,
        generation=view.generation,
    )


class Remembered(msgspec.Struct, frozen=True):
    """What is kept of a write with an Idempotency-Key. `writes`: in the revision that it made; else it found it so."""

    wish: Wish
    revision: int
    writes: bool


def resolved(history: Iterable[Told], remembered: Mapping[str, Remembered], quiet_at: int) -> list[Told]:
    """The history with what became of the requests that nobody waited for, as it turned out when all was quiet.

    AssertionError: somebody was told that a write was done, or that nothing was written, and it is not so.
    """
    found: list[Told] = []
    for told in history:
        kept = remembered.get(told.request.key)
        if told.request.verb == "get":
            found.append(told)
        elif kept is None:
            assert told.wish is None, f"told that it was done, and nothing is known of it: {told}"
            if not told.gave_up:
                found.append(told)
        elif told.wish is not None:
            assert (told.wish, told.revision) == (kept.wish, kept.revision), f"remembered as {kept}: {told}"
            found.append(msgspec.structs.replace(told, writes=kept.writes))
        else:
            assert told.gave_up, f"told that nothing was written, and it was: {told}"
            if kept.writes:
                found.append(
                    Told(
                        request=told.request,
                        called_at=told.called_at,
                        ended_at=quiet_at,
                        wish=kept.wish,
                        revision=kept.revision,
                        writes=True,
                    )
                )
    return found


# What a verb makes of a machine


def after(request: Request, wish: Wish) -> Wish | None:
    """The wish after a write; None: the verb cannot have been done."""
    value = request.value
    if wish.deleting:
        return None
    changed: dict[str, object] = {}
    match request.verb:
        case "count":
            changed = {"count": value}
        case "mark":
            changed = {"mark": value}
        case "resize":
            changed = {"memory_mib": value}
        case "start":
            changed = {"power": Power.ON}
        case "stop":
            changed = {"power": Power.OFF}
        case "reset" if wish.power is Power.ON:
            changed = {}
        case "snapshot" if value not in wish.snapshots:
            changed = {"snapshots": (*wish.snapshots, value)}
        case "drop" if value in wish.snapshots:
            changed = {"snapshots": tuple(name for name in wish.snapshots if name != value)}
        case "restore" if value in wish.snapshots:
            changed = {"restores": wish.restores + 1}
        case "delete":
            changed = {"deleting": True}
        case _:
            return None
    return msgspec.structs.replace(wish, generation=wish.generation + 1, **changed)


class State(msgspec.Struct, frozen=True):
    """A name between two writes. `made` is what made it so; None: a machine that was being deleted went."""

    wish: Wish | None
    revision: int
    made: Told | None


def replayed(history: Iterable[Told]) -> dict[str, list[State]]:
    """The states of each name, one after the other. AssertionError: some write did not do what it says."""
    states: dict[str, list[State]] = {}
    for told in sorted((told for told in history if told.writes), key=lambda told: told.revision):
        request, wish = told.request, told.wish
        assert wish is not None
        line = states.setdefault(request.name, [State(None, 0, None)])
        before = line[-1]
        assert told.revision > before.revision, f"two writes of one revision: {told}\nand {before.made}"
        if request.verb == "create":
            if before.wish is not None:
                assert before.wish.deleting, f"a second machine of one name: {told}\nwhile there is {before.made}"
                line.append(State(None, before.revision, None))
            made = Wish(id=wish.id, mark=str(request.value), memory_mib=wish.memory_mib)
            assert wish == made, f"created another than was asked for: {told}"
        else:
            assert before.wish is not None, f"changed what there was not: {told}"
            assert request.if_match in (None, before.revision), f"an update was lost: {told}\nafter {before.made}"
            expected = after(request, before.wish)
            assert wish == expected, f"an update was lost: {told}\nshould have made {expected}\nof {before.made}"
        line.append(State(wish, told.revision, told))
    return states


# Whether it agrees with real time


def calls(history: Sequence[Told]) -> list[Call]:
    """The history as calls on a store whose keys are the names."""
    created = {told.wish.id: told.revision for told in history if told.wish and told.wish.generation == 1}
    found: list[Call] = []
    for told in history:
        request, wish = told.request, told.wish
        times = {"client": f"client {request.client}", "called_at": told.called_at, "ended_at": told.ended_at}
        if wish is None:
            if told.missed:
                found.append(Call(verb="get", key=request.name, outcome="done", **times))  # type: ignore[arg-type]
            continue
        value = msgspec.json.encode(wish)
        if not told.writes:
            kv = KeyValue(request.name, value, created[wish.id], told.revision, wish.generation)
            found.append(Call(verb="get", key=request.name, outcome="done", found=kv, **times))  # type: ignore[arg-type]
            continue
        condition = Version(request.name) == 0 if request.verb == "create" else None
        if request.if_match is not None:
            condition = ModRevision(request.name) == request.if_match
        found.append(
            Call(
                verb="put" if condition is None else "cas",
                key=request.name,
                outcome="done",
                value=value,
                condition=condition,
                succeeded=True,
                revision=told.revision,
                **times,  # type: ignore[arg-type]
            )
        )
        if wish.deleting:  # the leader takes it away at some time, if there is time
            gone = ModRevision(request.name) == told.revision
            found.append(Call("leader", "cas", request.name, told.called_at, condition=gone))
    return found


# Whether the refusals were right


def fits(told: Told, state: State) -> bool:
    """Whether the refusal is right in this state."""
    wish, value, refusal = state.wish, told.request.value, told.refusal
    if wish is None:
        return False
    if told.request.if_match not in (None, state.revision):
        return "is not the present one" in refusal
    reasons = {
        "has a machine of that name": True,
        "is being deleted": wish.deleting,
        "is off, there is nothing to reset": wish.power is Power.OFF,
        "already": value in wish.snapshots,
        "is still being dropped": value not in wish.snapshots,
        "has no snapshot": value not in wish.snapshots,
        "is not taken yet": value in wish.snapshots,
        "is being restored": value in wish.snapshots,
    }
    return any(holds for reason, holds in reasons.items() if reason in refusal)


TELLS_NOTHING = ("others kept writing", "others wrote the same", "its lock is held", "its lock was held")


def refused_rightly(history: Iterable[Told], states: Mapping[str, Sequence[State]]) -> None:
    """AssertionError: somebody was refused for a reason that held at no instant of the request."""
    windows = {name: _windows(line) for name, line in states.items()}
    for told in history:
        if not told.refusal or any(reason in told.refusal for reason in TELLS_NOTHING):
            continue
        line = states.get(told.request.name, [State(None, 0, None)])
        known = windows.get(told.request.name, [(0, _END)])
        assert any(
            start <= told.ended_at and told.called_at <= end and fits(told, state)
            for state, (start, end) in zip(line, known)
        ), f"refused for what was never so: {told}"


_END = 2**63


def _windows(line: Sequence[State]) -> list[tuple[int, int]]:
    """Within which instants each state may have held, by the calls and ends of the writes around it."""
    starts = [0 if state.made is None else state.made.called_at for state in line]
    ends = [_END if state.made is None else state.made.ended_at for state in line]
    earliest = list(itertools.accumulate(starts, max))
    latest = list(itertools.accumulate(reversed(ends), min))[::-1]
    return list(zip(earliest, [*latest[1:], _END]))


def check(history: Sequence[Told]) -> dict[str, list[State]]:
    """Everything above; the states of each name. AssertionError: what could not be."""
    states = replayed(history)
    violation = check_linearizable(calls(history))
    assert violation is None, str(violation)
    refused_rightly(history, states)
    return states
