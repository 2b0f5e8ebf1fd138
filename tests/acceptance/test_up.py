"""`hostler up` as its users meet it: it starts, serves, refuses what cannot be, ends, and goes on where it was."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import trustme
from harness import pace
from up_process import START, HostlerProcess, hostler, until, well

from hostler.drivers.machines.simulated import read_intervals
from hostler.entry.data_dir import DataFolder
from hostler.entry.sim_service import check_folder
from hostler.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Scene:
    """A data folder, and the processes in it, which are ended when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        self.processes: list[HostlerProcess] = []

    def up(self, *arguments: object, environ: dict[str, str] | None = None) -> HostlerProcess:
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        process = HostlerProcess("up", "--data", self.data, *listen, *arguments, folder=self.folder, environ=environ)
        self.processes.append(process)
        return process

    def start(self, *arguments: object, environ: dict[str, str] | None = None) -> HostlerProcess:
        process = HostlerProcess(*arguments, folder=self.folder, environ=environ)
        self.processes.append(process)
        return process

    async def cli(self, *arguments: object, **options: str) -> dict[str, object]:
        """The answer of a reading verb."""
        found = await well(*arguments, "-o", "json", HOSTLER_DATA=str(self.data), **options)
        answer: dict[str, object] = found.json
        return answer


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    for process in scene.processes:
        process.kill()


# Five minutes from zero


async def test_the_program_of_the_tour_does_what_it_says(scene: Scene) -> None:
    tour = (Path(__file__).parents[2] / "docs" / "tour.md").read_text(encoding="utf-8")
    program = next(code for code in re.findall(r"```python\n(.*?)```", tour, re.DOTALL) if "hostler.Client" in code)
    url = await scene.up().url()
    program = program.replace('Path.home() / ".local/state/hostler"', f"Path({str(scene.data)!r})")
    program = program.replace("http://127.0.0.1:7070", url)
    running = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    said, _ = await running.communicate()
    assert running.returncode == 0
    assert said.split() == [b"db", b"running", b"local-1"]


async def test_from_nothing_to_a_running_machine_in_two_commands(scene: Scene) -> None:
    up = scene.up("--nodes", 3)
    url = await up.url()
    data = {"HOSTLER_DATA": str(scene.data)}
    made = await well("vm", "create", "web", "--cpus", 2, "--label", "app=web", "--wait", **data)
    assert made.out.startswith("web: running on local-")
    [view] = (await well("vm", "list", "-o", "json", **data)).json
    assert (view["name"], view["phase"], view["labels"]) == ("web", "running", {"app": "web"})
    nodes = (await well("node", "list", "-o", "json", **data)).json
    assert [(node["node"], node["lifecycle"], node["rack"]) for node in nodes] == [
        (f"local-{number}", "ON_DUTY", "local") for number in (1, 2, 3)
    ]
    leader = (await well("leader", "-o", "json", **data)).json["leader"]
    assert f"http://{leader['address']}" == url
    assert "web: deleted" in (await well("vm", "delete", "web", "--wait", **data)).out
    assert (await well("vm", "list", "-o", "json", **data)).json == []
    up.signal(signal.SIGTERM)
    assert await up.ends() == 0


async def test_the_first_start_leaves_a_token_that_only_the_owner_can_read(scene: Scene) -> None:
    up = scene.up()
    await up.says("end: Ctrl-C")
    token = (scene.data / "admin.token").read_text().strip()
    assert token not in up.text, "its output may be a journal"
    assert f"login: admin, with the token in {scene.data / 'admin.token'}" in up.text
    url = await up.url()
    assert re.search(rf"^web {re.escape(url)}/ \(sign in: .*hostler web --data {scene.data}\)$", up.text, re.MULTILINE)
    assert len([line for line in up.text.splitlines() if line.startswith("  ") and "hostler vm " in line]) == 3
    assert stat.S_IMODE(scene.data.stat().st_mode) == 0o700
    for file in (path for path in scene.data.rglob("*") if path.is_file()):
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    assert token not in (scene.data / "log" / "hostler.log").read_text()
    up.signal(signal.SIGINT)
    assert await up.ends() == 0
    again = scene.up()
    await again.says("end: Ctrl-C")
    assert token not in again.text
    assert (scene.data / "admin.token").read_text().strip() == token
    await well("vm", "list", HOSTLER_DATA=str(scene.data))


async def test_up_with_a_first_machine_makes_one_and_only_one(scene: Scene) -> None:
    for _ in range(2):
        up = scene.up("--first-vm")
        await up.says("first machine: hello, running on local-1")
        [view] = (await well("vm", "list", "--all", "-o", "json", HOSTLER_DATA=str(scene.data))).json
        assert view["name"] == "hello"
        up.signal(signal.SIGTERM)
        await up.ends()


async def test_up_in_the_background_returns_once_it_is_ready_and_down_ends_it(scene: Scene) -> None:
    data = {"HOSTLER_DATA": str(scene.data)}
    started = await well("up", "--data", scene.data, "--listen", "127.0.0.1:0", "--detach", "--first-vm")
    try:
        assert "ready http://127.0.0.1:" in started.out
        assert "first machine: hello, running" in started.out
        assert "hst_" not in started.out, "it is no terminal"
        assert "hst_" not in (scene.data / "log" / "up.out").read_text()
        await well("vm", "list", **data)
        again = await hostler("up", "--data", scene.data, "--listen", "127.0.0.1:0", "--detach")
        assert (again.code, "runs there" in again.err) == (4, True)
    finally:
        last = await hostler("down", **data)
    assert (last.code, last.out) == (0, "ended; the machines run on\n"), last
    assert (await hostler("down", **data)).code == 3
    failed = await hostler("up", "--data", scene.data, "--listen", "192.0.2.1:1", "--insecure", "--detach")
    assert (failed.code, "name another address" in failed.out + failed.err) == (5, True), failed


# The end, and going on


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_machines_run_through_the_end_of_up_and_the_next_start_goes_on_with_them(
    scene: Scene, number: signal.Signals
) -> None:
    data = {"HOSTLER_DATA": str(scene.data)}
    up = scene.up("--node-ttl", 6, "--fencing-time", 12, "--leadership-ttl", 6)
    await up.url()
    before = (await well("vm", "create", "web", "--wait", "-o", "json", **data)).json
    up.signal(number)
    code = await up.ends(30)
    assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    [(start, end)] = read_intervals(scene.data / "machines" / "local-1")[before["id"]]
    assert end is None, "it was stopped"
    again = scene.up("--node-ttl", 6, "--fencing-time", 12, "--leadership-ttl", 6)
    await again.url()
    after = (await well("vm", "show", "web", "-o", "json", **data)).json
    assert (after["id"], after["phase"], after["node"]) == (before["id"], "running", "local-1")
    await well("vm", "create", "second", "--wait", **data)
    again.signal(signal.SIGTERM)
    assert await again.ends() == 0
    assert list(read_intervals(scene.data / "machines" / "local-1")[before["id"]]) == [(start, None)], (
        "it was started anew"
    )


async def test_after_kill_9_the_next_start_waits_for_nobodys_time_to_run_out(scene: Scene) -> None:
    data = {"HOSTLER_DATA": str(scene.data)}
    times = ("--node-ttl", 100, "--fencing-time", 200, "--leadership-ttl", 100)
    up = scene.up(*times)
    await up.url()
    await well("vm", "create", "web", "--wait", **data)
    up.kill()
    at = time.monotonic()
    again = scene.up(*times)
    await again.url()
    # It waits neither for the ttl of its dead predecessor, nor for its node's.
    pace.check(time.monotonic() - at, 3.0, since=at, what="its start")
    scene_now = (await well("leader", "-o", "json", **data)).json
    assert (scene_now["leader"]["fence"], scene_now["standing_by"]) == (2, [])
    await well("vm", "delete", "web", "--wait", **data)


async def test_a_second_up_on_one_store_serves_too_and_says_what_it_waits_for(scene: Scene) -> None:
    up = scene.up()
    await up.url()
    other = scene.start(
        *("up", "--data", scene.folder / "other", "--listen", "127.0.0.1:0"),
        *("--store", f"sqlite://{scene.data}/hostler.db"),
    )
    await other.says("not ready yet: node local-1 is not on duty")
    other.signal(signal.SIGTERM)
    assert await other.ends() == 0
    await well("vm", "create", "web", "--wait", HOSTLER_DATA=str(scene.data))


async def test_up_that_slept_past_its_leadership_stands_anew_and_goes_on(scene: Scene) -> None:
    up = scene.up("--leadership-ttl", 2, "--node-ttl", 2, "--fencing-time", 4)
    await up.url()
    data = {"HOSTLER_DATA": str(scene.data)}
    fence = (await well("leader", "-o", "json", **data)).json["leader"]["fence"]
    up.suspend()
    await asyncio.sleep(6)  # longer than the leadership and the killer's grace: that is what is tested
    up.resume()
    await up.says("standing for leadership again")
    made = await well("vm", "create", "web", "--wait", **data)
    assert "running" in made.out
    assert (await well("leader", "-o", "json", **data)).json["leader"]["fence"] > fence
    up.signal(signal.SIGTERM)
    assert await up.ends() == 0


# What is refused


async def test_a_second_up_on_the_same_folder_refuses_and_names_the_first(scene: Scene) -> None:
    up = scene.up()
    await up.url()
    refused = await hostler("up", "--data", scene.data, "--listen", "127.0.0.1:0")
    assert refused.code == 4
    assert f"another hostler up (process {up.pid}) runs there" in refused.err
    assert len(refused.err.splitlines()) == 2
    await well("vm", "list", HOSTLER_DATA=str(scene.data))


async def test_a_port_in_use_is_told_and_nothing_is_left_behind(scene: Scene) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = await hostler("up", "--data", scene.data, "--listen", f"127.0.0.1:{port}")
    assert refused.code == 5
    assert "the port is in use" in refused.err
    assert len(refused.err.splitlines()) == 2
    assert not (scene.data / "server").exists()
    up = scene.up("--listen", f"127.0.0.1:{port}")
    await up.url()


def _foreign(scene: Scene) -> list[object]:
    scene.data.mkdir()
    (scene.data / "hostler.db").write_text("this is somebody's diary, and no database at all\n" * 100)
    return []


def _no_folder(scene: Scene) -> list[object]:
    scene.data.write_text("a file in the place of the folder")
    return []


@pytest.mark.parametrize(
    ("prepare", "code", "said"),
    [
        (_foreign, 8, "hostler.db"),
        (_no_folder, 2, "give --data a writable folder"),
        (lambda _: ["--listen", "0.0.0.0:0"], 2, "could be read on the network"),
        (lambda _: ["--listen", "somewhere"], 2, "must be HOST:PORT"),
        (lambda _: ["--listen", "192.0.2.1:0", "--insecure"], 5, "name another address"),
        (lambda _: ["--machines", "hetzner"], 2, "hcloud_token: machines at Hetzner Cloud need one"),
        (lambda _: ["--nodes", "0"], 2, "whole number"),
        (lambda _: ["--store", "redis://127.0.0.1:1"], 2, "known are memory://"),
        (lambda _: ["--store", "etcd://127.0.0.1:1"], 5, "start it"),
        (lambda _: ["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.key"], 2, "cannot be used"),
        (lambda _: ["--redis", "http://127.0.0.1:1"], 2, "must be redis://"),
        (lambda _: ["--redis", "redis://127.0.0.1:port"], 2, "Redis URL of the labs"),
        (lambda _: ["--labs", "/nowhere/labs.toml"], 3, "no such file"),
    ],
)
async def test_what_cannot_be_is_refused_in_two_lines(
    scene: Scene, prepare: Callable[[Scene], list[object]], code: int, said: str
) -> None:
    arguments = prepare(scene)
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    refused = await hostler("up", "--data", scene.data, *listen, *arguments)
    assert (refused.code, said in refused.err) == (code, True), refused
    assert "ready" not in refused.out
    assert not (scene.data / "admin.token").exists()


# TLS


async def test_with_a_certificate_it_serves_https_and_commands_check_it(scene: Scene) -> None:
    authority, folder = trustme.CA(), scene.folder
    server = authority.issue_cert("127.0.0.1")
    server.private_key_pem.write_to_path(folder / "key.pem")
    server.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    up = scene.up("--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem")
    assert (await up.url()).startswith("https://127.0.0.1:")
    data = {"HOSTLER_DATA": str(scene.data)}
    untrusted = await hostler("vm", "list", **data)
    assert untrusted.code == 2
    assert "certificate is not trusted" in untrusted.err
    await well("vm", "list", "--ca", folder / "ca.pem", **data)
    await well("vm", "list", HOSTLER_CA=str(folder / "ca.pem"), **data)


# Looking at it


async def test_the_doctor_finds_nothing_wrong_with_a_running_up_and_says_what_is_missing_without(scene: Scene) -> None:
    up = scene.up()
    await up.url()
    well_found = await well("doctor", "--data", scene.data, "-o", "json")
    assert {finding["level"] for finding in well_found.json} == {"ok"}, well_found
    up.signal(signal.SIGTERM)
    await up.ends()
    ended = await well("doctor", "--data", scene.data)
    assert "start it: hostler up" in ended.out
    key = "/plasmavmc/vms/default/default/odd"
    await well("store", "put", key, "nonsense", "--store", f"sqlite://{scene.data}/hostler.db")
    lost = "/hostler/v1/names/default/default/web"
    await well("store", "put", lost, '"0b9f"', "--store", f"sqlite://{scene.data}/hostler.db")
    (scene.data / "admin.token").chmod(0o644)
    sick = await hostler("doctor", "--data", scene.data)
    assert sick.code == 1
    assert f"{key} cannot be read" in sick.out
    assert "other users can read it" in sick.out
    assert f"{lost}: reserved for a machine that does not exist" in sick.out
    assert f"hostler store delete {lost}" in sick.out


async def test_the_folder_of_a_simulation_is_one_no_more_once_up_has_used_it(scene: Scene) -> None:
    folder = DataFolder(scene.data)
    scene.data.mkdir(mode=0o700)
    folder.write(folder.simulation_file, "hostler sim serve: not kept after it ends")
    check_folder(folder)
    up = scene.up()
    await up.url()
    assert not folder.simulation_file.exists(), "doctor would not look at its clock"
    up.signal(signal.SIGTERM)
    assert await up.ends() == 0
    with pytest.raises(Refused, match="belongs to hostler up"):  # its token would be another's
        check_folder(folder)


async def test_events_are_shown_as_they_happen_and_again_from_a_number_on(scene: Scene) -> None:
    up = scene.up()
    await up.url()
    data = {"HOSTLER_DATA": str(scene.data)}
    watching = scene.start("events", "--kind", "vm", "-o", "json", "--count", 2, environ=data)
    await _streams(await up.url(), (scene.data / "admin.token").read_text().strip())
    await well("vm", "create", "one", "--wait", **data)
    await well("vm", "delete", "one", "--wait", **data)
    assert await watching.ends() == 0
    [first, *_] = [line for line in watching.text.splitlines() if line.startswith("{")]
    assert '"kind":"vm"' in first
    assert '"type":"put"' in first


async def _streams(url: str, token: str) -> None:
    """Until somebody listens."""
    headers, patience = {"Authorization": f"Bearer {token}"}, pace.patience(START)
    async with aiohttp.ClientSession(url, headers=headers) as http, asyncio.timeout(patience):
        while True:
            async with http.get("/metrics") as answer:
                if "hostler_event_streams 1" in await answer.text():
                    return
            await asyncio.sleep(0.05)


async def test_events_since_one_of_a_transaction_begin_with_the_next_of_it(scene: Scene) -> None:
    up = scene.up()
    await up.url()
    data = {"HOSTLER_DATA": str(scene.data)}
    await well("vm", "create", "one", "--wait", **data)
    await well("vm", "delete", "one", "--wait", **data)

    async def shown(since: object, count: int, *kinds: str) -> list[Any]:
        kinds = tuple(word for kind in kinds for word in ("--kind", kind))
        told = await well("events", "--since", since, "--count", count, *kinds, "-o", "json", **data)
        return [json.loads(line) for line in told.out.splitlines()]

    *_, gone = await shown("1.0", 3, "vm")
    assert gone["type"] == "delete"
    # Its handle is deleted in the same transaction.
    both = await shown(gone["revision"] - 1, 2, "vm", "handle")
    assert {event["revision"] for event in both} == {gone["revision"]}
    assert await shown(both[0]["id"], 1, "vm", "handle") == both[1:]


# Accounts


async def test_an_account_with_a_token_of_its_own_does_what_its_role_may_and_no_more(scene: Scene) -> None:
    up = scene.up()
    url = await up.url()
    data = {"HOSTLER_DATA": str(scene.data)}
    await well("user", "create", "Ada", "--member", "acme/web", "--password-stdin", stdin="correct horse\n", **data)
    token = (await well("user", "token", "create", "ada", "--expires", "1h", **data)).out.strip()
    file = scene.folder / "ada.token"
    file.write_text(token + "\n")
    ada = {"HOSTLER_SERVER": url, "HOSTLER_TOKEN_FILE": str(file), "HOSTLER_ORG": "acme", "HOSTLER_PROJECT": "web"}
    ada["HOSTLER_DATA"] = str(scene.folder / "elsewhere")
    assert "running" in (await well("vm", "create", "www", "--wait", **ada)).out
    assert (await well("user", "show", "-o", "json", **ada)).json["name"] == "Ada"
    assert (await hostler("vm", "list", "--project", "other", **ada)).code == 3
    refused = await hostler("user", "create", "eve", **ada)
    assert (refused.code, "manage_accounts" in refused.err) == (9, True)
    [listed] = (await well("user", "token", "list", "ada", "-o", "json", **data)).json
    await well("user", "token", "revoke", "ada", listed["id"], **data)
    over = await hostler("vm", "list", **ada)
    assert (over.code, "token" in over.err) == (9, True)


async def test_whoever_can_reach_the_store_gets_back_in_and_older_tokens_end(scene: Scene) -> None:
    up = scene.up()
    await up.url()
    data = {"HOSTLER_DATA": str(scene.data)}
    old = (scene.data / "admin.token").read_text().strip()
    fresh = (await well("user", "recover", **data)).out.strip()
    assert fresh not in ("", old)
    assert (scene.data / "admin.token").read_text().strip() == fresh

    async def outcome(token: str) -> int:
        return (await hostler("vm", "list", HOSTLER_TOKEN=token, **data)).code

    end = time.monotonic() + pace.patience(START)
    while (await outcome(fresh), await outcome(old)) != (0, 9):
        assert time.monotonic() < end, "the new token counts and the old one does not"
    assert stat.S_IMODE((scene.data / "admin.token").stat().st_mode) == 0o600


@pytest.fixture(autouse=True)
def nothing_of_ours_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOSTLER_DATA", "HOSTLER_SERVER", "HOSTLER_TOKEN", "HOSTLER_STORE"):
        monkeypatch.delenv(name, raising=False)


async def test_the_end_is_announced_and_commands_say_that_nothing_runs(scene: Scene) -> None:
    up = scene.up()
    await up.url()
    await until((scene.data / "server").exists, START, lambda: "the address is announced")
    up.signal(signal.SIGTERM)
    await up.ends()
    lost = await hostler("vm", "list", HOSTLER_DATA=str(scene.data))
    assert (lost.code, "start it with hostler up" in lost.err) == (3, True), lost


@pytest.mark.parametrize("command", [("up",), ("replica",), ("agent", "--node", "r-1")], ids=lambda command: command[0])
async def test_who_is_asked_to_end_while_the_store_is_out_of_reach_ends(scene: Scene, command: tuple[str, ...]) -> None:
    listen = () if "agent" in command else ("--listen", "127.0.0.1:0")
    store = "etcd://127.0.0.1:1?timeout=100"  # which it must not wait for
    process = scene.start(*command, "--store", store, "--data", scene.data, *listen)
    status = Path(f"/proc/{process.pid}/status")

    def heeds() -> bool:
        found = [line for line in status.read_text().splitlines() if line.startswith("SigCgt:")]
        return bool(int(found[0].split()[1], 16) & 1 << signal.SIGTERM - 1)

    await until(heeds, START, process.tail)
    process.signal(signal.SIGTERM)
    assert await process.ends() == 0, process.tail()
    assert "cannot be reached" not in process.text
