"""What is done next for an instance of a slice: every state, with everything that may run beside it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
import pytest

from hostler.engine.slices.decide import LEFT, RESTARTS, SHOWN, Do, Memory, Show, Step, decide
from hostler.model.deployment import SliceInstance, SliceState, may_move
from hostler.ports.slices import Life, Method, Run, Running

if TYPE_CHECKING:
    from collections.abc import Iterator

S = SliceState
RUN = Run(artifact="org:hello:1", instance=3)
OTHER = msgspec.structs.replace(RUN, template=7)
RESTS = (S.LOADED, S.FAILED)
NOW = 100.0
replace = msgspec.structs.replace


def running(life: Life, run: Run = RUN) -> Running:
    address = "h:1" if life is Life.ACTIVE else ""
    return Running(run=run, life=life, methods=(Method(name="m"),), address=address, detail="boom")


WORLDS = [None, *(running(life, run) for life, run in itertools.product(Life, (RUN, OTHER)))]
INSTANCES = [None, *(SliceInstance(state=state, why="w", ready=r) for state in S for r in (True, False))]
BOTH = (False, True)


def memories() -> Iterator[Memory]:
    for inherited, shown, right, untold, failed, falls, restarted, due in itertools.product(
        BOTH, BOTH, BOTH, BOTH, ("", "no"), (0, RESTARTS), (0, 1), (NOW, NOW + 1)
    ):
        if right and not shown:
            continue  # they stand, and nobody put them there
        yield Memory(
            inherited=inherited,
            shown=shown,
            right=right,
            untold=untold,
            failed=failed,
            falls=falls,
            restarted=restarted,
            due_at=due,
            now=NOW,
        )


def is_at_rest(instance: SliceInstance | None, world: Running | None, memory: Memory) -> bool:
    """Whether it is the leader's turn."""
    if instance is None:
        return world is None and not memory.shown
    if memory.shown and instance.state not in SHOWN:
        return False
    if instance.state is S.ACTIVE:
        served = world is not None and world.life is Life.ACTIVE
        return served and instance.ready and memory.right and not memory.restarted
    return instance.state in RESTS


def check(instance: SliceInstance | None, world: Running | None, memory: Memory) -> Step:
    """One decision, and what is true of every one."""
    step = decide(RUN, instance, world, memory)
    if step.do is Do.REST:
        waits = step.at is not None and step.at == memory.due_at > memory.now
        assert waits or is_at_rest(instance, world, memory)
        return step
    assert not is_at_rest(instance, world, memory)
    if step.do is not Do.TELL:
        assert memory.due_at <= memory.now, "before its time"
        assert step.do is not Do.DEACTIVATE or (instance is not None and not memory.shown)
        assert instance is not None or step.do is (Do.WITHDRAW if memory.shown else Do.UNLOAD)
        return step
    assert instance is not None
    new = step.instance
    state = None if new is None else new.state
    if state is instance.state:
        assert new != instance or step.show is not Show.KEEP, "it tells nothing"
    else:
        assert may_move(instance.state, state), f"{instance.state} to {state}"
    if step.show is Show.PUT:
        assert world is not None
        assert (world.life, state) == (Life.ACTIVE, S.ACTIVE)
    if state not in SHOWN and (instance.state in SHOWN or memory.shown):
        assert step.show is Show.DROP, "endpoints stay"
    if new is not None:
        assert new.ready or (step.show is Show.DROP and (new.state is S.ACTIVE or new == instance))
        assert new.template == instance.template
        assert new.state is S.FAILED or new.why == instance.why
        assert new.state is not S.FAILED or new.why or instance.state is S.FAILED
    return step


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda one: "gone" if one is None else f"{one.state}-{one.ready}")
def test_no_move_is_illegal_and_there_is_a_next_step_or_rest(instance: SliceInstance | None) -> None:
    for world, memory in itertools.product(WORLDS, memories()):
        check(instance, world, memory)


def done(
    step: Step, instance: SliceInstance | None, world: Running | None, memory: Memory
) -> tuple[SliceInstance | None, Running | None, Memory]:
    """The world after a step that went well."""
    if step.do is Do.TELL:
        moves = step.instance is None or instance is None or step.instance.state is not instance.state
        shown = memory.shown if step.show is Show.KEEP else step.show is Show.PUT
        right = memory.right if step.show is Show.KEEP else step.show is Show.PUT
        memory = replace(memory, shown=shown, right=right, restarted=0, untold=False)
        return step.instance, world, replace(memory, inherited=False, failed="") if moves else memory
    memory = replace(memory, inherited=False)
    if step.do is Do.WITHDRAW:
        return instance, world, replace(memory, shown=False, right=False)
    if step.do is Do.UNLOAD:
        return instance, None, memory
    if step.do is Do.RESTART:
        return instance, running(Life.ACTIVE), replace(memory, restarted=1, right=False)
    life = Life.ACTIVE if step.do is Do.ACTIVATE else Life.LOADED
    return instance, running(life, RUN if world is None or world.life is Life.ENDED else world.run), memory


def test_wherever_it_begins_it_comes_to_rest_in_a_few_steps() -> None:
    longest = 0
    for instance, world, memory in itertools.product(INSTANCES, WORLDS, memories()):
        one, at, known = instance, world, replace(memory, due_at=NOW)
        for number in range(12):
            step = check(one, at, known)
            if step.do is Do.REST:
                longest = max(longest, number)
                break
            one, at, known = done(step, one, at, known)
        else:
            pytest.fail(f"{instance}, {world}, {memory}: no rest")
        assert one is None or one.state in (S.LOADED, S.ACTIVE, S.FAILED)
    assert longest <= 6


def test_a_step_that_cannot_be_done_ends_in_failed_with_why() -> None:
    for state in (S.LOADING, S.ACTIVATING, S.DEACTIVATING, S.UNLOADING):
        one = SliceInstance(state=state)
        step = check(one, running(Life.ACTIVE, OTHER), Memory(failed="the import broke"))
        assert step.instance is not None
        assert (step.instance.state, step.instance.why) == (S.FAILED, "the import broke")


def test_what_an_earlier_process_left_on_its_way_and_does_not_run_has_failed() -> None:
    left = (S.LOADING, S.ACTIVATE, S.ACTIVATING, S.ACTIVE, S.DEACTIVATE, S.DEACTIVATING)
    for state, world in itertools.product(left, (None, running(Life.ENDED))):
        step = check(SliceInstance(state=state), world, Memory(inherited=True, shown=state in SHOWN))
        assert step.instance is not None
        assert (step.instance.state, step.instance.why) == (S.FAILED, LEFT)
    step = check(SliceInstance(state=S.UNLOADING), None, Memory(inherited=True))
    assert (step.do, step.instance) == (Do.TELL, None)


def test_what_runs_is_adopted_as_far_as_it_is() -> None:
    for state, life, then in (
        (S.LOADING, Life.LOADED, S.LOADED),
        (S.ACTIVATING, Life.ACTIVE, S.ACTIVE),
        (S.ACTIVE, Life.ACTIVE, S.ACTIVE),
        (S.DEACTIVATING, Life.LOADED, S.LOADED),
    ):
        step = check(SliceInstance(state=state), running(life), Memory(inherited=True))
        assert step.instance is not None
        assert step.instance.state is then
    assert check(SliceInstance(state=S.ACTIVATING), running(Life.LOADED), Memory(inherited=True)).do is Do.ACTIVATE
    assert check(SliceInstance(state=S.DEACTIVATING), running(Life.ACTIVE), Memory(inherited=True)).do is Do.DEACTIVATE
    assert check(SliceInstance(state=S.UNLOADING), running(Life.ENDED), Memory(inherited=True)).do is Do.UNLOAD


def test_what_ended_is_told_of_first_and_started_again_in_its_time() -> None:
    ended, one = running(Life.ENDED), SliceInstance(state=S.ACTIVE)
    step = check(one, ended, Memory(shown=True, right=True, due_at=NOW + 1, now=NOW))
    assert step.show is Show.DROP
    assert step.instance is not None
    assert not step.instance.ready
    waiting = check(step.instance, ended, Memory(due_at=NOW + 1, now=NOW))
    assert waiting == Step(Do.REST, at=NOW + 1)
    assert check(step.instance, ended, Memory(due_at=NOW, now=NOW)).do is Do.RESTART
    # The store is away: it is started again all the same.
    assert check(one, ended, Memory(shown=True, untold=True)).do is Do.RESTART
    back = check(step.instance, running(Life.ACTIVE), Memory(restarted=1))
    assert back.show is Show.PUT
    assert back.instance == SliceInstance(state=S.ACTIVE, restarts=1)


def test_what_ended_too_often_has_failed_with_what_it_said() -> None:
    step = check(SliceInstance(state=S.ACTIVE, ready=False), running(Life.ENDED), Memory(falls=RESTARTS))
    assert step.instance is not None
    assert step.instance.state is S.FAILED
    assert "boom" in step.instance.why
    assert "5 restarts" in step.instance.why


def test_why_it_ended_stands_with_the_instance_while_and_after_it_is_started_again() -> None:
    said = "its process ended with exit code 3, its last words: boom"
    one = SliceInstance(state=S.ACTIVE, why="fewest here")
    fell = decide(RUN, one, running(Life.ENDED), Memory(shown=True, right=True, ended=said, due_at=NOW + 1, now=NOW))
    assert fell.instance is not None
    assert (fell.instance.ready, fell.instance.why) == (False, f"restarting: {said}")
    back = decide(RUN, fell.instance, running(Life.ACTIVE), Memory(restarted=1, ended=said))
    assert back.instance is not None
    assert (back.instance.ready, back.instance.why) == (True, f"restarted: {said}")
    # The store was away meanwhile, and is told of all of it at once.
    late = decide(RUN, one, running(Life.ACTIVE), Memory(restarted=2, ended=said))
    assert late.instance is not None
    assert (late.instance.restarts, late.instance.why) == (2, f"restarted: {said}")
    # Only endpoints are put anew: nothing has happened to it.
    again = decide(RUN, back.instance, running(Life.ACTIVE), Memory(ended=said))
    assert again.instance == back.instance


def test_as_whom_it_runs_stands_with_the_instance_once() -> None:
    about = "it runs as the agent does, without capabilities: users cannot be changed here"
    loaded = msgspec.structs.replace(running(Life.LOADED), about=about)
    step = decide(RUN, SliceInstance(state=S.LOADING, why="fewest here"), loaded, Memory())
    assert step.instance is not None
    assert (step.instance.state, step.instance.why) == (S.LOADED, f"fewest here; {about}")
    active = msgspec.structs.replace(running(Life.ACTIVE), about=about)
    step = decide(RUN, msgspec.structs.replace(step.instance, state=S.ACTIVATING), active, Memory())
    assert step.instance is not None
    assert (step.instance.state, step.instance.why) == (S.ACTIVE, f"fewest here; {about}")
    step = decide(RUN, step.instance, active, Memory(restarted=1, ended="boom"))
    assert step.instance is not None
    assert step.instance.why == f"{about}; restarted: boom"


@pytest.mark.parametrize(("state", "verb"), [(S.LOADING, Do.LOAD), (S.ACTIVATING, Do.ACTIVATE)])
@pytest.mark.parametrize("why", ["", "fewest of it"])
def test_what_keeps_an_instance_from_going_on_is_told_once_when_it_happened_again(
    state: SliceState, verb: Do, why: str
) -> None:
    instance = SliceInstance(state=state, why=why)
    world = running(Life.LOADED) if state is S.ACTIVATING else None
    once = Memory(detail="the disk is full", tries=1, now=NOW)
    assert decide(RUN, instance, world, once).do is verb
    again = replace(once, tries=2, due_at=NOW + 1)
    assert decide(RUN, instance, world, replace(again, untold=True)).do is Do.REST
    told = decide(RUN, instance, world, again)
    said = f"{why}; it is tried again: the disk is full".removeprefix("; ")
    assert (told.do, told.instance) == (Do.TELL, replace(instance, why=said))
    assert told.instance is not None
    assert decide(RUN, told.instance, world, again) == Step(Do.REST, at=NOW + 1)
    other = decide(RUN, told.instance, world, replace(again, tries=3, detail="it is gone")).instance
    assert other is not None
    assert other.why == f"{why}; it is tried again: it is gone".removeprefix("; ")
    life = Life.ACTIVE if state is S.ACTIVATING else Life.LOADED
    on = decide(RUN, told.instance, running(life), replace(again, tries=0)).instance
    assert on is not None
    assert (on.state, on.why) == (S.ACTIVE if state is S.ACTIVATING else S.LOADED, why)
