"""What slices printed, read back while it is written, asked of a node, and shown to people."""

from __future__ import annotations

import asyncio
import os
import random
import select
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest
from blueprint_scene import SaidArtifacts
from environment import env_on
from service_scene import ADMIN, MEMBER_OF_ACME, Scene, play

from hostler.drivers.machines.simulated import MemoryHost, SimulatedMachines
from hostler.drivers.slices.process.instance_dir import InstanceDir
from hostler.drivers.slices.process.log import read_log
from hostler.engine.deployments.service import BlueprintService
from hostler.engine.request import Caller
from hostler.engine.slices import logs as printed
from hostler.engine.slices.logs import NodeDoors, ask, told
from hostler.entry.cli.slice.read import LogFilter, Source, _first, _follow, _show
from hostler.errors import Forbidden, Invalid, NotFound, Unavailable
from hostler.keys.families import RETRIES, SLICE
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import ROLES, Role
from hostler.model.deployment import SliceInstance, SliceRecord, SliceState
from hostler.model.rollout import Retries
from hostler.model.slice_api import SliceInstanceView, SliceLog, SliceView
from hostler.ports.machines import ChannelKind
from hostler.ports.slices import MOST_PRINTED, Printed
from hostler.ports.worker_protocol import MAX_LOG
from hostler.slices.worker import Log
from hostler.testing import SimulatedSlices, SliceHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.ports.machines import Channel

GREET = "org:greet:1"


def place_of(root: Path, number: int = 1, text: bytes | None = None) -> InstanceDir:
    place = InstanceDir(root, f"{GREET}#{number}")
    place.make(None)
    if text is not None:
        place.log.write_bytes(text)
        place.older.write_bytes(b"")
    return place


# Read back


@pytest.mark.parametrize("seed", range(3))
def test_who_follows_a_log_reads_every_byte_once_however_often_it_is_begun_anew(tmp_path: Path, seed: int) -> None:
    rng, place, (reading, writing) = random.Random(seed), place_of(tmp_path), os.pipe()
    logs = place.open_logs()
    log = Log(reading, *logs, limit=1000)
    said, heard, after, turns = b"", b"", "", 0
    try:
        for _ in range(300):
            piece = "".join(rng.choices("ab\näß€𝄞\0\x1b", k=rng.randint(0, 60))).encode()
            os.write(writing, piece)
            said += piece
            before = place.log.stat().st_size
            while select.select([reading], (), (), 0)[0]:
                assert log.take()
            if place.log.stat().st_size < before:
                turns += 1
                os.utime(place.older, ns=(turns, turns))  # a system's clock of files may be slower than this test
            if rng.random() < 0.4:
                found = read_log(tmp_path, GREET, 1, after)
                heard, after = heard + found.text, found.after
                found.text.decode()  # no character is cut in two
                assert found.skipped == 0
        heard += read_log(tmp_path, GREET, 1, after).text
    finally:
        for descriptor in (reading, writing, *logs):
            os.close(descriptor)
    assert heard == said
    assert turns > 5


def test_a_long_log_is_told_from_its_end_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    place = place_of(tmp_path, text=b"x" * 1_000_000)
    found = read_log(tmp_path, GREET, 1, "")
    assert (len(found.text), found.skipped) == (MOST_PRINTED, 1_000_000 - MOST_PRINTED)
    with place.log.open("ab") as file:
        file.write(b"y" * (MOST_PRINTED + 10))
    more = read_log(tmp_path, GREET, 1, found.after)
    assert (more.text, more.skipped) == (b"y" * MOST_PRINTED, 10)
    place.older.write_bytes(b"older\n")
    place.log.write_bytes(b"new\n")
    both = read_log(tmp_path, GREET, 1, "")
    assert (both.text, both.skipped) == (b"older\nnew\n", 0)


def test_a_log_that_is_just_being_copied_is_told_once(tmp_path: Path) -> None:
    place = place_of(tmp_path, text=b"a" * (MAX_LOG - 4) + b"end\n")
    place.older.write_bytes(b"a" * 1000)
    found = read_log(tmp_path, GREET, 1, "", most=2 * MAX_LOG)
    assert len(found.text) == MAX_LOG
    assert read_log(tmp_path, GREET, 1, found.after).text == b""


def test_a_log_that_was_begun_anew_without_its_past_is_told_from_its_beginning(tmp_path: Path) -> None:
    place = place_of(tmp_path, text=b"something long\n")
    after = read_log(tmp_path, GREET, 1, "").after
    place.log.write_bytes(b"short\n")
    assert read_log(tmp_path, GREET, 1, after).text == b"short\n"


def test_without_a_number_the_instance_that_printed_last_is_meant(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=f"{GREET}: no output is kept there.* hostler slice list org:greet"):
        read_log(tmp_path, GREET, 0, "")
    for number, at in ((2, 100), (12, 300), (3, 200)):
        os.utime(place_of(tmp_path, number, b"%d" % number).log, (at, at))
    other = InstanceDir(tmp_path, "org:greet:1_1#4")  # another artifact whose file looks alike
    other.log.write_bytes(b"no")
    found = read_log(tmp_path, GREET, 0, "")
    assert (found.instance, found.text) == (12, b"12")
    assert read_log(tmp_path, GREET, 3, "").text == b"3"
    with pytest.raises(NotFound, match=f"{GREET}#4: no output"):
        read_log(tmp_path, GREET, 4, "")


def test_what_a_slice_put_in_the_place_of_its_log_is_not_read(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    (tmp_path / "secret").write_text("secret")
    place.log.symlink_to(tmp_path / "secret")
    with pytest.raises(NotFound):
        read_log(tmp_path, GREET, 1, "")
    place.log.unlink()
    os.mkfifo(place.log)  # to open it would wait for whoever writes
    with pytest.raises(NotFound):
        read_log(tmp_path, GREET, 1, "")
    place.log.unlink()
    place.log.write_bytes(b"fine\n")
    os.mkfifo(place.older)
    assert read_log(tmp_path, GREET, 1, "").text == b"fine\n"


def test_bytes_that_are_no_text_are_told_all_the_same(tmp_path: Path) -> None:
    place = place_of(tmp_path, text=bytes(range(256)) + b"\xe2\x82")
    found = read_log(tmp_path, GREET, 1, "")
    assert found.text == bytes(range(256))
    with place.log.open("ab") as file:
        file.write(b"\xac \xff\xff")
    assert read_log(tmp_path, GREET, 1, found.after).text == "€ ".encode() + b"\xff"
    place.log.write_bytes(b"\x80" * 10)
    assert len(read_log(tmp_path, GREET, 1, "").text) == 10


# As text


def text_of(text: bytes, lines: int | None = 100, skipped: int = 0) -> str:
    return told(Printed(instance=1, text=text, after="", skipped=skipped), lines)


@pytest.mark.parametrize(
    ("text", "lines", "expected"),
    [
        (b"a\nb\nc\n", 2, "b\nc\n"),
        (b"a\nb\nc", 2, "b\nc"),
        (b"a\nb\n", 9, "a\nb\n"),
        (b"a\n\n\n", 2, "\n\n"),
        (b"a\nb\n", 0, ""),
        (b"a", 0, ""),
        (b"", 5, ""),
        (b"a\nb\n", None, "a\nb\n"),
    ],
)
def test_the_last_lines_are_told(text: bytes, lines: int | None, expected: str) -> None:
    assert text_of(text, lines) == expected


def test_a_line_without_a_beginning_is_left_out_and_an_endless_one_is_cut() -> None:
    assert text_of(b"rest of a line\nwhole\n", skipped=5) == "whole\n"
    endless = text_of(b"z" * MOST_PRINTED, skipped=700_000)
    assert endless.startswith("zzz")
    assert endless.endswith(f"… ({MOST_PRINTED - 4096:,} characters more)")
    assert len(endless) < 4200
    assert text_of(b"\xff\x00\x1b[2J\n") == "\ufffd\x00\x1b[2J\n"


# Asked of a node


class OnePeer:
    """Peers of which one node answers."""

    def __init__(self, channel: Callable[[str, ChannelKind], Channel]) -> None:
        self._channel = channel

    def channel(self, node: str, vm: str, door: ChannelKind) -> Channel:
        if node != "n1":
            raise Unavailable(f"node {node}: nobody listens")
        return self._channel(vm, door)


class Says:
    """A channel that says whatever it was given, as another release might; or nothing."""

    def __init__(self, *pieces: bytes | None) -> None:
        self.pieces = list(pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def read(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        if piece is None:
            await asyncio.sleep(1000)
        return piece or b""

    async def write(self, data: bytes) -> None: ...


def test_a_node_tells_what_its_slices_printed_and_its_machines_are_as_before() -> None:
    async def main() -> None:
        place = SliceHost("h")
        async with (
            SimulatedMachines(MemoryHost(), clock=VirtualClock(), rng=random.Random(1)) as machines,
            SimulatedSlices(place, clock=VirtualClock(), rng=random.Random(1)) as slices,
        ):
            peers = OnePeer(NodeDoors(machines, slices).channel)
            place.print(f"{GREET}#2", b"hello\n")
            found = await ask(peers, "n1", GREET, 0)
            assert (found.instance, found.text) == (2, b"hello\n")
            place.print(f"{GREET}#2", b"again\n")
            assert (await ask(peers, "n1", GREET, 2, found.after)).text == b"again\n"
            with pytest.raises(NotFound, match="node n1: org:greet:1#7: no output is kept there"):
                await ask(peers, "n1", GREET, 7)
            with pytest.raises(Unavailable, match="node n9: nobody listens"):
                await ask(peers, "n9", GREET, 2)
            place.down()
            with pytest.raises(Unavailable, match="node n1 cannot read it: slices at h: out of reach"):
                await ask(peers, "n1", GREET, 2)
            with pytest.raises(NotFound, match="machine"):
                async with NodeDoors(machines, slices).channel("vm1", ChannelKind.CONSOLE):
                    pass
            async with NodeDoors(machines, slices).channel(GREET, ChannelKind.SLICE_LOG) as channel:
                await channel.write(b"\xc1 no question")
                await channel.write(b"and more")
                assert b"cannot be decoded" in await channel.read()
                assert await channel.read() == b""

    run_virtual(main)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((), "sent a response that cannot be decoded"),
        ((b"\xc1",), "sent a response that cannot be decoded"),
        ((msgspec.msgpack.encode({"printed": {"text": 1}}),), "sent a response that cannot be decoded"),
        ((b"x" * 600_000,) * 9, "sent a response that cannot be decoded"),
        ((None,), "did not answer in time; try again"),
    ],
)
def test_a_node_that_says_nothing_sensible_is_told_of(said: tuple[bytes | None, ...], why: str) -> None:
    async def main() -> None:
        node = Says(*said)
        with pytest.raises(Unavailable, match=f"log of {GREET}: node n1 {why}"):
            await ask(OnePeer(lambda *_: node), "n1", GREET, 1)
        assert len(node.pieces) == max(0, len(said) - 3)  # an endless one is not heard to its end

    run_virtual(main)
    assert printed.WITHIN < 60


def test_a_node_that_cannot_be_reached_is_named_however_long_the_attempt_took() -> None:
    class Slow(Says):
        async def __aenter__(self) -> Says:
            await asyncio.sleep(printed.WITHIN)  # as long as an answer may take
            raise Unavailable("agent of node n1: cannot be reached")

    async def main() -> None:
        with pytest.raises(Unavailable, match="agent of node n1: cannot be reached"):
            await ask(OnePeer(lambda *_: Slow()), "n1", GREET, 1)

    run_virtual(main)


# Where to ask


def service(scene: Scene) -> BlueprintService:
    return BlueprintService(
        scene.store, scene.writer, scene.view, SaidArtifacts(), env_on(scene.clock, random.Random(3))
    )


async def stands(scene: Scene, node: str, artifact: str, *numbers: int, **instance: Any) -> None:
    one = SliceInstance(**{"state": SliceState.ACTIVE, **instance})
    record = SliceRecord(state=one.state, timestamp=1, instances=dict.fromkeys(numbers, one))
    put = SLICE.put(record, node=node, artifact=artifact)
    await scene.raw.put(put.key, put.value)
    await scene.settle()


def test_of_several_instances_the_one_that_is_not_well_is_asked_else_the_first() -> None:
    async def story(scene: Scene) -> None:
        where = service(scene).log_place
        await stands(scene, "n2", "org:a:1", 1, 3)
        await stands(scene, "n1", "org:a:1", 2)
        assert await where(ADMIN, "org:a") == ("n2", "org:a:1", 1)
        assert await where(ADMIN, "org:a:1", node="N1") == ("n1", "org:a:1", 2)
        assert await where(ADMIN, "org:a", instance=3) == ("n2", "org:a:1", 3)
        await stands(scene, "n3", "org:a:2", 4, ready=False)
        assert await where(ADMIN, "org:a") == ("n3", "org:a:2", 4)
        assert await where(ADMIN, "org:a:1") == ("n2", "org:a:1", 1)
        assert await where(ADMIN, "org:a:1", node="n3") == ("n3", "org:a:1", 0)  # it may have been there
        for wanted, node in (("org:a:3", None), ("org:a", "n4"), ("org:ab", None)):
            with pytest.raises(NotFound, match=f"slice {wanted}: there is no instance.*see hostler slice list"):
                await where(ADMIN, wanted, node=node)
        with pytest.raises(Invalid):
            await where(ADMIN, "nonsense")

    play(story)


def test_where_no_instance_is_left_it_is_asked_where_one_failed_last() -> None:
    async def story(scene: Scene) -> None:
        for artifact, at, nodes in (("org:a:1", 5.0, {"n1": 9}), ("org:a:2", 7.0, {"n2": 1, "n3": 2})):
            put = RETRIES.put(Retries(failures=3, nodes=nodes, given_up=True, at=at), artifact=artifact)
            await scene.raw.put(put.key, put.value)
        await scene.settle()
        where = service(scene).log_place
        assert await where(ADMIN, "org:a") == ("n3", "org:a:2", 0)
        assert await where(ADMIN, "org:a:1") == ("n1", "org:a:1", 0)
        assert await where(ADMIN, "org:a", node="n2", instance=4) == ("n2", "org:a:2", 4)

    play(story)


def test_only_who_may_deploy_is_told_what_slices_printed() -> None:
    async def story(scene: Scene) -> None:
        await stands(scene, "n1", "org:a:1", 1)
        for caller in (MEMBER_OF_ACME, Caller("vera", ROLES[Role.VIEWER], ("*",))):
            with pytest.raises(Forbidden):
                await service(scene).log_place(caller, "org:a")
        assert await service(scene).log_place(Caller("mia", ROLES[Role.MEMBER], ("*",)), "org:a")

    play(story)


# Shown


class Client:
    """Answers one after the other."""

    def __init__(self, *answers: Any) -> None:
        self._answers, self.asked = list(answers), list[Any]()
        self.blueprints = self

    async def log(self, artifact: str, **asked: Any) -> SliceLog:
        self.asked.append(asked.get("after"))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text, after, *skipped = answer
        return SliceLog(
            node="n1", artifact=artifact, instance=1, text=text, after=after, skipped=skipped[0] if skipped else 0
        )


async def test_who_follows_is_shown_whole_lines_and_told_of_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = Client(
        *(("one\ntw", "1"), ("o\nthr", "2"), ("", "3"), Unavailable("n1 is away"), Unavailable("n1 is away")),
        *(("ee\n", "4"), ("later\n", "5", 77), NotFound("gone"), ("x" * 70_000, "6")),
    )
    source = Source(GREET, 1, "n1")
    shown = [await source.more(client) for _ in range(9)]
    assert shown == ["one\n", "two\n", "thr", "", "", "ee\n", "later\n", "", "x" * 70_000]
    assert client.asked == ["0.0", "1", "2", "3", "3", "3", "4", "5", "5"]
    err = capsys.readouterr().err
    assert err.count("n1 is away") == 1
    assert "77 bytes are left out" in err


async def test_why_there_is_nothing_to_show_is_told_as_the_server_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    gone = NotFound("node n1: not found; list the nodes")
    for answers in ([gone], [gone, ("hello\n", "1"), ("", "0"), Unavailable("n4 is away")]):
        client: Any = Client(*answers)
        await _first(client, [Source(GREET, 1, f"n{number}") for number, _ in enumerate(answers, 1)], 10)
        out, err = capsys.readouterr()
        assert "org:greet:1#1 on n1: node n1: not found; list the nodes\n" in err
        assert "on n1: no output yet" not in err
    assert out == "org:greet:1#1 on n2 | hello\n"
    assert "on n3: no output yet" in err
    assert "on n4: n4 is away" in err
    client = Client(Unavailable("n1 is away"))
    with pytest.raises(Unavailable, match="n1 is away"):
        await _first(client, [Source(GREET, 1, "n1")], 10)


class Fleet:
    """Instances that print what they are told to, and when each was asked."""

    def __init__(self, *numbers: int) -> None:
        self.there, self.printed, self.asked = list(numbers), dict[int, str](), list[tuple[float, int]]()
        self.blueprints = self

    async def slices(self, **_: object) -> AsyncIterator[SliceView]:
        active = SliceState.ACTIVE
        instances = tuple(
            SliceInstanceView(instance=number, state=active, ready=True, since=1, restarts=0, template=1, why="")
            for number in self.there
        )
        yield SliceView(node="n1", artifact=GREET, state=active, instances=instances, methods=(), revision=1)

    async def log(self, artifact: str, *, instance: int, after: str, **_: object) -> SliceLog:
        self.asked.append((asyncio.get_running_loop().time(), instance))
        text = self.printed.get(instance)
        if text is None:
            raise NotFound(f"{artifact}#{instance}: nothing")
        return SliceLog(
            node="n1",
            artifact=artifact,
            instance=instance,
            text=text[int(after.removeprefix("0.")) :],
            after=f"0.{len(text)}",
            skipped=0,
        )


@asynccontextmanager
async def followed(fleet: Any) -> AsyncIterator[None]:
    wanted = LogFilter("org:greet", None, None)
    following = asyncio.create_task(_follow(fleet, wanted, await wanted.found(fleet)))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])


@pytest.mark.parametrize(("many", "busy", "quiet"), [(1, 1.0, 3.0), (20, 5.75, 5.75)])
def test_the_more_are_followed_and_the_less_they_print_the_more_seldom_they_are_asked(
    many: int, busy: float, quiet: float
) -> None:
    async def main() -> None:
        fleet = Fleet(*range(1, many + 1))
        async with followed(fleet):
            for _ in range(120):
                fleet.printed[1] = fleet.printed.get(1, "") + "x\n"
                await asyncio.sleep(0.5)
            assert len(fleet.asked) / many == pytest.approx(60 / busy, abs=1)
            await asyncio.sleep(10)
            fleet.asked.clear()
            await asyncio.sleep(60)
            assert len(fleet.asked) / many == pytest.approx(60 / quiet, abs=1)
            at = asyncio.get_running_loop().time()
            fleet.printed[1] += "x\n"
            await asyncio.sleep(30)
            first, second = [when for when, number in fleet.asked if number == 1 and when > at][:2]
            assert second - first == pytest.approx(busy), "it prints: it is asked as often as before"

    run_virtual(main)


def test_instances_that_went_make_room_for_new_ones_and_one_that_comes_again_is_read_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main() -> None:
        fleet = Fleet(*range(1, 21))
        fleet.printed = {number: f"first of {number}\n" for number in range(1, 50)}
        async with followed(fleet):
            await asyncio.sleep(30)
            fleet.there = list(range(2, 24))  # 1 went, three are new: one of the 22 has no place
            fleet.printed[1] += "last words without an end"
            await asyncio.sleep(60)
            out, err = capsys.readouterr()
            assert "org:greet:1#1 on n1 | last words without an end\n" in out
            assert err.count("22 instances exist, at most 20 are shown at once; select with --instance") == 1
            assert "#21 on n1 | first of 21" in out
            assert "first of 22" not in out
            fleet.there = [1, *range(15, 24)]
            fleet.printed[1] += "\nback\n"
            await asyncio.sleep(60)
            out, err = capsys.readouterr()
            assert "#22 on n1 | first of 22\n" in out
            assert "#23 on n1 | first of 23\n" in out
            assert "#1 on n1 | back\n" in out
            assert "first of 1\n" not in out, "what was shown is not shown again"
            assert "org:greet:1#1 on n1: back" in err
            fleet.asked.clear()
            await asyncio.sleep(30)
            assert {number for _, number in fleet.asked} == set(fleet.there)
            assert capsys.readouterr() == ("", "")

    run_virtual(main)


def test_while_it_cannot_be_told_which_are_there_none_is_let_go(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        fleet = Fleet(1, 2)
        async with followed(fleet):
            fleet.slices = fails  # type: ignore[method-assign]
            await asyncio.sleep(60)
            fleet.printed[2] = "still there\n"
            await asyncio.sleep(10)
        assert capsys.readouterr().out == "org:greet:1#2 on n1 | still there\n"

    async def fails(**_: object) -> AsyncIterator[SliceView]:
        raise Unavailable("server: it is away")
        yield

    run_virtual(main)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_terminal_is_not_told_to_do_anything(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    _show("\x1b]0;owned\x07\x1b[2Jred\tx\r\n\n\u202efine \x00\x9b1m\n", "a#1 on n1")
    out = capsys.readouterr().out
    if is_terminal:
        assert out.splitlines() == [
            r"a#1 on n1 | \x1b]0;owned\x07\x1b[2Jred       x",
            "a#1 on n1 | ",
            r"a#1 on n1 | \u202efine \x00\x9b1m",
        ]
        assert out.replace("\n", "").isprintable()
    else:
        assert "\x1b[2J" in out
