"""A lab's terminal: WebSockets of the API to a shell behind a real SSH server."""

from __future__ import annotations

import asyncio
import logging
import stat
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncssh
import pytest
from harness import pace
from terminal_guest import browse
from terminal_place import Place, placed, until

from hostler.engine.tickets import PeerTickets
from hostler.entry.relay import RelayApp
from hostler.entry.server.serve import Server
from hostler.entry.ssh import terminal_key
from hostler.entry.terminal import machine, session, sessions
from hostler.keys.families import MEMBER
from hostler.keys.lab import LAB
from hostler.kit.clock import SystemClock
from hostler.model.inventory import Capacity
from hostler.model.lab import LabCatalogue, LabEvent, LabPhase, LabTemplate
from hostler.model.node import Lifecycle, NodeRecord
from hostler.model.vm import Step
from hostler.ports.machines import ChannelKind


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with placed(tmp_path) as place:
        yield place


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_unseen(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session, "AGAIN", (0.02, 0.1))
    monkeypatch.setattr(session, "RATE", 1e9)
    yield
    records = [*caplog.get_records("call"), *caplog.records]
    assert not [record for record in records if record.levelno >= logging.ERROR]


async def test_a_shell_types_and_speaks_in_the_browser(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(kind="connected")
    await page.until(said="shell 1")
    await page.type("who\r")
    await page.until(said="shell 1 is here")
    await page.type("split\r")
    await page.until(said="größe €\ufffd\r\n")
    assert page.seen[0]["type"] == "connected"
    assert place.guest.users == ["student"]
    await page.type("exit 3\r")
    await page.until(kind="info", said="exit status 3")
    assert await page.closed() == 1000
    await place.empty()
    page = await browse(place.api)
    await page.until(said="shell 2")


async def test_what_a_teacher_says_is_shown_once_and_the_shell_goes_on(place: Place) -> None:
    await place.lab()
    path = "/v1/labs/ann/message"
    await place.api.call("POST", path, json={"text": "long ago"})
    page = await browse(place.api)
    await page.until(said="shell 1")
    assert (await place.api.call("POST", path, json={"text": "ten minutes"})).status == 200
    await page.until(kind="info", said="message: ten minutes")
    await place.api.call("POST", path, json={"text": "five minutes"})
    await page.until(kind="info", said="message: five minutes")
    await page.type("who\r")
    await page.until(said="shell 1 is here")
    told = [message for message in page.seen if message.get("news") == "message"]
    assert [message["message"] for message in told] == ["message: ten minutes", "message: five minutes"]


async def test_the_size_of_the_window_is_the_shells(place: Place) -> None:
    await place.lab(available=False, phase=LabPhase.PROVISIONING)
    page = await browse(place.api)
    await page.until(kind="provisioning")
    await page.say(type="resize", cols=132, rows=50)
    await page.say(type="nonsense")
    await page.until(kind="error")  # by then the size was heard
    await place.lab()
    await page.until(kind="connected")
    await page.type("size\r")
    await page.until(said="size 132x50")
    await page.say(type="resize", cols=100, rows=30)
    await page.until(said="resized 100x30")


async def test_the_newer_takes_over_and_the_shell_goes_on_there(place: Place) -> None:
    await place.lab()
    older = await browse(place.api)
    await older.until(said="shell 1")
    newer = await browse(place.api)
    await older.until(kind="info", said="elsewhere")
    assert await older.closed() == 4001
    await newer.type("who\r")
    await newer.until(said="shell 1 is here")
    assert newer.seen[0] == older.seen[0], "it is the same shell"
    assert "shell 1\r\n" not in newer.output
    assert len(place.api.app.terminals) == 1


async def test_who_comes_back_in_time_finds_the_same_shell_and_what_it_said_meanwhile(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    await page.type("later missed\r")
    await until(lambda: place.guest.typed)
    await page.leave()
    await until(lambda: not place.api.app.feed.streams)
    place.guest.speak.set()
    page = await browse(place.api)
    await page.until(said="missed")
    await page.type("who\r")
    await page.until(said="shell 1 is here")
    assert "shell 1\r\n" not in page.output
    everything = await browse(place.api, query="?replay=all")
    await everything.until(said="shell 1 is here")
    assert everything.seen[0] == page.seen[0], "it is the same shell"
    assert everything.output.startswith("shell 1\r\n")


async def test_of_what_is_said_to_nobody_the_end_is_kept(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    await page.type("pour 300\r")
    await until(lambda: place.guest.poured)
    await page.leave()
    scroll = place.terminal().scroll
    await until(lambda: scroll._text.endswith("poured\r\n"))  # nobody reads, and yet the shell is not held up
    page = await browse(place.api)
    await page.type("who\r")
    await page.until(said="shell 1 is here")
    await page.until(kind="info", said="dropped while disconnected")
    assert len(page.output) <= 64 * 1024 + len("shell 1 is here\r\n")
    assert "xpoured\r\n" in page.output


class Patience(SystemClock):
    """A clock whose long waits end when the test says so."""

    def __init__(self) -> None:
        self.over, self.waiting = asyncio.Event(), 0

    async def sleep(self, seconds: float) -> None:
        if seconds < 300:
            await super().sleep(seconds)
            return
        self.waiting += 1
        try:
            await self.over.wait()
        finally:
            self.waiting -= 1


async def test_after_the_grace_time_there_is_a_new_shell(place: Place) -> None:
    clock = place.api.app.terminals._clock = Patience()
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    assert not clock.waiting
    await page.leave()
    await until(lambda: clock.waiting == 1)
    page = await browse(place.api)
    await until(lambda: not clock.waiting)  # who is back has all the time again
    await page.type("who\r")
    await page.until(said="shell 1 is here")
    await page.leave()
    await until(lambda: clock.waiting == 1)
    clock.over.set()
    await place.empty()
    page = await browse(place.api)
    await page.until(said="shell 2")


async def test_l48_where_a_lab_ends_with_its_terminal_it_is_noted_when_somebody_was_there_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L48: on the way in, now and then, and on the way out; of other labs nothing is written."""
    monkeypatch.setattr(sessions, "NOTE_EVERY", 0.02)
    labs = {"5": LabTemplate(end_with_terminal=True), "6": LabTemplate()}
    async with placed(tmp_path, catalogue=LabCatalogue(labs=labs)) as place:

        async def noted(user: str) -> float | None:
            entry = await LAB.get(place.api.store, user=user)
            assert entry is not None
            assert entry.value.lab is not None
            return entry.value.lab.terminal_at

        async def noted_after(at: float) -> float:
            async with asyncio.timeout(pace.patience(10.0)):
                while (found := await noted("ann")) is None or found <= at:
                    await asyncio.sleep(0.005)
            return found

        await place.lab()
        await place.lab("bob", lab_id=6)
        before = time.time()
        page, other = await browse(place.api), await browse(place.api, "bob")
        await page.until(kind="connected")
        await other.until(kind="connected")
        first = await noted_after(before)
        later = await noted_after(await noted_after(first))  # somebody is there
        await page.leave()
        left = time.time()
        await until(lambda: not place.terminal().is_attended)
        await until(lambda: not place.api.app.terminals._unnoted)
        last = await noted("ann")
        assert last is not None
        assert later <= last <= time.time()
        await asyncio.sleep(0.1)
        assert await noted("ann") == last, "nobody is there"
        assert last - left < 5.0
        assert await noted("bob") is None
        back = await browse(place.api)
        await back.until(kind="connected")
        await noted_after(last)


async def test_a_machine_with_another_host_key_is_told_nothing(place: Place) -> None:
    await place.lab()
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    await place.machine(keys=(other,))
    page = await browse(place.api)
    await page.type("secret\r")
    await page.until(kind="error", said="another host key")
    assert await page.closed() == 1011
    assert (place.guest.typed, place.guest.logins, page.all("connected")) == (b"", 0, [])
    await place.empty()


@pytest.mark.parametrize("keys", [(), ("no key",)])
async def test_a_machine_whose_host_key_is_not_known_is_not_even_called(place: Place, keys: tuple[str, ...]) -> None:
    await place.lab()
    await place.machine(keys=keys)
    page = await browse(place.api)
    await page.until(kind="error", said="not known")
    assert await page.closed() == 1011
    assert not place.guest.connections


async def test_a_machine_that_is_seen_later_than_its_lab_is_waited_for(place: Place) -> None:
    await place.lab()
    await place.machine(keys=(), step=Step.SSH)
    page = await browse(place.api)
    await page.until(kind="provisioning", said="the SSH access of its machine is not known yet")
    await place.machine()
    await page.until(said="shell 1")


async def test_a_lab_that_is_not_there_yet_is_waited_for(place: Place) -> None:
    await place.lab(phase=LabPhase.WAITING, available=False, vm="", requested_at=1.0)
    await place.lab("bob", phase=LabPhase.WAITING, available=False, vm="")
    page = await browse(place.api)
    told = await page.until(kind="provisioning", said="1 is before it")
    assert (told["status"], told["position"]) == ("waiting", 2)
    await place.gone("bob")
    assert (await page.until(kind="provisioning", said="0 are before it"))["position"] == 1
    await place.lab(phase=LabPhase.PROVISIONING, available=False, detail="booting")
    assert (await page.until(kind="provisioning", said="booting"))["status"] == "provisioning"
    newer = await browse(place.api)
    await newer.until(kind="provisioning", said="booting")  # who comes is told how it stands
    await place.lab()
    await newer.until(kind="connected")
    await newer.until(said="shell 1")


@pytest.mark.parametrize(
    ("event", "words"),
    [(LabEvent.STOPPED, "stopped"), (LabEvent.EXPIRED, "time is over"), (LabEvent.FAILED, "failed (no room)")],
)
async def test_a_lab_that_goes_ends_its_terminal_with_the_reason(place: Place, event: LabEvent, words: str) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    await place.gone(event=event, reason="no room" if event is LabEvent.FAILED else "")
    await page.until(kind="info", said=words)
    assert await page.closed() == 4004
    await place.empty()
    page = await browse(place.api)
    await page.until(kind="error", said="start one")
    assert await page.closed() == 4004


async def test_a_lab_that_stops_ends_its_terminal_and_the_next_is_waited_for(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    stopping = {"phase": LabPhase.STOPPING, "ending": LabEvent.STOPPED, "available": True}
    await place.lab(**stopping)
    await page.until(kind="info", said="stopped")
    assert await page.closed() == 4004
    await place.empty()
    await place.lab(**stopping, again=6)
    page = await browse(place.api)
    await page.until(kind="provisioning", said="lab 6 starts once it is gone")
    await place.lab(generation=2, lab_id=6, vm="vm-2")
    await page.until(said="shell 2")
    await place.lab(generation=2, lab_id=6, vm="vm-2", phase=LabPhase.STOPPING, again=5)
    assert await page.closed() == 4004


async def test_an_old_shell_is_never_given_to_a_newer_lab(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    await page.leave()
    await place.lab(generation=2, vm="vm-2")  # at once: the terminal need not have heard of it
    page = await browse(place.api)
    await page.until(said="shell 2")
    await place.lab(generation=3, vm="vm-3")
    await page.until(kind="info", said="another lab has replaced it")
    assert await page.closed() == 4004


async def test_a_server_that_is_behind_the_store_gives_nobody_the_old_shell(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    await page.leave()
    labs, held = place.api.services.view.labs, []
    with monkeypatch.context() as behind:
        behind.setattr(labs, "_take", held.append)
        await place.lab(generation=2, vm="vm-2")
        opening = asyncio.create_task(browse(place.api))
        await until(lambda: held)
        done, _ = await asyncio.wait((opening,), timeout=0.2)
        assert not done
    labs._take(held[0])
    await (await opening).until(said="shell 2")


async def test_a_lost_connection_is_made_again_while_the_lab_is_available(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    place.guest.cut()
    await page.until(kind="info", said="connection to the lab was lost")
    await page.until(said="shell 2")
    await page.type("die\r")
    await page.until(said="shell 3")
    place.doubles.ports.pop(("vm-ann", ChannelKind.SSH))
    place.guest.cut()
    await page.until(kind="info", said="it is off")
    await place.lab(available=False)
    await page.until(kind="provisioning", said="does not answer")
    await place.lab()
    await page.until(said="shell 4")
    assert len(page.all("connected")) == 4


async def test_a_machine_that_falls_silent_counts_as_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SILENT", 0.05)
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    place.guest.connections[0]._transport.pause_reading()
    await page.until(kind="info", said="connection to the lab was lost")
    await page.until(said="shell 2")


async def test_a_shell_that_talks_without_end_is_slowed_down(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "RATE", 500 * 1024)
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    started = time.monotonic()
    await page.type("pour 300\r")
    await page.until(said="poured")
    assert time.monotonic() - started > 0.3


async def test_a_machine_that_does_not_take_the_key_is_asked_for_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed, place.guest.allowed = place.guest.allowed, []
    await place.lab()
    page = await browse(place.api)
    await page.until(kind="info", said="refuses the terminal's key")
    place.guest.allowed = allowed
    await page.until(said="shell 1")
    monkeypatch.setattr(session, "PATIENCE", 0.0)
    place.guest.allowed = []
    place.guest.cut()
    await page.until(kind="error", said="lab_key")
    assert await page.closed() == 1011


async def test_a_machine_of_another_process_is_reached_through_its_agents_relay(place: Place) -> None:
    tickets = PeerTickets(place.api.store, clock=SystemClock(), secret=lambda: "s" * 40, by="replica")
    relay = RelayApp(tickets, lambda node: place.doubles if node == "n2" else None)  # type: ignore[arg-type, return-value]
    async with Server(relay) as server:
        record = NodeRecord(
            node="n2",
            lifecycle=Lifecycle.ON_DUTY,
            capacity=Capacity(cpus=1, memory_mib=1),
            registered_at=0.0,
            address=server.url,
        )
        await place.api.store.txn([], [MEMBER.put(record, node="n2")])
        await place.lab()
        await place.machine(node="n2")
        page = await browse(place.api)
        await page.until(said="shell 1")
        assert relay.streams == 1
        await place.gone()
        assert await page.closed() == 4004
        await until(lambda: not relay.streams)


async def test_the_key_is_made_once_and_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lab_ed25519"
    made = await asyncio.gather(*(asyncio.to_thread(terminal_key, path) for _ in range(8)))
    assert len({public for _, public in made}) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["lab_ed25519"]
    assert made[0][1].startswith("ssh-ed25519 ")
    assert "PRIVATE" not in made[0][1]
