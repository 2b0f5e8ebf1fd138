"""A machine that has changed hands, as a leader sees it whose mirrors know of that in any order: it does nothing."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
import pytest
from controller_world import ORG, PROJECT, node, vm

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.controllers.machines import MachineController
from hostler.engine.labs.vm_reassignment import Held, Owner, transfer, unfit
from hostler.engine.quotas import quota_release
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.view import View
from hostler.errors import Conflict, QuotaExceeded
from hostler.keys.families import ALIVE, COMMAND, HANDLE, LOCK, MEMBER, NAME, QUOTA, VM
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import Quota
from hostler.model.node import Departure, Heartbeat, OffConfirmation, VmCommand
from hostler.model.vm import LockInfo, MachineState, Move, VmHandle
from hostler.ports.store import Version

THEIRS = Owner(org="labs", project="ada", name="lab-5", labels={"lab": "5"}, expires_at=2000.0)
OLD, NEW = f"{ORG}/{PROJECT}/a", "labs/ada/a"
WISH = vm("a", labels={"shape": "s"})
HANDLED = VmHandle(id="a", node="n1", machine="m", state=MachineState.RUNNING, generation=1, seen_at=0.0)
COMMANDED = VmCommand(
    org=ORG, project=PROJECT, vm="a", name=WISH.name, spec=WISH.spec, tags=WISH.labels, arrived=0, generation=1
)
AT: dict[str, Any] = {"org": ORG, "project": PROJECT}
replace = msgspec.structs.replace


class Led:
    """A leader that is one."""

    fence = 7

    @property
    def leadership(self) -> Led:
        return self

    def check(self) -> None:
        pass

    def guard(self) -> Any:
        return Version("leader") == 1


async def laid(store: MemoryStore, *, alive: bool = True, **records: Any) -> Held:
    """The machine runs on n1; there is another node with room."""
    put = {"wish": WISH, "handle": HANDLED, "command": COMMANDED, "member": node("n1")} | records
    await store.put("leader", b"l")
    await store.txn(
        [],
        [
            VM.put(put["wish"], vm="a", **AT),
            NAME.put("a", name=WISH.name, **AT),
            HANDLE.put(put["handle"], vm="a", **AT),
            COMMAND.put(put["command"], node="n1", vm="a"),
            MEMBER.put(put["member"], node="n1"),
            MEMBER.put(node("n2"), node="n2"),
        ],
    )
    for name in ("n1", "n2") if alive else ("n2",):
        await store.txn([], [ALIVE.put(Heartbeat(holder="h", started_at=0.0), node=name)])
    held = (await VM.get(store, vm="a", **AT), await HANDLE.get(store, vm="a", **AT))
    return Held(*held, await COMMAND.get(store, node="n1", vm="a"))  # type: ignore[arg-type]


async def given(store: MemoryStore, held: Held) -> bool:
    when, then = await transfer(store, held, THEIRS, fence=7)
    return (await store.txn([Led().guard(), *when], then)).succeeded


async def dump(store: MemoryStore) -> dict[str, int]:
    return {kv.key: kv.mod_revision for kv in (await store.range("/")).items}


def play(story: Any) -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock) as store:
            await story(store, clock)

    run_virtual(main)


CASES: dict[str, dict[str, Any]] = {
    "its node lives": {},
    "its node is silent": {"alive": False},
    "its node is off": {"alive": False, "member": node("n1", off=OffConfirmation(by="op", at=0.0))},
    "it is fenced": {
        "alive": False,
        "wish": replace(WISH, on_node_loss="fence"),
        "command": replace(COMMANDED, fenced=True),
    },
}


KEYS = (
    (0, VM.fill(vm="a", **AT)),
    (0, VM.fill(org="labs", project="ada", vm="a")),
    (1, HANDLE.fill(vm="a", **AT)),
    (1, HANDLE.fill(org="labs", project="ada", vm="a")),
    (2, COMMAND.fill(node="n1", vm="a")),
)
"""Of which family each key is that a transfer changes."""


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_leader_knows_of_a_transfer_it_does_nothing_because_of_it(case: str) -> None:
    async def story(store: MemoryStore, clock: VirtualClock, knows: tuple[bool, ...]) -> None:
        held = await laid(store, **CASES[case])
        view = View(store, clock=clock, rng=random.Random(1))
        await view.refresh()
        mirrors = (view.vms, view.handles, view.commands)
        before = [dict(mirror.entries) for mirror in mirrors]
        assert await given(store, held)
        await view.refresh()
        after = [dict(mirror.entries) for mirror in mirrors]
        for n, mirror in enumerate(mirrors):
            sources = {key: (after if new else before)[n] for (family, key), new in zip(KEYS, knows) if family == n}
            mirror.entries = {key: source[key] for key, source in sources.items() if key in source}
        controller = MachineController(
            ControllerEnv(store=store, clock=clock, rng=random.Random(1)), view, release=quota_release
        )
        controller._writing.standing = Led()  # type: ignore[assignment]
        await controller.books.load()
        there = await dump(store)
        await controller.reconcile(OLD)
        assert await dump(store) == there, "something was done under the old name"
        await controller.reconcile(NEW)
        now = await dump(store)
        if case.startswith("its node lives") or case == "its node is silent":
            assert now == there, "something was done under the new name"
        # Else the node is lost, and the machine is taken from it, as any other would be: under its new name.
        assert now[KEYS[1][1]] == there[KEYS[1][1]]
        assert not [key for key in now if f"/{ORG}/{PROJECT}/" in key]
        assert len([key for key in now if COMMAND.match(key)]) <= 1

    for knows in itertools.product((False, True), repeat=len(KEYS)):
        try:
            play(lambda store, clock, knows=knows: story(store, clock, knows))  # type: ignore[misc]
        except BaseException as error:
            error.add_note(f"the leader knew of {[key for (_, key), new in zip(KEYS, knows) if new]}")
            raise


def test_a_transfer_takes_everything_along_and_leaves_nothing() -> None:
    async def story(store: MemoryStore, _: VirtualClock) -> None:
        held = await laid(store)
        assert await given(store, held)
        theirs: dict[str, Any] = {"org": "labs", "project": "ada"}
        wish, handle = await VM.get(store, vm="a", **theirs), await HANDLE.get(store, vm="a", **theirs)
        name, command = await NAME.get(store, name="lab-5", **theirs), await COMMAND.get(store, node="n1", vm="a")
        assert wish is not None
        assert handle is not None
        assert command is not None
        assert name is not None
        assert name.value == "a"
        new = {"org": "labs", "project": "ada", "name": "lab-5", "generation": 2}
        assert wish.value == replace(WISH, labels={"lab": "5"}, expires_at=2000.0, **new)
        assert handle.value == HANDLED
        tags = {"lab": "5", "expires": "1970-01-01T00:33:20Z"}
        assert command.value == replace(COMMANDED, tags=tags, fence=7, **new)
        assert command.create_revision == held.command.create_revision, "its agent would take it for another one"
        assert not [key for key in await dump(store) if f"/{ORG}/{PROJECT}/" in key]
        assert not await given(store, held), "twice"

    play(story)


@pytest.mark.parametrize(
    "records",
    [
        {"wish": replace(WISH, deleting=True)},
        {"wish": replace(WISH, generation=2)},
        {"wish": replace(WISH, move=Move(to="n2", number=1))},
        {"command": replace(COMMANDED, deleting=True)},
        {"command": replace(COMMANDED, departing=Departure(to="n2", number=1))},
        {"command": replace(COMMANDED, org="another")},
        {"handle": replace(HANDLED, node="n2")},
        *({"handle": replace(HANDLED, state=state)} for state in MachineState if state not in ("running", "stopped")),
    ],
    ids=str,
)
def test_a_machine_that_is_not_at_rest_stays_where_it_is(records: dict[str, Any]) -> None:
    async def story(store: MemoryStore, _: VirtualClock) -> None:
        held = await laid(store, **records)
        assert unfit(held)
        with pytest.raises(Conflict):
            await given(store, held)

    play(story)


MEANWHILE: dict[str, Any] = {
    "the wish": VM.put(WISH, vm="a", **AT),
    "the handle": HANDLE.put(HANDLED, vm="a", **AT),
    "the command": COMMAND.put(COMMANDED, node="n1", vm="a"),
    "its lock": LOCK.put(LockInfo(timestamp=1, node_id="r"), vm="a", **AT),
    "its name": NAME.put("b", name=WISH.name, **AT),
    "another of that name": NAME.put("b", org="labs", project="ada", name="LAB-5"),
    "a quota of theirs": QUOTA.put(Quota(), org="labs", project="ada"),
    "a quota of ours": QUOTA.put(Quota(), **AT),
    "another leader": None,
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_what_changes_meanwhile_keeps_it_where_it_is(what: str) -> None:
    async def story(store: MemoryStore, _: VirtualClock) -> None:
        held = await laid(store)
        when, then = await transfer(store, held, THEIRS, fence=7)
        if what == "another leader":
            await store.delete("leader")
        else:
            await store.txn([], [MEANWHILE[what]])
        there = await dump(store)
        assert not (await store.txn([Led().guard(), *when], then)).succeeded
        assert await dump(store) == there

    play(story)


def test_the_quotas_of_both_are_kept() -> None:
    async def story(store: MemoryStore, _: VirtualClock) -> None:
        held = await laid(store)
        theirs = {"org": "labs", "project": "ada"}
        await store.txn([], [QUOTA.put(Quota(vms=1), **theirs), QUOTA.put(Quota(vms=1), **AT)])
        assert await given(store, held)
        counts = [(await QUOTA.get(store, **place)).value.used_vms for place in (theirs, AT)]  # type: ignore
        assert counts == [1, 0]

    async def full(store: MemoryStore, _: VirtualClock) -> None:
        held = await laid(store)
        await store.txn([], [QUOTA.put(Quota(vms=0), org="labs", project="ada")])
        with pytest.raises(QuotaExceeded):
            await given(store, held)

    play(story)
    play(full)
