"""Fifty clients do what they like to the same few machines: it is as if they had come one after the other."""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from crowd import NAMES, ORG, PROJECT, crowd
from dose import dose
from harness import pace
from harness.artefacts import keep
from up_process import HostlerProcess, token_told
from vm_history import Remembered, Request, State, Told, Wish, check, resolved, wish_of

import hostler
from hostler.client import Client
from hostler.drivers.machines.simulated import FileHost, SimulatedMachines, read_intervals
from hostler.keys.families import ANSWERED, AUDIT, COMMAND, HANDLE, LOCK, NAME, VM
from hostler.model.access_api import QuotaSet
from hostler.model.vm import MachineState, Power
from hostler.model.vm_api import VmView
from hostler.testing.servers import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.ports.store import Store

CLIENTS = 50
QUIET = 3.0
"""Seconds without a change after which nothing is under way any more: retries take less."""
TIMES = ("--node-ttl", 20, "--fencing-time", 40)
LEADERSHIP = ("--leadership-ttl", 20, "--listen", "127.0.0.1:0")


class Plane:
    """A control plane of several processes, and where its machines are."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.processes: list[HostlerProcess] = []
        self.urls: list[str] = []
        self.token = ""
        self.nodes: dict[str, Path] = {}

    def start(self, *arguments: object) -> HostlerProcess:
        self.processes.append(HostlerProcess(*arguments, *TIMES, folder=self.folder))
        return self.processes[-1]

    async def up(self) -> None:
        """Everything in one process, on two nodes and the embedded store."""
        data = self.folder / "data"
        up = self.start("up", "--data", data, "--nodes", 2, *LEADERSHIP)
        self.urls = [await up.url()]
        self.token = (data / "admin.token").read_text().strip()
        self.nodes = {node: data / "machines" / node for node in ("local-1", "local-2")}

    async def spread(self) -> None:
        """Two replicas and two agents."""
        for number in range(2):
            data = self.folder / f"replica-{number}"
            replica = self.start("replica", "--store", self.store, "--data", data, *LEADERSHIP)
            self.urls.append(await replica.url("serving"))
            await replica.says("leading with fence" if number == 0 else "leads with fence")
            self.token = self.token or token_told(replica.text)
        for node in ("r1-a", "r1-b"):
            agent = self.start("agent", "--node", node, "--store", self.store, "--data", self.folder / node)
            await agent.says("registered\n")
            self.nodes[node] = self.folder / node / "machines" / node

    async def end(self) -> None:
        """All of it, as asked."""
        for process in self.processes:
            process.signal(signal.SIGTERM)
        for process in self.processes:
            assert await process.ends() == 0, process.tail()


@pytest.fixture
def etcd_server() -> Iterator[EtcdServer]:
    with EtcdServer() as etcd:
        yield etcd


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Callable[[str], Plane]]:
    made: list[Plane] = []

    def make(store: str) -> Plane:
        made.append(Plane(tmp_path, store))
        return made[-1]

    yield make
    for process in itertools.chain.from_iterable(each.processes for each in made):
        process.kill()


async def test_fifty_clients_of_one_process_on_the_embedded_store(
    plane: Callable[[str], Plane], tmp_path: Path
) -> None:
    here = plane(f"sqlite://{tmp_path}/data/hostler.db")
    await here.up()
    await _proven(here)


async def test_fifty_clients_of_two_replicas_on_etcd_with_a_quota(
    plane: Callable[[str], Plane], etcd_server: EtcdServer
) -> None:
    here = plane(etcd_server.url)
    await here.spread()
    async with Client(here.urls[0], here.token) as client:
        await client.quotas.set(ORG, PROJECT, QuotaSet(vms=100, cpus=100, memory_mib=100_000))
    await _proven(here)


async def _proven(plane: Plane) -> None:
    """The crowd comes and goes; then everything is looked at."""
    seconds = dose(test=4, full=60)
    began = time.monotonic()
    history = await crowd(plane.urls, plane.token, size=CLIENTS, seconds=seconds)
    final = await _quiet(plane)
    quiet_at = time.monotonic_ns()
    await _quota_is_the_sum(plane, final)
    await plane.end()
    async with hostler.open_store(plane.store) as store:
        assert [entry async for entry in LOCK.scan(store)] == [], "locks left"
        whole = resolved(history, await _remembered(store), quiet_at)
        keep("history", whole)
        states = check(whole)
        _nothing_lost(states, final)
        await _written_once(store, states)
        await _machines_are_as_wished(plane, store)
    _did_enough(whole, seconds, since=began)


# After the crowd


async def _quiet(plane: Plane) -> dict[str, VmView]:
    """The machines by name, once what is wished for is there and nothing has changed for a while."""
    async with Client(plane.urls[0], plane.token) as client:
        end, since, last = time.monotonic() + pace.patience(30), time.monotonic(), dict[str, VmView]()
        while True:
            page = await client.vms.list(ORG, PROJECT)
            now = {view.name: view for view in page.items}
            if now != last:
                last, since = now, time.monotonic()
            if time.monotonic() - since > QUIET and all(view.settled for view in now.values()):
                return now
            assert time.monotonic() < end, f"never settled: {[view for view in now.values() if not view.settled]}"
            await asyncio.sleep(0.1)


async def _quota_is_the_sum(plane: Plane, final: dict[str, VmView]) -> None:
    async with Client(plane.urls[-1], plane.token) as client:
        quota = await client.quotas.get(ORG, PROJECT)
    specs = [view.spec for view in final.values()]
    assert (quota.used_vms, quota.used.cpus, quota.used.memory_mib, quota.used.disk_gib) == (
        len(specs),
        sum(spec.cpus for spec in specs),
        sum(spec.memory_mib for spec in specs),
        sum(spec.disk_gib for spec in specs),
    )


async def _remembered(store: Store) -> dict[str, Remembered]:
    found = {}
    for entry in (await ANSWERED.list(store, user="admin")).entries:
        if not entry.parts["request"].startswith("client-"):
            continue
        view = VmView.decode(entry.value.body.encode())
        revision = view.revision or entry.mod_revision
        found[entry.parts["request"]] = Remembered(wish_of(view), revision, writes=view.revision == 0)
    return found


def _nothing_lost(states: dict[str, list[State]], final: dict[str, VmView]) -> None:
    """What there is in the end is what the writes made, and every counter is the number of those who counted."""
    counts: Counter[str] = Counter()
    counted: dict[str, int] = {}
    for name in NAMES:
        for state in states.get(name, ()):
            if state.wish is not None and state.made is not None:
                counts[state.wish.id] += state.made.request.verb == "count"
                counted[state.wish.id] = state.wish.count
        last = states[name][-1].wish if name in states else None
        view = final.get(name)
        assert (None if last is None or last.deleting else last) == (None if view is None else wish_of(view))
    assert dict(counts) == counted, "lost updates"


async def _written_once(store: Store, states: dict[str, list[State]]) -> None:
    """The audit has each write of the history, and no other: each made from what the one before had left."""
    verbs = {"count": "update", "mark": "update", "resize": "update", "drop": "drop-snapshot"}
    written = {
        state.revision: f"vm.{verbs.get(state.made.request.verb, state.made.request.verb)}"
        for line in states.values()
        for state in line
        if state.made is not None
    }
    audited: dict[int, str] = {}
    last: dict[str, int] = defaultdict(int)
    prefix = VM.prefix(org=ORG, project=PROJECT)
    entries = [entry for entry in (await AUDIT.list(store)).entries if entry.value.subject.startswith(prefix)]
    for entry in sorted(entries, key=lambda entry: entry.create_revision):
        audit = entry.value
        audited[entry.create_revision] = audit.verb
        assert audit.before == last[audit.subject], f"{audit} was made from what was no more"
        last[audit.subject] = entry.create_revision
    assert audited == written


async def _machines_are_as_wished(plane: Plane, store: Store) -> None:
    """Every wish has its name, its handle, one command and one machine; nothing else has."""
    wishes = {entry.value.id: entry.value for entry in (await VM.list(store)).entries}
    assert {entry.value for entry in (await NAME.list(store)).entries} == set(wishes)
    assert {entry.value.id for entry in (await HANDLE.list(store)).entries} == set(wishes)
    commands = {entry.parts["vm"]: entry.parts["node"] for entry in (await COMMAND.list(store)).entries}
    assert set(commands) == set(wishes)
    there = {}
    ran: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for node, folder in plane.nodes.items():
        for vm, intervals in read_intervals(folder).items():
            ran[vm] += [(start, float("inf") if end is None else end) for start, end in intervals]
        async with SimulatedMachines(FileHost(folder)) as machines:
            for machine in await machines.list():
                running = machine.state is MachineState.RUNNING
                seen = (node, running, machine.resets, machine.restored, set(machine.snapshots))
                assert there.setdefault(machine.label.vm, seen) == seen, "a machine on two nodes"
    assert there == {
        vm: (
            commands[vm],
            wish.power is Power.ON,
            wish.resets,
            0 if wish.restore is None else wish.restore.number,
            set(wish.snapshots),
        )
        for vm, wish in wishes.items()
    }
    for vm, spans in ran.items():
        for (_, end), (start, _) in itertools.pairwise(sorted(spans)):
            assert end <= start, f"{vm} ran twice at {start}"


def _did_enough(history: list[Told], seconds: float, since: float) -> None:
    """A run in which little happened proves little."""
    done = Counter(told.request.verb for told in history if told.writes)
    refused = Counter(re.sub(r"\d+|'.*?'", "…", told.refusal.partition(": ")[2]) for told in history if told.refusal)
    print(f"{len(history)} requests in {seconds} s; written: {dict(done)}; refused: {dict(refused)}")
    slower = pace.slowdown(since)
    verbs = ("create", "count", "mark", "start", "stop", "snapshot", "delete")
    assert min(done[verb] for verb in verbs) >= max(1, seconds // slower), done
    assert sum(refused.values()) >= 20 * seconds // slower, "they were hardly in each other's way"


# The check itself can fail


def _history() -> list[Told]:
    """Two clients count one machine, one after the other; a third is refused; it is deleted, and made again."""

    def told(at: int, client: int, verb: str, wish: Wish | None, revision: int = 0, **more: object) -> Told:
        asked = {name: more.pop(name) for name in ("value", "if_match") if name in more}
        request = Request(client=client, key=f"{client}-{at}", name="ape", verb=verb, **asked)  # type: ignore[arg-type]
        writes = wish is not None and verb != "get"
        return Told(
            request=request,
            called_at=at,
            ended_at=at + 5,
            wish=wish,
            revision=revision,
            writes=writes,
            **more,  # type: ignore[arg-type]
        )

    first = Wish(id="a", memory_mib=64, mark="m")
    one = msgspec.structs.replace(first, count=1, generation=2)
    two = msgspec.structs.replace(first, count=2, generation=3)
    going = msgspec.structs.replace(two, deleting=True, generation=4)
    return [
        told(0, 1, "create", first, 5, value="m"),
        told(10, 1, "count", one, 6, value=1, if_match=5),
        told(12, 2, "get", first, 5),
        told(20, 2, "count", None, value=1, if_match=5, refusal="vm ape: revision 5 is not the present one, 6; read"),
        told(30, 2, "count", two, 8, value=2, if_match=6),
        told(40, 3, "create", None, refusal="vm ape: the project acme/crowd has a machine of that name; choose"),
        told(50, 1, "delete", going, 9),
        told(60, 2, "get", None, missed=True),
        told(70, 3, "create", msgspec.structs.replace(first, id="b"), 12, value="m"),
    ]


def test_a_history_that_can_be_is_found_to_be_so() -> None:
    states = check(_history())
    assert [None if state.wish is None else state.wish.count for state in states["ape"]] == [None, 0, 1, 2, 2, None, 0]


def _lost(history: list[Told]) -> None:
    history[4].wish = msgspec.structs.replace(history[4].wish, count=1, generation=3)
    history[4].request = msgspec.structs.replace(history[4].request, value=1, if_match=5)


def _undone(history: list[Told]) -> None:
    assert history[4].wish is not None
    history[4].wish = msgspec.structs.replace(history[4].wish, mark="")


def _stale_read(history: list[Told]) -> None:
    history[2].called_at, history[2].ended_at = 16, 18


def _resurrected(history: list[Told]) -> None:
    history[7].missed, history[7].wish, history[7].revision = False, history[4].wish, 8


def _refused_before(history: list[Told]) -> None:
    history[5].called_at, history[5].ended_at = 61, 65
    history[6].called_at, history[6].ended_at = 50, 52
    history[5].refusal = "vm ape: it is off, there is nothing to reset; start it"


def _two_of_a_name(history: list[Told]) -> None:
    del history[6]


@pytest.mark.parametrize("spoil", [_lost, _undone, _stale_read, _resurrected, _refused_before, _two_of_a_name])
def test_a_history_that_cannot_be_is_found_out(spoil: Callable[[list[Told]], None]) -> None:
    history = _history()
    spoil(history)
    with pytest.raises(AssertionError):
        check(history)


def test_what_nobody_waited_for_is_settled_by_what_is_remembered() -> None:
    asked = Request(client=1, key="k", name="ape", verb="mark", value="x")
    kept = {"k": Remembered(Wish(id="a", memory_mib=64, mark="x", generation=2), 7, writes=True)}
    given_up = Told(request=asked, called_at=1, ended_at=2, gave_up=True)
    [found] = resolved([given_up], kept, quiet_at=99)
    assert (found.writes, found.revision, found.ended_at) == (True, 7, 99)
    assert resolved([given_up], {}, quiet_at=99) == []
    refused = Told(request=asked, called_at=1, ended_at=2, refusal="vm ape: others kept writing it; try again")
    assert resolved([refused], {}, quiet_at=99) == [refused]
    with pytest.raises(AssertionError, match="nothing was written, and it was"):
        resolved([refused], kept, quiet_at=99)
    done = Told(request=asked, called_at=1, ended_at=2, wish=kept["k"].wish, revision=7)
    with pytest.raises(AssertionError, match="nothing is known of it"):
        resolved([done], {}, quiet_at=99)
