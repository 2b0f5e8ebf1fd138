"""What people type wrong: one clear sentence, what to do next, the right code, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from up_process import Done, HostlerProcess, hostler, well

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running `up`."""
    folder = tmp_path_factory.mktemp("up")
    up = HostlerProcess("up", "--data", folder / "data", "--listen", "127.0.0.1:0", folder=folder)
    try:
        up.wait_for("end: Ctrl-C")
        yield folder / "data"
    finally:
        up.kill()


@pytest.fixture
def data(running: Path) -> dict[str, str]:
    """The environment in which commands find it, with a project that no other test has."""
    return {"HOSTLER_DATA": str(running), "HOSTLER_PROJECT": uuid.uuid4().hex[:8]}


def sentence(done: Done, code: int) -> tuple[str, str]:
    """What it said went wrong, and what to do next: one line each, for people."""
    assert done.code == code, done
    assert done.out == "", done
    lines = done.err.splitlines()
    assert len(lines) == 2, done
    what, advice = lines
    assert what.startswith("hostler: "), done
    assert advice.startswith("  next: "), done
    assert len(advice) > len("  next: "), done
    for inside in ("$.", "Record", "errno", "0x", "unexpected", "; "):
        assert inside not in what, f"people do not know what {inside!r} means: {done}"
    return what.removeprefix("hostler: "), advice.removeprefix("  next: ")


# What a machine can be


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("x" * 64,), "name: must have at most 63 characters"),
        (("a/b",), "name: must be without '/'"),
        (("",), "name: must not be empty"),
        (("a\nb",), "name: must be without '/' and control characters"),
        (("a", "--memory", "0"), "--memory: must be at least 1"),
        (("a", "--memory=-5"), "--memory: must be at least 1"),
        (("a", "--cpus", "0"), "--cpus: must be at least 1"),
        (("a", "--cpus", "5000"), "--cpus: must be at most 4096"),
        (("a", "--disk=-1"), "--disk: must be at least 0"),
        (("a", "--org", "b/c"), "name 'b/c': must not hold a '/'"),
        (("a", "--project", ""), "name: must not be empty"),
    ],
)
async def test_a_machine_that_cannot_be_is_refused_by_the_name_of_the_flag(
    arguments: tuple[str, ...], said: str, data: dict[str, str]
) -> None:
    what, _ = sentence(await hostler("vm", "create", *arguments, **data), 2)
    assert said in what
    assert (await well("vm", "list", "-o", "json", **data)).json == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "a", "spec": {"cpus": 1, "memory_mib": 64, "colour": "red"}}', "unknown field colour"),
        ('{"name": "a", "spec": {"cpus": 1, "memory_mib": 64}, "lables": {}}', "unknown field lables"),
        ('{"name": "a", "spec": {"cpus": "two", "memory_mib": 64}}', "expected int, got str"),
        ('{"name": 7, "spec": {"cpus": 1, "memory_mib": 64}}', "expected str, got int"),
        ('{"name": "a", "spec": {"cpus": 1, "memory_mib": -64}}', "expected int >= 1"),
        ('{"name": "a", "spec": {"cpus": 1}}', "missing required field memory_mib"),
        ('{"name": "a", "spec": {"cpus": 1, "memory_mib": 64}, "power": "maybe"}', "invalid enum value 'maybe'"),
        ('{"name": "a",', "truncated"),
        ("[]", "expected object, got array"),
        ("", "truncated"),
    ],
)
async def test_a_file_that_cannot_be_is_refused_with_its_name_and_the_place_in_it(
    text: str, said: str, data: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "vm.json"
    file.write_text(text)
    refused = await hostler("vm", "create", "--file", file, **data)
    assert (refused.code, refused.out, len(refused.err.splitlines())) == (2, "", 2), refused
    assert refused.err.startswith(f"hostler: {file}: "), refused
    assert said in refused.err
    assert (await well("vm", "list", "-o", "json", **data)).json == []


async def test_what_is_too_large_is_refused_with_the_limit(data: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "script").write_text("a" * 3_000_000)
    what, advice = sentence(await hostler("vm", "create", "a", "--user-data", tmp_path / "script", **data), 2)
    assert "1048576 bytes" in what
    assert advice == "send less"
    assert (await well("vm", "list", "-o", "json", **data)).json == []


async def test_a_refused_change_changes_nothing(data: dict[str, str]) -> None:
    made = (await well("vm", "create", "web", "--off", "--disk", 2, "--wait", "-o", "json", **data)).json
    revision = ("--if-revision", made["revision"] - 1)
    cases = [
        (("update", "web", "--cpus", "0"), 2, "--cpus: must be at least 1"),
        (("update", "web", "--memory", "0"), 2, "--memory: must be at least 1"),
        (("update", "web", "--name", "a/b"), 2, "name: must be without '/'"),
        (("update", "web", "--disk", "1"), 2, "disk_gib 1 is less than its 2"),
        (("update", "web", "--cpus", "2", *revision), 4, "is not the present one"),
        (("create", "web"), 4, "has a machine of that name"),
        (("reset", "web"), 4, "there is nothing to reset"),
        (("snapshot", "create", "web", "a/b"), 2, "name: must be without '/'"),
        (("snapshot", "restore", "web", "none"), 3, "no snapshot 'none'"),
        (("update", "other", "--cpus", "2"), 3, "not found"),
        (("delete", "other"), 3, "not found"),
        (("show", "a/b"), 2, "must not hold a '/'"),
    ]
    done = await asyncio.gather(*(hostler("vm", *arguments, **data) for arguments, _, _ in cases))
    for refused, (arguments, code, said) in zip(done, cases):
        assert said in sentence(refused, code)[0], arguments
    assert (await well("vm", "show", "web", "-o", "json", **data)).json == made
    assert len((await well("vm", "list", "-o", "json", **data)).json) == 1


# Who asks


async def test_a_token_that_expired_counts_no_more(data: dict[str, str]) -> None:
    name = f"u{uuid.uuid4().hex[:8]}"
    await well("user", "create", name, "--member", f"default/{data['HOSTLER_PROJECT']}", **data)
    token = (await well("user", "token", "create", name, "--expires", "2s", **data)).out.strip()
    async with asyncio.timeout(60):
        while (refused := await hostler("vm", "create", "web", HOSTLER_TOKEN=token, **data)).code in (0, 4):
            await asyncio.sleep(0.2)
    what, advice = sentence(refused, 9)
    assert "token" in what
    assert "HOSTLER_TOKEN" in advice or "token" in advice
    assert token not in refused.err


async def test_a_right_that_is_missing_is_named(data: dict[str, str]) -> None:
    name = f"u{uuid.uuid4().hex[:8]}"
    project = f"default/{data['HOSTLER_PROJECT']}"
    await well("user", "create", name, "--role", "viewer", "--member", project, **data)
    token = (await well("user", "token", "create", name, **data)).out.strip()
    what, _ = sentence(await hostler("vm", "create", "web", HOSTLER_TOKEN=token, **data), 9)
    assert "modify_workloads" in what
    hidden = data | {"HOSTLER_PROJECT": "somebody-elses"}
    what, advice = sentence(await hostler("vm", "show", "web", HOSTLER_TOKEN=token, **hidden), 3)
    assert "not found, or this account is not a member of it" in what
    assert "hostler project list" in advice
    assert (await well("vm", "list", "-o", "json", **data)).json == []


# Starting


def entries(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


async def up(*arguments: object) -> Done:
    listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
    done = await hostler("up", *arguments, *listen)
    return Done(done.code, "", done.err)  # what it told before it could not is no answer


async def test_a_foreign_database_is_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "data" / "hostler.db"
    file.parent.mkdir()
    with sqlite3.connect(file) as diary:
        diary.execute("create table diary (day text, entry text)")
        diary.execute("insert into diary values ('monday', 'rain')")
    diary.close()
    before = file.read_bytes()
    what, advice = sentence(await up("--data", file.parent), 2)
    assert "hostler.db: a SQLite database of another program" in what
    assert "choose another path" in advice
    assert file.read_bytes() == before
    assert entries(tmp_path) == {"data", "data/hostler.db", "data/up.lock", "data/log", "data/log/hostler.log"}


async def test_a_store_of_another_kind_is_no_store(tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"\x89PNG\r\n" + bytes(5000))
    before = picture.read_bytes()
    what, _ = sentence(await up("--data", tmp_path / "data", "--store", f"sqlite://{picture}"), 8)
    assert "picture.png" in what
    assert picture.read_bytes() == before
    assert [path for path in entries(tmp_path) if path.startswith("picture")] == ["picture.png"]


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o555)
    folder = (theirs if os.getuid() else Path("/sys")) / "hostler"  # root may write anywhere but there
    what, advice = sentence(await up("--data", folder), 2)
    assert f"data folder {folder}: cannot be written" in what
    assert "--data" in advice
    assert not folder.exists()


async def test_two_at_once_on_one_folder_are_one_that_runs_and_one_that_says_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    both = [
        HostlerProcess("up", "--data", data, "--listen", "127.0.0.1:0", folder=folder)
        for folder in (tmp_path / "a", tmp_path / "b")
        if folder.mkdir() is None
    ]
    try:
        async with asyncio.timeout(60):
            while all(each.running for each in both):
                await asyncio.sleep(0.05)
        [winner] = [each for each in both if each.running]
        [loser] = [each for each in both if not each.running]
        await winner.url()
        what, advice = sentence(Done(loser.code or 0, "", loser.text), 4)
        assert "another hostler up" in what
        assert "stop that one" in advice
        await well("vm", "create", "web", "--wait", HOSTLER_DATA=str(data))
        winner.signal(signal.SIGTERM)
        assert await winner.ends() == 0
    finally:
        for each in both:
            each.kill()


async def test_a_port_in_use_is_told_and_the_one_that_has_it_goes_on(
    running: Path, data: dict[str, str], tmp_path: Path
) -> None:
    address = (running / "server").read_text().strip().partition("//")[2]
    what, advice = sentence(await up("--data", tmp_path / "data", "--listen", address), 5)
    assert address in what
    assert "in use" in what
    assert advice
    assert not {"data/server", "data/admin.token", "data/machines"} & entries(tmp_path)
    await well("vm", "list", **data)


async def test_a_server_that_is_none_of_ours_is_noticed(data: dict[str, str]) -> None:
    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"hello": "world"}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(other, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        asked = {"HOSTLER_SERVER": f"http://127.0.0.1:{port}", "HOSTLER_TOKEN": "t"}
        refused = await hostler("vm", "list", **data | asked)
    assert (refused.code, len(refused.err.splitlines())) == (2, 2), refused
    assert "check the url" in refused.err


async def test_a_server_that_went_away_is_said_to_be(tmp_path: Path) -> None:
    with socket.socket() as gone:  # it does not listen, and nobody else can while it is bound
        gone.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{gone.getsockname()[1]}"
        asked = {"HOSTLER_SERVER": url, "HOSTLER_TOKEN": "t", "HOSTLER_DATA": str(tmp_path)}
        for verb in (("list",), ("create", "web"), ("delete", "web")):
            what, advice = sentence(await hostler("vm", *verb, **asked), 5)
            assert f"server {url}: cannot be reached" in what
            assert "check that it runs" in advice
