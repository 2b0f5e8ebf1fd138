"""What the steps for labs compare: whatever of it somebody else changed, nothing is written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.labs import state_machine, transactions
from hostler.engine.labs.catalogue import shape_of
from hostler.engine.labs.state_machine import LabStart
from hostler.engine.labs.transactions import Claim, LabSnapshot, new_vm
from hostler.keys.entry import Entry
from hostler.keys.families import HANDLE, NAME, VM
from hostler.keys.lab import LAB
from hostler.model.lab import ORG, LabCatalogue
from hostler.model.vm import MachineState, VmHandle
from hostler.ports.store import Put

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.runtime.guarded_writer import Txn

CATALOGUE = LabCatalogue()
WAITS = state_machine.start(None, "ada", LabStart(5, switch=False), catalogue=CATALOGUE, now=0.0)
RECORD = state_machine.admit(WAITS, "v", CATALOGUE.default, 0.0)
AT: dict[str, Any] = {"org": ORG, "project": "ada", "vm": "v"}
assert RECORD.lab is not None
MACHINE = new_vm("ada", RECORD.lab, CATALOGUE.default, shape_of(CATALOGUE.default, ()), vm="v", name="n", at=0.0)
SEEN = VmHandle(id="v", state=MachineState.RUNNING, seen_at=0.0)
KEYS = {"lab": LAB.fill(user="ada"), "vm": VM.fill(**AT), "handle": HANDLE.fill(**AT)}
KEYS["name"] = NAME.fill(org=ORG, project="ada", name="n")
VALUES = {"lab": LAB.encode(RECORD), "vm": VM.encode(MACHINE), "handle": HANDLE.encode(SEEN), "name": NAME.encode("x")}


def entered(seen: LabSnapshot) -> Txn:
    assert seen.entry is not None
    return transactions.admit_with_new_vm(seen.entry, RECORD, MACHINE)


def claimed(seen: LabSnapshot) -> Txn:
    assert seen.entry is not None
    return transactions.admit_with_pool_vm(seen.entry, RECORD, Claim("v", [VM.absent(**AT)], []))


def rewritten(seen: LabSnapshot) -> Txn:
    assert seen.entry is not None
    return transactions.write_record(seen, seen.entry, WAITS)


def deleted(seen: LabSnapshot) -> Txn:
    assert seen.vm is not None
    return transactions.delete_vm(seen.entry, "ada", seen.vm, WAITS)


def kept(seen: LabSnapshot) -> Txn:
    assert seen.entry is not None
    assert seen.vm is not None
    assert RECORD.lab is not None
    return transactions.keep_vm(seen.entry, RECORD.lab, seen.vm)


def gone(seen: LabSnapshot) -> Txn:
    assert seen.entry is not None
    return transactions.end_lab(seen.entry, WAITS, "v")


def forgotten(seen: LabSnapshot) -> Txn:
    assert seen.entry is not None
    return transactions.forget_user(seen.entry)


CASES: list[tuple[Callable[[LabSnapshot], Txn], tuple[str, ...], tuple[str, ...]]] = [
    (entered, ("lab",), ("lab", "vm", "name")),
    (claimed, ("lab",), ("lab", "vm")),
    (rewritten, ("lab", "vm", "handle"), ("lab", "vm", "handle")),
    (deleted, ("lab", "vm"), ("lab", "vm")),
    (deleted, ("vm",), ("lab", "vm")),
    (kept, ("lab", "vm"), ("lab", "vm")),
    (gone, ("lab",), ("lab", "vm")),
    (forgotten, ("lab",), ("lab",)),
]
"""The step, what is there, and what must not change."""


async def tried(step: Callable[[LabSnapshot], Txn], there: tuple[str, ...], changes: str) -> bool:
    """Whether it is written although that changes; empty: nothing does."""
    async with MemoryStore() as store:
        for name in there:
            await store.put(KEYS[name], VALUES[name])
        entry, vm = await LAB.get(store, user="ada"), await VM.get(store, **AT)
        txn = step(LabSnapshot("ada", entry, vm, await HANDLE.get(store, **AT)))
        if changes:
            await store.put(KEYS[changes], VALUES[changes])
        return (await store.txn(txn.when, txn.then)).succeeded


@pytest.mark.parametrize(("step", "there", "compared"), CASES)
def test_each_step_is_written_only_if_nothing_that_it_was_decided_from_has_changed(
    step: Callable[[LabSnapshot], Txn], there: tuple[str, ...], compared: tuple[str, ...]
) -> None:
    assert asyncio.run(tried(step, there, ""))
    for name in compared:
        assert not asyncio.run(tried(step, there, name)), name


@pytest.mark.parametrize("has_record", [True, False])
def test_the_disk_of_a_machine_whose_lab_has_no_record_is_retained(has_record: bool) -> None:
    lab = Entry(RECORD, {"user": "ada"}, KEYS["lab"], 1, 1, 1) if has_record else None
    machine = Entry(MACHINE, AT, KEYS["vm"], 1, 1, 1)
    (put,) = transactions.delete_vm(lab, "ada", machine, None).then
    assert isinstance(put, Put)
    gone = VM.decode(put.value)
    assert (gone.deleting, gone.keep_disk) == (True, not has_record)
