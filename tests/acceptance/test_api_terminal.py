"""A lab's terminal: WebSockets of the API to a shell behind a real SSH server."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncssh
import msgspec
import pytest
from api_server import Api, serving
from doubles import DoorMachines
from terminal_guest import Browser, ShellGuest, browse

from hostler.engine.tickets import PeerTickets
from hostler.entry.lab_key import terminal_key
from hostler.entry.relay import RelayApp
from hostler.entry.server import serve, terminal
from hostler.entry.server.serve import Server
from hostler.entry.server.services import ServerPlan
from hostler.entry.terminal import session, ssh
from hostler.entry.terminal.session import Terminal
from hostler.keys.lab import LAB
from hostler.keys.node import MEMBER
from hostler.keys.vm import HANDLE
from hostler.kit.clock import SystemClock
from hostler.model.access import Role
from hostler.model.inventory import Capacity
from hostler.model.lab import Lab, LabEvent, LabNews, LabPhase, LabUser
from hostler.model.node import Lifecycle, NodeRecord
from hostler.model.vm import Access, MachineState, VmHandle
from hostler.ports.machines import Door


class Place:
    """A server with the labs of a few users, all of which lead to one guest."""

    def __init__(self, api: Api, guest: ShellGuest, doubles: DoorMachines) -> None:
        self.api, self.guest, self.doubles = api, guest, doubles

    async def lab(self, user: str = "ann", **fields: Any) -> None:
        """The user's lab is this now; an available one of generation 1, unless said otherwise."""
        said: dict[str, Any] = {
            "lab_id": 5,
            "generation": 1,
            "phase": LabPhase.RUNNING,
            "requested_at": 0.0,
            "life": 60.0,
            "vm": f"vm-{user}",
            "user": "student",
            "available": True,
            **fields,
        }
        lab = Lab(**said)
        if lab.vm:
            self.doubles.ports[lab.vm, Door.SSH] = self.guest.port
            await self.machine(user, lab.vm)
        await self.user(LabUser(user=user, generation=lab.generation, lab=lab, changed_at=0.0))

    async def user(self, record: LabUser) -> None:
        await self.api.store.txn([], [LAB.put(record, user=record.user)])

    async def machine(self, user: str = "ann", vm: str = "vm-ann", *, keys: tuple[str, ...] | None = None) -> None:
        host_keys = (self.guest.public_key,) if keys is None else keys
        access = Access(host="127.0.0.1", port=22, user="user", host_keys=host_keys)
        handle = VmHandle(id=vm, node="n1", state=MachineState.RUNNING, access=access, seen_at=0.0)
        await self.api.store.txn([], [HANDLE.put(handle, org="labs", project=user, vm=vm)])

    async def gone(self, user: str = "ann", event: LabEvent = LabEvent.STOPPED, reason: str = "") -> None:
        news = LabNews(number=1, at=0.0, event=event, lab_id=5, reason=reason)
        await self.user(LabUser(user=user, generation=1, news=(news,), changed_at=0.0))

    def terminal(self, user: str = "ann") -> Terminal:
        return self.api.app.terminals._terminals[user]

    async def empty(self) -> None:
        """The server has no terminal any more."""
        await until(lambda: not len(self.api.app.terminals))


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def placed(tmp_path: Path, **plan: Any) -> AsyncIterator[Place]:
    doubles = DoorMachines({})
    key = tmp_path / "data" / "lab_ed25519"
    async with (
        ShellGuest() as guest,
        serving(
            plan=ServerPlan(lab_key=key, **plan), machines_of=lambda node: doubles if node == "n1" else None
        ) as api,
    ):
        guest.allowed.append(terminal_key(key)[0].convert_to_public())
        yield Place(api, guest, doubles)


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
    assert page.seen[0] == {"type": "connected"}
    assert place.guest.users == ["student"]
    await page.type("exit 3\r")
    await page.until(kind="info", said="exit status 3")
    assert await page.closed() == 1000
    await place.empty()
    page = await browse(place.api)
    await page.until(said="shell 2")


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
    assert newer.seen[0] == {"type": "connected"}
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
    assert everything.seen[0] == {"type": "connected"}
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
    await page.until(kind="info", said="not kept")
    assert len(page.output) <= 64 * 1024 + len("shell 1 is here\r\n")
    assert "xpoured\r\n" in page.output


async def test_after_the_grace_time_there_is_a_new_shell(tmp_path: Path) -> None:
    async with placed(tmp_path, terminal_grace=0.05) as place:
        await place.lab()
        page = await browse(place.api)
        await page.until(said="shell 1")
        await asyncio.sleep(0.1)  # longer than the grace time: who is there is not deserted
        await page.type("who\r")
        await page.until(said="is here")
        await page.leave()
        await place.empty()
        page = await browse(place.api)
        await page.until(said="shell 2")


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


async def test_a_lab_that_is_not_there_yet_is_waited_for(place: Place) -> None:
    await place.lab("bob", phase=LabPhase.WAITING, available=False, vm="")
    await place.lab(phase=LabPhase.WAITING, available=False, vm="", requested_at=1.0)
    page = await browse(place.api)
    told = await page.until(kind="provisioning", said="1 are before it")
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
    await page.until(kind="info", said="another lab has taken its place")
    assert await page.closed() == 4004


async def test_a_lost_connection_is_made_again_while_the_lab_is_available(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    place.guest.cut()
    await page.until(kind="info", said="connection to the lab was lost")
    await page.until(said="shell 2")
    await page.type("die\r")
    await page.until(said="shell 3")
    place.doubles.ports.pop(("vm-ann", Door.SSH))
    place.guest.cut()
    await page.until(kind="info", said="it is off")
    await place.lab(available=False)
    await page.until(kind="provisioning", said="does not answer")
    await place.lab()
    await page.until(said="shell 4")
    assert len(page.all("connected")) == 4


async def test_a_machine_that_falls_silent_counts_as_lost(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "SILENT", 0.05)
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
    await page.until(kind="info", said="does not let anybody in yet")
    place.guest.allowed = allowed
    await page.until(said="shell 1")
    monkeypatch.setattr(session, "PATIENCE", 0.0)
    place.guest.allowed = []
    place.guest.cut()
    await page.until(kind="error", said="lab_key")
    assert await page.closed() == 1011


NONSENSE = (
    "",
    "no json",
    "[]",
    "7",
    "{}",
    '{"type":"input"}',
    '{"type":"input","data":7}',
    '{"type":"input","data":"\\ud800"}',
    '{"type":"resize","cols":"80","rows":24}',
    '{"type":"resize","cols":0,"rows":24}',
    '{"type":"resize","cols":true,"rows":24}',
    '{"type":"resize","cols":1e99,"rows":24}',
    '{"type":"resize","cols":80,"rows":99999999999999999999}',
    '{"type":"output","data":"x"}',
    '{"type":["input"],"data":"x"}',
    "[" * 100_000,
    '{"type":"input","data":' + "[" * 100_000,
)


async def test_a_message_that_means_nothing_is_told_so_and_the_terminal_goes_on(place: Place) -> None:
    await place.lab()
    for start in range(0, len(NONSENSE), 9):
        page = await browse(place.api)
        await page.until(kind="connected")
        for text in NONSENSE[start : start + 9]:
            page.seen.clear()
            await page.socket.send_str(text)
            assert len((await page.until(kind="error"))["message"]) < 500, text
        await page.type("who\r")
        await page.until(said="shell 1 is here")
    assert place.guest.typed == b"who\r" * 2


async def test_who_sends_nothing_else_is_closed(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    for _ in range(10):
        await page.socket.send_str("nonsense")
    assert await page.closed() == 1008
    assert len(page.all("error")) == 10
    page = await browse(place.api)
    await page.socket.send_bytes(b"\x00\xff")
    await page.until(kind="error", said="binary")
    assert await page.closed() == 1003
    page = await browse(place.api)
    await page.type("x" * serve.MAX_MESSAGE)
    assert await page.closed() == 1009
    page = await browse(place.api)
    await page.socket._writer.send_frame(b"\xff\xfe", aiohttp.WSMsgType.TEXT)
    assert await page.closed() == 1007
    page = await browse(place.api)
    await page.type("who\r")
    await page.until(kind="connected")


async def test_a_browser_that_does_not_read_holds_up_the_shell_and_not_the_server(place: Place) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(said="shell 1")
    transport = page.socket._response.connection.transport  # type: ignore[union-attr]
    assert transport is not None
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    transport.pause_reading()  # type: ignore[attr-defined]
    await page.type("pour 9000\r")
    last = -1
    while last != place.guest.poured:  # until nothing moves any more
        last = place.guest.poured
        await asyncio.sleep(0.3)
    assert 0 < place.guest.poured < 8_000 * 1024  # what the system buffers, and little more
    assert len(place.terminal().scroll._text) <= 64 * 1024
    newer = await browse(place.api)
    await newer.until(said="poured\r\n")
    assert place.guest.poured == 9000 * 1024
    assert "not kept" not in str(newer.all("info"))


async def test_a_shell_that_takes_no_input_holds_up_the_browser_and_not_the_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.lab()
    page = await browse(place.api)
    await page.until(kind="connected")
    await page.type("later done\r")
    await until(lambda: place.guest.typed)
    paste = "y" * (serve.MAX_MESSAGE // 2)

    async def pasting() -> None:
        for _ in range(40):
            await page.type(paste)

    pasted = asyncio.create_task(pasting())
    done, _ = await asyncio.wait((pasted,), timeout=0.5)
    assert not done, "20 MiB were taken in"
    newer = await browse(place.api)  # and yet it can be taken over
    await newer.until(kind="connected")
    pasted.cancel()
    await asyncio.wait((pasted,))
    monkeypatch.setattr(terminal, "TYPED_WITHIN", 0.05)
    await newer.type("z" * 1024)
    await newer.until(kind="error", said="the shell takes none")
    await newer.leave()
    await until(lambda: not place.api.app.feed.streams)  # that it has gone is heard


async def test_who_may_not_is_refused_before_it_is_a_websocket(place: Place) -> None:
    await place.lab()
    viewer = await place.api.user(Role.VIEWER, "labs")
    other = await place.api.user(Role.MEMBER, "labs/bob", "acme")
    for token, user, status in (
        (None, "ann", 401),
        ("x", "ann", 401),
        (viewer, "ann", 403),
        (other, "ann", 404),
        ("", "a%3Ab", 400),
        ("", "a%2Fb", 400),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(place.api, user, token=token)
        assert refused.value.status == status, (token, user)
    assert (await place.api.call("GET", "/v1/labs/ann/terminal")).status == 400
    for query in ("?replay=some", "?x=y"):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(place.api, query=query)
        assert refused.value.status == 400
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await place.api.http.ws_connect(
            f"{place.api.url}/v1/labs/ann/terminal",
            headers={"Authorization": f"Bearer {place.api.admin}", "Origin": "http://elsewhere.example"},
        )
    assert refused.value.status == 403
    assert not len(place.api.app.terminals)
    own = await place.api.user(Role.MEMBER, "labs/ann")
    page = await browse(place.api, token=own)
    await page.until(kind="connected")


async def test_a_ticket_opens_the_terminal_of_its_user_once(place: Place) -> None:
    await place.lab()
    await place.lab("bob")
    own = await place.api.user(Role.MEMBER, "labs/ann", name="ann")
    other = await place.api.user(Role.MEMBER, "labs/bob")
    viewer = await place.api.user(Role.VIEWER, "labs")
    assert (await place.api.call("POST", "/v1/labs/ann/tickets", token=other)).status == 404
    assert (await place.api.call("POST", "/v1/labs/ann/tickets", token=viewer)).status == 403
    reply = await place.api.call("POST", "/v1/labs/ann/tickets", token=own)
    assert (reply.status, reply.json["url"]) == (201, "/v1/labs/ann/terminal")
    ticket = reply.json["ticket"]
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await browse(place.api, "bob", f"?ticket={ticket}", token=None)
    assert refused.value.status in (401, 404)
    page = await browse(place.api, "ann", f"?ticket={ticket}&replay=all", token=None)
    await page.until(said="shell 1")
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await browse(place.api, "ann", f"?ticket={ticket}", token=None)
    assert refused.value.status == 401
    tokens = (await place.api.call("GET", "/v1/users/ann/tokens")).json["items"]
    await place.api.call("DELETE", f"/v1/users/ann/tokens/{tokens[0]['id']}")
    assert await page.closed() == 1008  # with the token that it was issued for
    assert len(place.api.app.terminals) == 1  # whoever has the right may come back


async def test_a_server_has_so_many_terminals_and_no_more(tmp_path: Path) -> None:
    async with placed(tmp_path, max_terminals=1, terminal_grace=0.05) as place:
        await place.lab()
        await place.lab("bob")
        page = await browse(place.api)
        await page.until(kind="connected")
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(place.api, "bob")
        assert refused.value.status == 503
        again = await browse(place.api)
        await again.until(kind="connected")  # one's own counts once
        await again.leave()
        await place.empty()
        await (await browse(place.api, "bob")).until(kind="connected")


async def test_a_server_without_a_key_has_no_terminals(tmp_path: Path) -> None:
    async with serving() as api:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browse(api)
        assert refused.value.status == 503
    (tmp_path / "data").mkdir()
    async with placed(tmp_path) as place:
        (tmp_path / "data" / "lab_ed25519").chmod(0o644)
        await place.lab()
        page = await browse(place.api)
        await page.until(kind="error", said="others can read it")
        assert await page.closed() == 1011


async def test_the_server_closes_quickly_with_open_terminals(place: Place) -> None:
    pages: list[Browser] = []
    for user in ("ann", "bob"):
        await place.lab(user)
        pages.append(await browse(place.api, user))
        await pages[-1].until(kind="connected")
    await place.lab("eve", phase=LabPhase.WAITING, available=False)
    pages.append(await browse(place.api, "eve"))
    await pages[-1].until(kind="provisioning")
    started = time.monotonic()
    await place.api.server.__aexit__(None, None, None)
    assert time.monotonic() - started < 3
    for page in pages:
        assert await page.closed() in (1001, 1012)
    assert not len(place.api.app.terminals)
    await until(lambda: not [task for task in asyncio.all_tasks() if "terminal of" in task.get_name()])


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
        entry = await HANDLE.get(place.api.store, org="labs", project="ann", vm="vm-ann")
        assert entry is not None
        await HANDLE.replace(place.api.store, entry, msgspec.structs.replace(entry.value, node="n2"))
        await place.api.services.view.refresh(place.api.services.view.handles)
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
