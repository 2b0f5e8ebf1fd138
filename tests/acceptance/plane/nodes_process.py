"""Nodes fail: agents are killed and suspended, a node is cut off, another loses its power.

python -m plane.nodes_process DIR ROUNDS

Run it inside `unshare --net --mount --pid`: all that it makes ends with it. Each agent is in a network namespace of its
own, joined to the members of etcd by one wire. The last line it prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import pace
from harness.artefacts import safe
from up_process import until

from hostler.errors import Conflict
from hostler.kit.clock import SystemClock
from hostler.model.inventory_api import NodeView
from hostler.model.node import Lifecycle
from hostler.testing.servers import EtcdCluster, find_binary
from plane.company import FENCING_TIME, GAP, NODE_TTL, NODES, SETTLED, Company
from plane.record import Run
from plane.traffic import KINDS

HUB = "10.77.0.1"
now = SystemClock().now
"""On which the machines write down when they ran."""


def ip(*arguments: str) -> None:
    subprocess.run([find_binary("ip"), *arguments], check=True)


def build() -> None:
    """A bridge here, and behind it a namespace for each node."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    ip("link", "set", "lo", "up")
    ip("link", "add", "br0", "type", "bridge", "forward_delay", "0")
    ip("addr", "add", f"{HUB}/24", "dev", "br0")
    ip("link", "set", "br0", "up")
    for number, node in enumerate(NODES, 11):
        ip("netns", "add", node)
        ip("link", "add", f"to-{node}", "type", "veth", "peer", "name", "e0", "netns", node)
        ip("link", "set", f"to-{node}", "master", "br0", "up")
        ip("-n", node, "addr", "add", f"10.77.0.{number}/24", "dev", "e0")
        ip("-n", node, "link", "set", "e0", "up")
        ip("-n", node, "link", "set", "lo", "up")


class Story:
    """What happens to nodes, one after the other."""

    def __init__(self, company: Company) -> None:
        self.company, self.machines = company, company.machines
        self.moved = 0

    async def on(self, node: str) -> tuple[list[str], list[str]]:
        """The ids of the machines on the node that wait, and of those that are fenced; all of them run."""
        views = await self.company.stocked(node)
        waiting, fenced = (list(self.company.steady(views, node, kind)) for kind in KINDS)
        return waiting, fenced

    async def the_agent_is_killed(self, node: str, *, lapses: bool) -> None:
        """And started again, at once or when its lease has lapsed: the machines ran on."""
        waiting, fenced = await self.on(node)
        before, agent = self.machines.runs(), self.company.agents[node]
        began = now()
        agent.kill()
        if lapses:
            await self.seen(node, lambda view: not view.alive)
        agent.start()
        await agent.process.says(" registered", SETTLED)
        back_after = now() - began
        await self.company.settled()
        # Who takes longer than that to come back may find that fenced machines have stopped, as they should.
        held = back_after < FENCING_TIME - NODE_TTL / 2
        self.check_same(before, waiting + (fenced if held else []))
        print(f"agent of {node}: back after {back_after:.1f} s")

    async def it_is_silent(self, node: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
        """From `begin` to `end`, for longer than the fencing time."""
        waiting, fenced = await self.on(node)
        before, began = self.machines.runs(), time.monotonic()
        done = begin()
        if asyncio.iscoroutine(done):
            await done
        silent_at = now()
        await self.company.run_elsewhere(fenced, node, within=NODE_TTL + FENCING_TIME + SETTLED)
        for vm in fenced:
            *_, old, new = self.machines.runs()[vm]
            assert (old.node, new.off) == (node, None), f"{vm}: {old} {new}"
            assert old.off is not None, f"{vm}: {old} {new}"
            safe(old.off <= silent_at + FENCING_TIME, f"{vm}: it was on for too long: {silent_at} {old}")
            safe(new.on >= old.off + NODE_TTL, f"{vm}: there is no margin: {old} {new}")
        views = {view.id: view for view in (await self.company.views()).values()}
        assert {(views[vm].phase.value, views[vm].node) for vm in waiting} == {("silent", node)}
        self.check_same(before, waiting)
        end()
        await self.back(node, without=fenced)
        self.check_same(before, waiting)
        self.company.check_answered(began, GAP)
        self.moved += len(fenced)

    async def it_loses_its_power(self, node: str) -> None:
        """An operator says so, and its machines are started elsewhere; once it is back, nothing is left on it."""
        waiting, fenced = await self.on(node)
        before, began = self.machines.runs(), time.monotonic()
        self.company.agents[node].kill()
        self.machines.switch_off(node)
        async with self.company.client() as client:
            end = time.monotonic() + pace.patience(SETTLED)
            while True:
                try:
                    await client.nodes.confirm_off(node)
                    break
                except Conflict:  # its heartbeat stands still
                    assert time.monotonic() < end, f"{node} lives on: {self.company.said()}"
                    await asyncio.sleep(0.05)
        await self.company.run_elsewhere(waiting + fenced, node)
        self.company.agents[node].start()
        await self.back(node, without=waiting + fenced)
        for vm in waiting + fenced:
            assert len(self.machines.runs()[vm]) == len(before[vm]) + 1, f"{vm}: started more than once"
        self.company.check_answered(began, GAP)
        self.moved += len(waiting) + len(fenced)

    async def back(self, node: str, *, without: list[str]) -> None:
        """The node is on duty again, and what was taken from it is destroyed there."""
        await self.seen(node, lambda view: view.alive and view.lifecycle is Lifecycle.ON_DUTY)
        await until(
            lambda: not self.machines.there(node) & set(without),
            SETTLED,
            lambda: f"orphans on {node}: {self.machines.there(node) & set(without)}: {self.company.said()}",
        )
        await self.company.settled()
        self.machines.check_never_twice()

    async def seen(self, node: str, wanted: Callable[[NodeView], bool]) -> None:
        """Wait until the API shows the node like that."""
        async with self.company.client() as client:
            end = time.monotonic() + pace.patience(SETTLED)
            while not wanted(view := await client.nodes.get(node)):
                assert time.monotonic() < end, f"{node} is still {view}: {self.company.said()}"
                await asyncio.sleep(0.1)

    def check_same(self, before: dict[str, list[Run]], vms: list[str]) -> None:
        """They ran on, without interruption."""
        after = self.machines.runs()
        for vm in vms:
            safe(before[vm] == after[vm], f"{vm} was disturbed: {before[vm]} {after[vm]}")


async def main(folder: Path, rounds: int) -> dict[str, object]:
    build()
    with EtcdCluster(3, host=HUB) as etcd:
        async with Company(etcd, folder, apart=True) as company:
            story, agents = Story(company), company.agents
            for round_ in range(rounds):
                first, second, third = (NODES[(round_ + number) % 3] for number in range(3))
                await story.the_agent_is_killed(first, lapses=False)
                await story.the_agent_is_killed(second, lapses=True)
                await story.it_is_silent(second, agents[second].suspend, agents[second].resume)
                wire = partial(ip, "link", "set", f"to-{third}")
                await story.it_is_silent(third, partial(wire, "down"), partial(wire, "up"))
                await story.it_loses_its_power(first)
            commands = await company.check_ends_well()
            return {"commands": commands, "moved": story.moved, "writes": company.wishes.done}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))))
