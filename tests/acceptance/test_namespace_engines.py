"""Pre-clean on real engines: production, other test namespaces and near misses survive it, for every family."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from hostler import open_store
from hostler.keys.entry import Entry
from hostler.keys.families import KEYS, VM
from hostler.keys.namespace import STANDARD, TEST_ROOT, Namespace, enter
from hostler.kit.clock import SystemClock
from hostler.model.vm import VirtualMachine, VmSpec
from hostler.settings import NamespaceOptions
from hostler.testing.servers import EtcdServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.ports.store import Store

SAMPLE = {
    "artifact": "a:b:1",
    "base": "a:b",
    **dict.fromkeys(("number", "n", "instance", "life", "fence", "epoch"), "1"),
}
FAMILY_KEYS = [key.fill(**{name: SAMPLE.get(name, name) for name in key.names}) for key in KEYS]
TEST = NamespaceOptions(use_test_namespace=True)
CLEAN = NamespaceOptions(use_test_namespace=True, pre_clean_store=True)
UNIQUE = NamespaceOptions(use_test_namespace=True, use_unique_instance=True)
CLOCK = SystemClock()


@pytest.fixture(params=["memory", "sqlite", "file", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    async with AsyncExitStack() as stack:
        urls = {"memory": "memory://", "sqlite": f"sqlite://{tmp_path}/s.db", "file": f"file://{tmp_path}/s.json"}
        if request.param == "etcd":
            urls["etcd"] = stack.enter_context(EtcdServer()).url
        yield await stack.enter_async_context(open_store(urls[request.param]))


async def everything(store: Store) -> dict[str, bytes]:
    return {kv.key: kv.value for kv in (await store.range("")).items}


async def test_pre_clean_empties_the_standard_test_namespace_and_nothing_else(store: Store) -> None:
    names = [*FAMILY_KEYS]
    for other in ("StandardX", "standard", "Standard.1", "20260101T000000.000000Z-ab"):
        names += [Namespace(other).stored(key) for key in FAMILY_KEYS]
    names += [
        TEST_ROOT + STANDARD,
        TEST_ROOT,
        TEST_ROOT + "Standar",
        TEST_ROOT + "Standard0",
        "/CloudChamber/V0.1/Test",
    ]
    for name in names:
        await store.put(name, b"kept")
    inside, namespace = await enter(store, TEST, clock=CLOCK)
    for key in FAMILY_KEYS:
        await inside.put(key, b"dirt")
    assert len(await everything(store)) == len(names) + len(FAMILY_KEYS)

    clean, same = await enter(store, CLEAN, clock=CLOCK)
    assert same.prefix == namespace.prefix == "/CloudChamber/V0.1/Test/Standard/"
    assert await everything(clean) == {}
    assert await everything(store) == dict.fromkeys(names, b"kept")


async def test_namespaces_side_by_side_never_see_each_other(store: Store) -> None:
    views = [(await enter(store, options, clock=CLOCK))[0] for options in (TEST, UNIQUE, UNIQUE)]
    production, _ = await enter(store, NamespaceOptions(), clock=CLOCK)
    assert production is store
    for number, view in enumerate(views):
        async with view.watch("") as watch:
            for other in views[:number]:
                await other.put(FAMILY_KEYS[0], b"other")
            for key in FAMILY_KEYS:
                await view.put(key, b"%d" % number)
            seen = [(event.kv.key, event.kv.value) for event in [await anext(watch) for _ in FAMILY_KEYS]]
        assert seen == [(key, b"%d" % number) for key in FAMILY_KEYS]
    assert [sorted((await everything(view)).items()) for view in views[2:]] == [
        [(k, b"2") for k in sorted(FAMILY_KEYS)]
    ]
    for key in FAMILY_KEYS:
        assert await store.get(key) is None


async def test_typed_keys_work_the_same_in_a_namespace(store: Store) -> None:
    inside, _ = await enter(store, TEST, clock=CLOCK)
    spec = VmSpec(cpus=1, memory_mib=64)
    ids = {"org": "o", "project": "p", "vm": "v"}
    vm = VirtualMachine(id="v", name="n", org="o", project="p", spec=spec, created_at=1.0)
    async with VM.watch(inside, org="o") as watch:
        entry = await VM.create(inside, vm, **ids)
        change = await anext(watch)
    assert isinstance(change.current, Entry)
    assert change.current == entry
    assert (await VM.list(inside)).entries == (entry,)
    assert (await VM.list(store)).entries == ()
    stored = await store.get("/CloudChamber/V0.1/Test/Standard/plasmavmc/vms/o/p/v")
    assert stored is not None
    assert stored.value == vm.encode()
