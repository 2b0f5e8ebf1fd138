"""`hostler lab`: how labs are told of, what is typed, and which key opens one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest

from hostler.drivers.redis_client import RedisAddress, RedisLink
from hostler.engine.control_plane import LabCaches
from hostler.entry.cli import main, options
from hostler.entry.cli.failure import NotYet
from hostler.entry.cli.lab import change, read
from hostler.entry.cli.lab.change import Minutes
from hostler.entry.cli.show import natural
from hostler.entry.control_plane import config_of
from hostler.entry.labs import own_catalogue
from hostler.errors import Invalid, NotFound, Unavailable
from hostler.keys.entry import Entry
from hostler.keys.lab import LAB_CATALOGUE
from hostler.keys.namespace import Namespace, NamespacedStore, namespace_of
from hostler.model.lab import LabCatalogue, LabEvent, LabNews, LabPhase, LabStatus, LabTemplate
from hostler.model.lab_api import LabNewsPage, LabOffer, LabView
from hostler.settings import load

VIEW = LabView(
    user="ada",
    lab_id=5,
    title="Files",
    phase=LabPhase.RUNNING,
    status=LabStatus.RUNNING,
    available=True,
    ssh_user="student",
    address="2001:db8::1",
    port=22,
    cloud_status="running",
    server_id="qemu-1",
    vm="vm1",
    position=None,
    requested_at=0.0,
    expires_at=None,
    grace=60.0,
    again=None,
    detail="",
    generation=1,
    revision=7,
)


def seen(**changes: Any) -> LabView:
    return msgspec.structs.replace(VIEW, **changes)


def test_users_are_listed_whatever_the_case_of_letters_and_numbers_by_their_value() -> None:
    names = ["Lea Marie", "ada", "u1", "u10", "u2", "7", "10"]
    assert sorted(names, key=natural) == ["7", "10", "ada", "Lea Marie", "u1", "u2", "u10"]


async def test_a_lab_that_ended_while_it_was_waited_for_says_what_to_do_and_where_to_look() -> None:
    async def wait(*_: object, **__: object) -> None:
        raise NotFound("lab of w1: it failed; start it again")

    client: Any = SimpleNamespace(labs=SimpleNamespace(wait=wait))
    with pytest.raises(NotYet, match="start it again, or see what happened to it: hostler lab events w1"):
        await read.until(client, "w1", gone=False, lab_id=None, within=1.0)


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (VIEW, "lab 5 running, ssh student@2001:db8::1"),
        (seen(port=2222, address="127.0.0.1"), "lab 5 running, ssh -p 2222 student@127.0.0.1"),
        (seen(address=""), "lab 5 running, available"),
        (seen(available=False, detail="booting"), "lab 5 running (booting)"),
        (
            seen(available=False, phase=LabPhase.WAITING, position=3, detail="30 of 30 run"),
            "lab 5 waiting, position 3 (30 of 30 run)",
        ),
        (seen(available=False, phase=LabPhase.STOPPING, again=6), "lab 5 stopping, lab 6 follows"),
    ],
)
def test_a_lab_is_told_of_in_a_line(view: LabView, text: str) -> None:
    assert read.described(view) == text


def test_how_long_it_still_lives() -> None:
    assert not read.left(VIEW)
    assert read.left(seen(expires_at=time.time() + 90.5)) == "1 min 30 s"
    assert read.left(seen(expires_at=time.time() - 1)) == "expired"


def test_news_on_a_line() -> None:
    news = LabNews(number=1, at=0.0, event=LabEvent.REFUSED, lab_id=9, reason="there is no lab 9")
    assert read.news_line(news).endswith("  refused lab 9: there is no lab 9")
    assert read.news_line(LabNews(number=2, at=0.0, event=LabEvent.IGNORED)).endswith("  ignored")


def test_what_is_shown_moves_no_cursor() -> None:
    hostile = seen(user="a\x1b[2J", detail="\x1b]0;x", title="\x07", server_id="\x9b1m")
    for line in (*read._row(hostile), *(text for _, text in read._rows(hostile))):
        assert line.isprintable(), line
    template = LabTemplate(title="\x1b[2J", image="\x07")
    assert all(
        cell.isprintable()
        for cell in read._offer(LabOffer(lab_id=None, template=template, running=1, waiting=0, warm=0))
    )


def test_the_catalogue_tells_limits_beside_what_there_is() -> None:
    offer = LabOffer(lab_id=5, template=LabTemplate(at_once=20, warm=2, cpus=2), running=3, waiting=1, warm=1)
    cells = read._offer(offer)
    assert (cells[0], cells[3], cells[5], cells[6], cells[7]) == ("5", "2 cpus, 256 MiB", "3/20", "1", "1/2")


@pytest.mark.parametrize(("text", "minutes"), [("30", 30), ("1.5", 1.5), ("45m", 45), ("2h", 120), ("90s", 1.5)])
def test_a_bare_number_is_minutes(text: str, minutes: float) -> None:
    assert Minutes().convert(text, None, None) == pytest.approx(minutes)


@pytest.mark.parametrize("text", ["0", "-5", "soon", "8d", "", "1e3"])
def test_what_is_no_extension_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Minutes().convert(text, None, None)


@pytest.mark.parametrize(
    "arguments",
    [
        ["lab", "start", "ada", "0"],
        ["lab", "start", "ada", "five"],
        ["lab", "start", "ada"],
        ["lab", "extend", "ada", "never"],
        ["lab", "stop", "ada", "--lab", "-1"],
        ["lab", "begin", "ada"],
        ["lab", "list", "--watch", "--limit", "3"],
        ["labs", "worker", "--redis", "http://x"],
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (change, read, options):
        monkeypatch.setattr(module, "chosen_server", lambda: pytest.fail("somebody was asked"))
    assert main(arguments) == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("verb", ["get", "news"])
def test_an_outage_does_not_end_a_watch(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [Unavailable("no answer")]
    news = LabNews(number=1, at=0.0, event=LabEvent.AVAILABLE, lab_id=5)

    class Labs:
        async def get(self, user: str) -> LabView:
            if verb == "get" and faults:
                raise faults.pop()
            return seen(user=user)

        async def news(self, _: str) -> LabNewsPage:
            if verb == "news" and faults:
                raise faults.pop()
            return LabNewsPage(items=(news,))

    @asynccontextmanager
    async def reached(_: object) -> AsyncIterator[object]:
        yield type("Client", (), {"labs": Labs()})()

    monkeypatch.setattr(read, "LOOK_EVERY", 0.001)
    monkeypatch.setattr(options, "open_client", reached)
    monkeypatch.setattr(options, "chosen_server", lambda: None)
    assert main(["lab", "watch", "ada"]) == 0
    told = capsys.readouterr()
    assert "no answer; retrying" in told.err
    assert told.out.count("available lab 5") == 1


def test_config_shows_redis_without_its_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("redis://me:s3cret@h:1/0", "redis://h:1/0?password=s3cret", "rediss://:s3cret@h"):
        monkeypatch.setenv("HOSTLER_REDIS", url)
        for output in ("table", "json", "yaml"):
            assert main(["config", "show", "-o", output]) == 0
            shown = capsys.readouterr().out
            assert "s3cret" not in shown
            assert "://***@h" in shown or "h:1/0?password=***" in shown
            assert "HOSTLER_REDIS" in shown
    monkeypatch.delenv("HOSTLER_REDIS")
    monkeypatch.setenv("REDIS_CONNECTION_STRING", "h:1")
    monkeypatch.setenv("REDIS_PASSWORD", "s3cret")
    for output in ("table", "json", "yaml"):
        assert main(["config", "show", "-o", output]) == 0
        shown = capsys.readouterr().out
        assert "s3cret" not in shown
        assert "redis://***@h:1" in shown


def test_what_goes_on_in_the_background_has_no_secret_among_its_arguments(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []

    def detached(arguments: list[str], _: Path, __: object, environ: dict[str, str]) -> int:
        started.extend((arguments, environ))
        return 0

    monkeypatch.setattr("hostler.entry.cli.up.run_detached", detached)
    url = "redis://:s3cret@h:1"
    assert main(["up", "--detach", "--data", str(tmp_path), "--redis", url, "--nodes", "2"]) == 0
    arguments, environ = started
    assert not any("s3cret" in word for word in arguments)
    assert {"--nodes=2", f"--data={tmp_path}", "--background"} <= set(arguments)
    assert environ == {"HOSTLER_REDIS": url}


# Which catalogue counts


def settled(toml: str = "", **environ: str) -> Any:
    return load({}, {"HOME": "/home/ada", **environ}, toml=toml)


class Known:
    """A mirror of catalogues."""

    def __init__(self) -> None:
        self.entry: Entry[LabCatalogue] | None = None

    def get(self, *, name: str) -> Entry[LabCatalogue] | None:
        assert name == "default"
        return self.entry


def test_ones_own_catalogue_counts_then_the_leaders_then_none(tmp_path: Path) -> None:
    known: Any = Known()
    leaders = Entry(LabCatalogue(at_once=3), {"name": "default"}, LAB_CATALOGUE.fill(name="default"), 1, 1, 1)
    (tmp_path / "labs.toml").write_text("at_once = 7")
    said = {"DEFAULT_TTL_MINUTES": "45", "SSH_USERNAME": "pupil"}
    pupils = LabTemplate(life=2700.0, user="pupil")
    for settings, own, first, second in (
        (settled(), None, LabCatalogue(), leaders.value),
        (settled(**said), LabCatalogue(default=pupils), LabCatalogue(default=pupils), leaders.value),
        (settled(f"labs = '{tmp_path}/labs.toml'", **said), *[LabCatalogue(default=pupils, at_once=7)] * 3),
    ):
        assert own_catalogue(settings) == own
        known.entry = None
        caches, config = LabCaches(labs=known, catalogues=known), config_of(settings)
        assert caches.catalogue(config) == first
        known.entry = leaders
        assert caches.catalogue(config) == second


def test_a_catalogue_that_is_not_there_is_told() -> None:
    with pytest.raises(NotFound, match="labs.toml"):
        own_catalogue(settled("labs = '/nowhere/labs.toml'"))


def test_names_in_redis_follow_the_namespace_of_the_store() -> None:
    store: Any = object()
    assert not namespace_of(store).redis_prefix
    assert namespace_of(NamespacedStore(store, Namespace("Standard"))).redis_prefix == "Test:Standard:"
    with pytest.raises(Invalid):
        Namespace("a b")


def test_a_worker_on_a_store_that_nobody_made_takes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HOSTLER_STORE", raising=False)
    assert main(["labs", "worker", "--redis", "redis://127.0.0.1:1", "--data", str(tmp_path / "empty")]) == 2
    assert "--store" in capsys.readouterr().err
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("Error 111 connecting to 127.0.0.1:6379. Connect call failed ('127.0.0.1', 6379).", "connection refused"),
        ("Error -2 connecting to nowhere:6379. Name or service not known.", "name or service not known"),
        ("something else", "something else"),
    ],
)
def test_why_redis_is_out_of_reach_is_told_in_a_few_words(error: str, told: str) -> None:
    trouble = RedisLink(RedisAddress("h")).trouble("redis h:6379", ConnectionError(error))
    assert str(trouble) == f"redis h:6379: cannot connect ({told}); nothing was written, try later"
