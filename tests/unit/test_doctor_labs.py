"""What `hostler doctor` says of the lab catalogue, and of the Redis that labs are asked for through."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hostler.drivers.inbox.memory import MemoryInbox, MemoryRedis
from hostler.entry.data_dir import DataFolder
from hostler.entry.doctor import records as doctor_labs
from hostler.entry.doctor.records import labs
from hostler.errors import Forbidden, Invalid, Unavailable
from hostler.ports.machine_driver import Finding, Level
from hostler.settings import load

URL = "redis://:s3cret@h:1"


def found(tmp_path: Path, **given: Any) -> list[Finding]:
    return asyncio.run(labs(load({"data": tmp_path, **given}, environ={}, cwd=tmp_path)))


def test_where_nothing_is_set_nothing_is_said(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "level", "what"),
    [
        ("[labs.1]\n[labs.2]", Level.OK, "2 labs"),
        ("at_once = 3", Level.OK, "every id is a lab"),
        ("at_once = 0", Level.FAIL, "at_once"),
        ("[defualt]", Level.FAIL, "unknown name"),
        (None, Level.FAIL, "no such file"),
    ],
)
def test_what_is_wrong_in_the_catalogue_is_said(tmp_path: Path, text: str | None, level: Level, what: str) -> None:
    path = tmp_path / "labs.toml"
    if text is not None:
        path.write_text(text)
    (finding,) = found(tmp_path, labs=path)
    assert (finding.of, finding.level) == ("labs", level)
    assert what in finding.what
    assert bool(finding.next) == (level is not Level.OK)


@pytest.mark.parametrize(
    ("error", "level", "what"),
    [
        (None, Level.OK, "answers; 1 worker of labs"),
        (Unavailable("redis h:1: workers: cannot connect (connection refused); try later"), Level.FAIL, "refused"),
        (Forbidden("redis h:1: workers: wrong user or password; correct them"), Level.FAIL, "wrong user or password"),
        (Invalid("redis URL: 'x' is no host:port"), Level.FAIL, "is no host:port"),
        (TimeoutError(), Level.FAIL, "no answer within"),
    ],
)
def test_whether_redis_answers_is_said_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None, level: Level, what: str
) -> None:
    async def met(when: str, verb: str) -> None:
        if error is not None:
            raise error

    door = MemoryRedis()
    door.workers.add("w1")
    monkeypatch.setattr(doctor_labs, "open_inbox", lambda _: MemoryInbox(door, faults=met))
    (finding,) = found(tmp_path, redis=URL)
    assert (finding.of, finding.level) == ("redis", level)
    assert what in finding.what
    assert "s3cret" not in finding.what + finding.next


def test_the_redis_of_the_control_plane_that_runs_here_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def opened(url: str) -> MemoryInbox:
        asked.append(url)
        return MemoryInbox(MemoryRedis())

    monkeypatch.setattr(doctor_labs, "open_inbox", opened)
    folder = DataFolder(tmp_path)
    folder.keep_redis(URL)  # as `hostler up --redis` does
    (finding,) = found(tmp_path)
    assert (finding.of, asked) == ("redis", [URL])
    assert folder.redis_file.stat().st_mode & 0o077 == 0, "its password is in it"
    folder.keep_redis(None)
    assert found(tmp_path) == []


def test_a_redis_at_which_nobody_works_is_worth_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_labs, "open_inbox", lambda _: MemoryInbox(MemoryRedis()))
    (finding,) = found(tmp_path, redis=URL)
    assert finding.level is Level.WARN
