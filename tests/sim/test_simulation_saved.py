"""A simulation that is saved and resumed goes on exactly as one that was never interrupted."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

from hostler import Version
from hostler.entry.sim_service import _story
from hostler.errors import Damaged, HostlerError, Invalid, NotFound, Refused
from hostler.model.sim_api import FaultInject, HardwareCommand, HardwareVerb, Mode, ModeSet, RepairMode, StepGrant
from hostler.ports.store import Delete, Put
from hostler.sim import journal
from hostler.sim.scenario.format import read_scenario
from hostler.sim.simulation import Simulation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

SCENARIO = """
name: saved
about: One rack, a pdu that fails, a leader that is killed.
length: 10m
inventory:
  racks:
    - name: r1
      pdus: [{name: pdu1, ports: {1: b1, 2: b2, 9: tor1}}, {name: pdu2, ports: {1: b3, 2: b4, 9: tor1}}]
      tors: [{name: tor1, ports: 8}]
      blades: {count: 4, prefix: b, cpus: 8, memory: 16GiB}
vms:
  - {count: 3, org: acme, project: shop, name: web, cpus: 1, memory: 1GiB}
timeline:
  - {at: 40, fault: power, on: r1/pdu2, for: 30}
  - {at: 90, fault: leader_killed}
"""


def story(text: str = SCENARIO, seed: int = 5):
    return _story(read_scenario(text), seed)


@asynccontextmanager
async def running(saved: bytes | None = None) -> AsyncIterator[Simulation]:
    told: list[str] = []
    read = None if saved is None else journal.read(saved, "saved.sim")
    simulation = Simulation(
        story() if read is None else story(read.header.scenario, read.header.seed), told=told.append
    )
    try:
        if read is None:
            simulation._loop.change(Mode.MANUAL, epoch=0)  # or it runs freely until `boot` is called
            await simulation.start()
            await step(simulation, 30)
            assert await simulation.boot(within=60)
            await simulation.play(Mode.MANUAL)
        else:
            await simulation.resume(read, "saved.sim")
        yield simulation
        assert told == []
    finally:
        await simulation.stop(within=10)


async def step(simulation: Simulation, seconds: float) -> None:
    await simulation.step(StepGrant(seconds=seconds), within=30)


async def first_half(simulation: Simulation) -> None:
    """With a step after each write: a step ends when nothing is left to do, so what follows always finds the same."""
    await step(simulation, 20)
    fault = await simulation.inject(FaultInject(fault="store_slow", chance=0.5, slowest=1.0))
    await step(simulation, 0.25)
    async with simulation.store() as store:
        lease = await store.grant(30)
        await step(simulation, 0.25)
        await store.put("/elsewhere/a", b"1", lease=lease)
        await step(simulation, 12.25)
        await lease.keep_alive()
        await step(simulation, 0.25)
        await store.txn([Version("/elsewhere/b") == 0], [Put("/elsewhere/b", b"2"), Delete("/elsewhere/c")])
    await step(simulation, 0.25)
    await simulation.lift(fault.id)
    await step(simulation, 0.25)
    now = (await simulation.view()).now
    await simulation.command(HardwareCommand(command=HardwareVerb.POWER_OFF, on="r1/b1", guard=now))
    await step(simulation, 0.25)
    with pytest.raises(NotFound):
        await simulation.lift("fault-99")
    await step(simulation, 17.5)


async def second_half(simulation: Simulation) -> None:
    await simulation.auto_repair(RepairMode(automatic=True))
    await step(simulation, 33)
    await simulation.inject(FaultInject(fault="blade_crash", on="r1/b2"))
    await step(simulation, 120)


async def told(simulation: Simulation) -> tuple[str, str]:
    """A digest of the log, and that of the whole world."""
    assert simulation._world is not None
    log = hashlib.sha256(simulation._world.log.lines()).hexdigest()
    return log, journal.read(await simulation.save(), "x").header.digest


async def test_i45_a_resumed_simulation_goes_on_exactly_as_the_uninterrupted_one() -> None:
    async with running() as simulation:
        await first_half(simulation)
        saved = await simulation.save()
        here, view = await told(simulation), await simulation.view()
        await second_half(simulation)
        ended = await told(simulation)
        assert len(simulation._world.log) > 100  # type: ignore[union-attr]
    async with running(saved) as simulation:
        again = await simulation.view()
        assert await told(simulation) == here
        assert (again.now, again.racks, again.faults, again.replicas) == (
            view.now,
            view.racks,
            view.faults,
            view.replicas,
        )
        assert (again.mode, again.epoch > view.epoch) == (Mode.MANUAL, True)
        await second_half(simulation)
        assert await told(simulation) == ended
        resaved = await simulation.save()
    async with running(resaved) as simulation:  # what was resumed can be resumed
        assert await told(simulation) == ended


async def test_i45_whoever_only_looks_changes_nothing() -> None:
    async with running() as simulation:
        await first_half(simulation)
        alone = await told(simulation)
    async with running() as simulation:

        async def look() -> None:
            async with simulation.store() as store, store.watch("/") as watch:
                async for _ in watch:
                    await simulation.view()
                    await store.range("/", limit=3)

        looking = [asyncio.create_task(look()) for _ in range(3)]
        await first_half(simulation)
        assert await told(simulation) == alone
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)


@pytest.mark.parametrize(("mode", "rate"), [(Mode.MEASURED, 300.0), (Mode.NO_WAIT, 2000.0)])
async def test_i45_what_was_asked_while_time_went_by_itself_is_done_at_the_same_instant(
    mode: Mode, rate: float
) -> None:
    async with running() as simulation:
        await simulation.change(ModeSet(mode=mode, rate=rate, epoch=(await simulation.view()).epoch))
        async with simulation.store() as store:
            for number in range(15):
                await store.put(f"/elsewhere/{number}", b"x" * number)
                fault = await simulation.inject(FaultInject(fault="store_slow", chance=0.5, slowest=1.0))
                await asyncio.sleep(0.004)
                await simulation.lift(fault.id)
        saved = await simulation.save()
    header = journal.read(saved, "x").header
    assert (header.mode, header.rate) == (mode, rate)
    async with running(saved) as simulation:  # which compares the digests
        assert (await simulation.place()).at == header.place.at


async def test_i45_another_story_is_refused_and_a_damaged_or_foreign_file_too(tmp_path: Path) -> None:
    async with running() as simulation:
        await first_half(simulation)
        saved = await simulation.save()
    read = journal.read(saved, "x")
    for seed, digest in ((6, read.header.digest), (5, "0" * 64)):
        header = msgspec.structs.replace(read.header, seed=seed, digest=digest, release="9.9")
        other = journal.Saved(header, read.entries)
        simulation = Simulation(story(seed=seed), told=lambda _: None)
        try:
            with pytest.raises(Refused, match=r"saved\.sim: .* does not reach the saved state .*; use Hostler 9\.9"):
                await simulation.resume(other, "saved.sim")
        finally:
            await simulation.stop(within=10)
    path = tmp_path / "world.sim"
    lines = saved.splitlines(keepends=True)
    cases: tuple[tuple[bytes, type[HostlerError], str], ...] = (
        (b"", Invalid, "not a saved simulation"),
        (b"\x00\xff" * 100, Invalid, "not a saved simulation"),
        (b'{"format": "other"}\n', Invalid, "not a saved simulation"),
        (b"[" * 100_000, Invalid, "not a saved simulation"),
        (saved[: len(saved) // 2], Damaged, "damaged"),
        (saved[:-1], Damaged, "damaged"),
        (b"".join((*lines[:2], *lines[3:])), Damaged, "damaged"),
        (saved.replace(b"/elsewhere/b", b"/elsewhere/d"), Damaged, "damaged"),
        (saved.replace(b'"version":1', b'"version":2', 1), Refused, "version 2"),
    )
    for data, kind, words in cases:
        path.write_bytes(data)
        with pytest.raises(kind, match=words):
            journal.load(path)
        assert path.read_bytes() == data
    with pytest.raises(NotFound, match="cannot be read"):
        journal.load(tmp_path / "none.sim")
    journal.save(path, saved)
    assert journal.load(path) == read
    assert [each.name for each in tmp_path.iterdir()] == ["world.sim"]


async def test_i45_more_than_can_be_saved_is_said_and_the_world_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST", 20_000)
    async with running() as simulation:
        async with simulation.store() as store:
            for _ in range(30):
                await store.put("/elsewhere/a", b"x" * 1000)
        with pytest.raises(Refused, match="can no longer be saved"):
            await simulation.save()
        await step(simulation, 5)
