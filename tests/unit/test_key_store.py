"""Typed access to a store: read, list, watch, write."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.errors import Conflict, Damaged, Invalid
from hostler.keys.entry import Entry, Unreadable
from hostler.keys.families import ACTUAL, FENCE, HANDLE, LOCK, TARGET, VM
from hostler.model.vm import LockInfo, MachineState, VirtualMachine, VmHandle, VmSpec
from hostler.model.workload import Actual, Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.ports.store import Store


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with MemoryStore() as store:
        yield store


def machine(vm: str = "v", name: str = "web") -> VirtualMachine:
    return VirtualMachine(id=vm, name=name, org="o", project="p", spec=VmSpec(cpus=1, memory_mib=64), created_at=1.0)


def ids(vm: str = "v") -> dict[str, str]:
    return {"org": "o", "project": "p", "vm": vm}


async def test_what_was_put_is_read_with_its_revisions(store: Store) -> None:
    assert await VM.get(store, **ids()) is None
    first = await store.put(*_put(VM.put(machine(), **ids())))
    second = await store.put(*_put(VM.put(machine(name="other"), **ids())))
    entry = await VM.get(store, **ids())
    assert entry is not None
    assert entry == Entry(machine(name="other"), ids(), "/plasmavmc/vms/o/p/v", first, second, 2)
    old = await VM.get(store, revision=first, **ids())
    assert old is not None
    assert old.value.name == "web"


def _put(operation: object) -> tuple[str, bytes]:
    return operation.key, operation.value  # type: ignore[attr-defined]


async def test_a_transaction_of_typed_operations(store: Store) -> None:
    handle = VmHandle(id="v", node="n", driver="simulated", state=MachineState.CREATING, seen_at=1.0)
    when = [VM.absent(**ids()), HANDLE.absent(**ids())]
    then = [VM.put(machine(), **ids()), HANDLE.put(handle, **ids()), VM.get_op(**ids())]
    result = await store.txn(when, then)
    assert result.succeeded
    assert VM.entry(result.responses[2]).value == machine()  # type: ignore[arg-type]
    assert not (await store.txn(when, then)).succeeded
    assert (await store.txn([VM.exists(**ids()), VM.version(**ids()) == 1], [VM.delete(**ids())])).succeeded
    assert await VM.get(store, **ids()) is None


async def test_unchanged_fails_after_a_write_and_after_a_new_life(store: Store) -> None:
    entry = await VM.create(store, machine(), **ids())
    assert (await store.txn([VM.unchanged(entry), VM.same_life(entry)], [])).succeeded
    newer = await VM.replace(store, entry, machine(name="x"))
    assert not (await store.txn([VM.unchanged(entry)], [])).succeeded
    assert (await store.txn([VM.same_life(entry)], [])).succeeded
    await VM.remove(store, newer)
    again = await VM.create(store, machine(name="x"), **ids())
    assert again.version == 1
    assert not (await store.txn([VM.unchanged(newer)], [])).succeeded
    assert not (await store.txn([VM.same_life(entry)], [])).succeeded


async def test_who_comes_second_gets_a_conflict_and_writes_nothing(store: Store) -> None:
    entry = await VM.create(store, machine(), **ids())
    with pytest.raises(Conflict, match="exists already"):
        await VM.create(store, machine(name="x"), **ids())
    newer = await VM.replace(store, entry, machine(name="y"))
    for late in (VM.replace(store, entry, machine(name="z")), VM.remove(store, entry)):
        with pytest.raises(Conflict, match="read it again"):
            await late
    assert await VM.get(store, **ids()) == newer


async def test_a_lock_goes_with_its_lease(store: Store) -> None:
    lease = await store.grant(30)
    entry = await LOCK.create(store, LockInfo(timestamp=1, node_id="n"), lease=lease, **ids())
    assert entry.lease == lease.id
    await lease.revoke()
    assert await LOCK.get(store, **ids()) is None


async def test_a_counter_is_a_plain_number(store: Store) -> None:
    await FENCE.create(store, 7, n=1)
    kv = await store.get("sysvvm/2/1")
    assert kv is not None
    assert kv.value == b"7"
    for bad in (True, "7", 7.0, None):
        with pytest.raises(Invalid, match="takes a int"):
            FENCE.put(bad, n=1)  # type: ignore[arg-type]
    await store.put("sysvvm/2/2", b"x")
    with pytest.raises(Damaged, match="^sysvvm/2/2"):
        await FENCE.get(store, n=2)


async def test_a_record_of_another_kind_is_refused() -> None:
    with pytest.raises(Invalid, match="takes a VirtualMachine, not a LockInfo"):
        VM.put(LockInfo(timestamp=1, node_id="n"), **ids())  # type: ignore[arg-type]


async def test_a_list_is_of_one_revision_however_many_pages_it_takes(store: Store) -> None:
    for number in range(10):
        await VM.create(store, machine(f"v{number}"), **ids(f"v{number}"))
    before = (await store.range("", limit=1)).revision
    seen = []
    scan = VM.scan(store, page_size=3)
    async for entry in scan:
        assert isinstance(entry, Entry)
        seen.append(entry.parts["vm"])
        await store.delete(VM.fill(**ids("v9")))
        await VM.create(store, machine(), **ids(f"v5{len(seen)}"))
    assert seen == [f"v{number}" for number in range(10)]
    assert scan.revision == before
    listing = await VM.list(store, org="o", page_size=1)
    assert [entry.parts["vm"] for entry in listing.entries][:2] == ["v0", "v1"]
    assert len(listing.entries) == 19
    assert (await VM.list(store, org="other")).entries == ()


async def test_listing_then_watching_has_no_hole(store: Store) -> None:
    await VM.create(store, machine(), **ids())
    listing = await VM.list(store)
    await VM.create(store, machine(), **ids("late"))
    async with VM.watch(store, start_revision=listing.revision + 1) as watch:
        change = await anext(watch)
    assert (change.type, change.parts["vm"]) == ("put", "late")


async def test_keys_of_other_families_under_the_prefix_are_passed_over(store: Store) -> None:
    where = {"workload": "w", "instance": "i"}
    async with ACTUAL.watch(store, workload="w") as watch:
        await TARGET.create(store, Target(node="n-1", decided_at=1.0), **where)
        await ACTUAL.create(store, Actual(node="n-1", state=MachineState.RUNNING, seen_at=2.0), **where)
        change = await anext(watch)
        assert isinstance(change.current, Entry)
        assert change.current.value.seen_at == 2.0
    assert len((await ACTUAL.list(store, workload="w")).entries) == 1


async def test_a_value_that_cannot_be_read_is_said_and_not_taken_for_absent(store: Store) -> None:
    good, bad = VM.fill(**ids("a")), VM.fill(**ids("b"))
    async with VM.watch(store) as watch:
        await store.put(good, machine("a").encode())
        await store.put(bad, b"{not json")
        await store.put(bad, machine("b").encode())
        await store.put(bad, b"{}")
        await store.delete(bad)
        changes = [await asyncio.wait_for(anext(watch), 30) for _ in range(5)]
    kinds = [(type(change.current).__name__, type(change.previous).__name__) for change in changes]
    assert kinds == [
        ("Entry", "NoneType"),
        ("Unreadable", "NoneType"),
        ("Entry", "Unreadable"),
        ("Unreadable", "Entry"),
        ("NoneType", "Unreadable"),
    ]
    assert isinstance(changes[1].current, Unreadable)
    assert str(changes[1].current.error).startswith(f"{bad}: VirtualMachine at $: ")
    assert changes[1].current.parts["vm"] == "b"
    assert changes[4].type == "delete"
    await store.put(bad, b"[]")
    with pytest.raises(Damaged, match=bad):
        await VM.get(store, **ids("b"))
    with pytest.raises(Damaged, match=bad):
        await VM.list(store)
    listing = await VM.list(store, strict=False)
    assert [entry.key for entry in listing.entries] == [good]
    assert [found.key for found in listing.unreadable] == [bad]


async def test_a_delete_tells_what_was_deleted_and_when(store: Store) -> None:
    entry = await VM.create(store, machine(), **ids())
    async with VM.watch(store, org="o", project="p") as watch:
        await VM.remove(store, entry)
        change = await anext(watch)
    assert change.current is None
    assert change.previous == entry
    assert change.revision == entry.mod_revision + 1


async def test_unknown_fields_survive_a_read_and_a_replace(store: Store) -> None:
    data = machine().encode()[:-1] + b',"theirs":{"big":123456789012345678901234567890}}'
    await store.put(VM.fill(**ids()), data)
    entry = await VM.get(store, **ids())
    assert entry is not None
    await VM.replace(store, entry, msgspec.structs.replace(entry.value, name="new"))
    kv = await store.get(VM.fill(**ids()))
    assert kv is not None
    assert b'"theirs":{"big":123456789012345678901234567890}' in kv.value
    assert b'"name":"new"' in kv.value
