"""Leaders and members of the store fail: the API on the survivors goes on, and no machine runs twice or for nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path

import pytest
from dose import dose
from harness import pace
from harness.artefacts import safe
from up_process import START, until

from hostler.errors import Unavailable, Uncertain
from hostler.model.vm import OnNodeLoss
from hostler.model.vm_api import VmCreate, VmView
from hostler.testing.servers import EtcdCluster
from plane.company import FENCING_TIME, GAP, LEADERSHIP_TTL, NODE_TTL, SETTLED, Company
from plane.record import Run
from plane.traffic import ORG, PROJECT

ELECTION = 5.0
"""Seconds without an answer while etcd's members elect one of them, at the machine's own pace."""
AWAY = dose(test=12, full=60)
"""Seconds: longer than leaderships, leases and the fencing time last."""


@pytest.mark.timeout(300 if AWAY == 12 else 7200)
async def test_leaders_and_members_of_the_store_fail_and_the_survivors_go_on(tmp_path: Path) -> None:
    with EtcdCluster(3) as etcd:
        async with Company(etcd, tmp_path) as company:
            for _ in range(dose(test=1, full=3)):
                await the_leader_is_killed(company)
                await the_leader_sleeps_past_its_ttl(company)
                await a_member_is_killed(company, leading=False)
                await a_member_is_killed(company, leading=True)
                await the_store_is_away(company, 2.0)
                await the_store_is_away(company, AWAY)
            assert company.wishes.repeated, "no write ever met a failure"
            assert await company.check_ends_well() > 20


async def the_leader_is_killed(company: Company) -> None:
    steady = await company.settled()
    before = company.machines.runs()
    address, fence = await company.leader()
    at = company.replicas[address].kill()
    successor, _ = await company.led_after(fence)
    company.check_answered_meanwhile(at, but=address)
    assert successor != address
    await company.works(successor)
    company.check_answered(at, GAP, but=address)
    await back(company, address)
    check_undisturbed(company, before, steady)


async def the_leader_sleeps_past_its_ttl(company: Company) -> None:
    steady = await company.settled()
    before = company.machines.runs()
    address, fence = await company.leader()
    leader = company.replicas[address]
    at = time.monotonic()
    leader.suspend()
    successor, _ = await company.led_after(fence)
    company.check_answered_meanwhile(at, but=address)
    assert successor != address
    await until(lambda: time.monotonic() > at + LEADERSHIP_TTL * 1.5, START, lambda: "its time passes")
    await company.works(successor)
    company.check_answered(at, GAP, but=address)
    sleeper = leader.process
    leader.supervised = False
    leader.resume()
    assert await sleeper.ends() == 1, sleeper.tail()
    await back(company, address)
    check_undisturbed(company, before, steady)


async def a_member_is_killed(company: Company, *, leading: bool) -> None:
    steady = await company.settled()
    before = company.machines.runs()
    leader = await asyncio.to_thread(company.etcd.leader)
    member = leader if leading else (leader + 1) % 3
    at = time.monotonic()
    company.etcd.kill(member)
    await company.works(next(iter(company.replicas)))
    await until(lambda: time.monotonic() > at + 2, START, lambda: "a while passes")
    company.check_answered(at, ELECTION)
    company.etcd.restart(member, wait=False)
    await asyncio.to_thread(company.etcd.wait_healthy)
    check_undisturbed(company, before, steady)


async def the_store_is_away(company: Company, seconds: float) -> None:
    """For longer than leaderships and leases last, or for so short that nothing comes of it."""
    steady = await company.settled()
    before, led = company.machines.runs(), (await company.leader())[0]
    for member in range(3):
        company.etcd.suspend(member)
    at, again = time.monotonic(), []
    try:
        if seconds > 10:
            again = await asyncio.gather(*(refused(company, each, at) for each in company.replicas if each != led))
        await until(lambda: time.monotonic() > at + seconds, seconds + START, lambda: "it is away")
        meanwhile = company.machines.runs()
    finally:
        for member in range(3):
            company.etcd.resume(member)
    for address in company.replicas:
        await company.views(address)
    # It is away for longer than that, where a slow machine takes its time to elect. An agent renewed a moment before.
    is_long = time.monotonic() - at > FENCING_TIME - NODE_TTL / 2
    for wish, key in again:
        await company.wishes.make(wish, key=key)
    await company.settled()
    await company.works((await company.leader())[0])
    waiting = [view.id for view in steady.values() if view.on_node_loss is OnNodeLoss.WAIT]
    after = company.machines.runs()
    for vm in waiting:
        safe(before[vm] == meanwhile[vm] == after[vm], f"{vm} was disturbed: {before[vm]} {after[vm]}")
    for vm in {view.id for view in steady.values()} - set(waiting):
        # They stop by themselves when the store is away for as long as that, and are started once.
        more = len(after[vm]) - len(before[vm])
        safe(more <= (1 if is_long else 0), f"{vm} was disturbed: {before[vm]} {after[vm]}")
    company.machines.check_never_twice()


async def refused(company: Company, address: str, since: float) -> tuple[VmCreate, str]:
    """Reads say how old they are, if that will do; writes are refused. A write that was, and its key."""
    wish, key = company.wishes.new("refused", OnNodeLoss.WAIT), uuid.uuid4().hex
    async with company.client(address, retries=0) as client:
        while client.stale_for == 0.0:
            assert time.monotonic() < since + pace.patience(START), f"{address} does not know that it is stale"
            page = await client.vms.list(ORG, PROJECT, stale=True)
            await asyncio.sleep(0.1)
        assert page.items, "there is nothing in what it remembers"
        assert client.stale_for < time.monotonic() - since + START
        with pytest.raises((Unavailable, Uncertain)):
            await client.vms.create(ORG, PROJECT, wish, key=key)
        with pytest.raises(Unavailable):
            await client.vms.list(ORG, PROJECT)
    return wish, key


async def back(company: Company, address: str) -> None:
    """Start a replica again; it stands by and answers."""
    post = company.replicas[address]
    post.start()
    await post.process.says("serving http", SETTLED)
    post.supervised = True
    await company.views(address)


def check_undisturbed(company: Company, before: dict[str, list[Run]], steady: dict[str, VmView]) -> None:
    """Not one machine that nobody changed was stopped or moved."""
    after = company.machines.runs()
    for view in steady.values():
        safe(before[view.id] == after[view.id], f"{view.name} was disturbed: {before[view.id]} {after[view.id]}")
    company.machines.check_never_twice()
