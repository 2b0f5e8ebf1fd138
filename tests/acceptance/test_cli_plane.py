"""Every verb of the control plane's command line, against one running `hostler up`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import termios
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import running
from harness import pace
from up_process import PROGRAM, HostlerProcess, hostler, well

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data folder of a running `up` with two nodes."""
    folder = tmp_path_factory.mktemp("up")
    process = HostlerProcess(
        *("up", "--data", folder / "data", "--listen", "127.0.0.1:0", "--nodes", 2),
        *("--node-ttl", 30, "--fencing-time", 60),
        folder=folder,
    )
    try:
        process.wait_for("end: Ctrl-C")
        yield folder / "data"
    finally:
        process.kill()


@pytest.fixture
def data(up: Path) -> dict[str, str]:
    """The environment in which commands find it, with a project that no other test has."""
    return {"HOSTLER_DATA": str(up), "HOSTLER_PROJECT": uuid.uuid4().hex[:8]}


async def test_a_machine_is_changed_stopped_started_reset_and_deleted(data: dict[str, str]) -> None:
    made = await well("vm", "create", "web", "--memory", "1G", "--expires", "2h", "--wait", **data)
    assert "web: running on local-" in made.out
    assert made.err.startswith("web: "), "the phases are told on the way"
    before = (await well("vm", "show", "web", "-o", "json", **data)).json
    assert before["spec"]["memory_mib"] == 1024
    assert 7000 < before["expires_at"] - before["created_at"] <= 7201
    changed = await well("vm", "update", "web", "--cpus", 2, "--label", "a=b", "--never-expires", **data)
    assert "takes effect at the next boot: cpus" in changed.err
    stale = await hostler("vm", "update", "web", "--cpus", 3, "--if-revision", before["revision"], **data)
    assert stale.code == 4
    assert "web: stopped" in (await well("vm", "stop", "web", "--wait", **data)).out
    assert "web: running" in (await well("vm", "start", "web", "--wait", **data)).out
    await well("vm", "reset", "web", "--wait", **data)
    after = (await well("vm", "show", "web", "-o", "json", **data)).json
    assert (after["spec"]["cpus"], after["labels"], after["expires_at"]) == (2, {"a": "b"}, None)
    assert after["at_next_boot"] == []
    table = (await well("vm", "show", "web", **data)).out
    assert "2 cpus, 1 GiB memory" in table
    assert (await well("vm", "list", "-l", "a=b", "-o", "yaml", **data)).out.startswith("- id: ")
    assert (await well("vm", "list", "-l", "a=c", "-o", "json", **data)).json == []
    assert f"default/{data['HOSTLER_PROJECT']}" in (await well("vm", "list", "--all", **data)).out
    await well("vm", "delete", "web", "--wait", **data)
    assert (await hostler("vm", "show", "web", **data)).code == 3


async def test_snapshots_are_taken_restored_and_deleted(data: dict[str, str]) -> None:
    await well("vm", "create", "web", "--disk", 1, "--wait", **data)
    await well("vm", "snapshot", "create", "web", "clean", "--wait", **data)
    listed = (await well("vm", "snapshot", "list", "web", "-o", "json", **data)).json
    assert listed["clean"]["state"] == "ready"
    await well("vm", "snapshot", "restore", "web", "clean", "--wait", **data)
    assert "clean" in (await well("vm", "snapshot", "list", "web", **data)).out
    await well("vm", "snapshot", "delete", "web", "clean", "--wait", **data)
    assert (await well("vm", "snapshot", "list", "web", "-o", "json", **data)).json == {}
    assert (await hostler("vm", "snapshot", "restore", "web", "clean", **data)).code in (2, 3)


async def test_a_console_between_pipes_types_what_comes_and_prints_what_it_says(data: dict[str, str]) -> None:
    await well("vm", "create", "web", "--wait", **data)
    shown = await well("vm", "console", "web", stdin="hello\nand more\n", **data)
    assert "simulated machine" in shown.out
    assert "\r\nhello\r\n" in shown.out
    assert "\r\nand more\r\n" in shown.out
    assert shown.err == ""
    lines = [f"line {number}" for number in range(5000)]
    much = await well("vm", "console", "web", stdin="\n".join([*lines, ""]), **data)
    assert "\r\nline 4999\r\n" in much.out, "what is said after the end of input is waited for"
    off = await well("vm", "console", "web", stdin="poweroff\n", **data)
    assert "the machine is off" in off.err
    await well("vm", "stop", "web", "--wait", **data)
    stopped = await hostler("vm", "console", "web", **data)
    assert (stopped.code, "start it first" in stopped.err, stopped.out) == (3, True, ""), stopped


async def test_a_console_that_goes_on_talking_ends_with_the_machine(data: dict[str, str]) -> None:
    """Standard input stays open, so only the machine can end it."""
    await well("vm", "create", "web", "--wait", **data)
    process = running.fork_server().start(
        ["vm", "console", "web"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, environ=os.environ | data
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(pace.patience(20)):
            assert b"simulated machine" in await asyncio.to_thread(process.stdout.readline)
            await well("vm", "stop", "web", "--wait", **data)
            assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.kill()
        process.close_pipes()
        process.wait()


@pytest.mark.parametrize("how", ["escape", "signal"])
async def test_a_console_on_a_terminal_takes_every_key_and_gives_the_terminal_back(
    data: dict[str, str], how: str
) -> None:
    await well("vm", "create", "web", "--wait", **data)
    ours, its = os.openpty()
    before = termios.tcgetattr(its)
    process = running.fork_server().start(
        ["vm", "console", "web"], stdin=its, stdout=its, stderr=its, environ=os.environ | data
    )
    os.set_blocking(ours, False)
    seen = bytearray()

    async def says(text: bytes) -> None:
        async with asyncio.timeout(pace.patience(20)):
            while text not in seen:
                with suppress(BlockingIOError):
                    seen.extend(os.read(ours, 65536))
                await asyncio.sleep(0.01)

    try:
        await says(b"Ctrl-] leaves")
        await says(b"simulated machine")
        assert not termios.tcgetattr(its)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)
        os.write(ours, b"a key \x03 that interrupts nothing\r")
        await says(b"\r\na key \x03 that interrupts nothing\r\n")
        if how == "escape":
            os.write(ours, b"\x1d")
        else:
            process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, pace.patience(20)) == 0
        assert termios.tcgetattr(its) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(its)


async def test_a_node_is_drained_shown_and_put_back_on_duty(data: dict[str, str]) -> None:
    await well("vm", "create", "web", "--wait", **data)
    node = (await well("vm", "show", "web", "-o", "json", **data)).json["node"]
    other = {"local-1": "local-2", "local-2": "local-1"}[node]
    drained = await well("node", "drain", node, "--wait", **data)
    assert f"{node}: drained" in drained.out
    await well("vm", "start", "web", "--wait", **data)
    assert (await well("vm", "show", "web", "-o", "json", **data)).json["node"] == other
    assert "decommissioned" in (await well("node", "show", node, **data)).out
    assert "on duty" in (await well("node", "activate", node, **data)).out
    asked = await hostler("node", "confirm-off", node, **data)
    assert (asked.code, "--yes" in asked.err) == (2, True)
    alive = await hostler("node", "confirm-off", node, "--yes", **data)
    assert alive.code == 4, alive
    assert (await hostler("node", "remove", node, "--yes", **data)).code == 4
    assert (await hostler("node", "show", "nowhere", **data)).code == 3


async def test_a_quota_is_set_kept_and_removed(data: dict[str, str]) -> None:
    shown = await well("quota", "set", "--vms", 1, "--memory", "1G", **data)
    assert "1 GiB" in shown.out
    await well("vm", "create", "one", **data)
    over = await hostler("vm", "create", "two", **data)
    assert (over.code, "quota" in over.err.lower()) == (9, True), over
    quota = (await well("quota", "show", "-o", "json", **data)).json
    assert (quota["limits"]["vms"], quota["used_vms"]) == (1, 1)
    await well("quota", "remove", **data)
    await well("vm", "create", "two", **data)
    await well("quota", "set", "--all-projects", "--vms", 2, **data)
    assert "ORG LIMIT" in (await well("quota", "show", **data)).out
    over = await hostler("vm", "create", "three", **data)
    assert (over.code, "org default" in over.err) == (9, True), over
    await well("quota", "remove", "--all-projects", **data)


async def test_a_project_is_created_and_listed(data: dict[str, str]) -> None:
    await well("project", "create", "shop", "--org", "acme", **data)
    again = await hostler("project", "create", "shop", "--org", "acme", **data)
    assert (again.code != 0, "exists already" in again.err) == (True, True), again
    projects = (await well("project", "list", "--org", "acme", "-o", "json", **data)).json
    assert [(one["org"], one["name"], one["created_by"]) for one in projects] == [("acme", "shop", "admin")]
    assert "shop" in (await well("project", "list", **data)).out


async def test_what_cannot_be_placed_says_why_and_waiting_for_it_ends_with_its_own_code(data: dict[str, str]) -> None:
    pending = await hostler("vm", "create", "big", "--cpus", 4000, "--wait", "--timeout", "2s", **data)
    assert pending.code == 11, pending
    assert "hostler vm why big" in pending.err
    why = await well("vm", "why", "big", **data)
    assert "local-1" in why.out
    assert (await well("vm", "why", "big", "-o", "json", **data)).json["node"] is None


async def test_a_request_from_a_file_is_checked_as_strictly_as_one_from_flags(
    data: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "vm.json"
    file.write_text(json.dumps({"name": "a", "spec": {"cpus": 1, "memory_mib": 64}, "labels": {"x": "y"}}))
    made = (await well("vm", "create", "b", "--file", file, "-o", "json", **data)).json
    assert (made["name"], made["labels"]) == ("b", {"x": "y"})
    piped = await well("vm", "create", "-f", "-", "-o", "json", stdin=file.read_text(), **data)
    assert piped.json["name"] == "a"
    file.write_text('{"name": "c", "spec": {"cpus": 1, "memory_mib": 64}, "lables": {}}')
    refused = await hostler("vm", "create", "--file", file, **data)
    assert (refused.code, "lables" in refused.err) == (2, True)
    both = await hostler("vm", "create", "--file", file, "--cpus", 2, **data)
    assert (both.code, "leave out --cpus" in both.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("vm", "create", "x" * 64), 2),
        (("vm", "create", "a/b"), 2),
        (("vm", "create", ""), 2),
        (("vm", "create"), 2),
        (("vm", "create", "a", "--memory", "0"), 2),
        (("vm", "create", "a", "--memory=-5"), 2),
        (("vm", "create", "a", "--memory", "lots"), 2),
        (("vm", "create", "a", "--cpus", "0"), 2),
        (("vm", "create", "a", "--disk=-1"), 2),
        (("vm", "create", "a", "--expires", "soon"), 2),
        (("vm", "create", "a", "--label", "nothing"), 2),
        (("vm", "create", "a", "--apart", "house:a=b"), 2),
        (("vm", "create", "a", "--user-data", "/nowhere"), 2),
        (("vm", "update", "a"), 2),
        (("vm", "show", "nothing"), 3),
        (("vm", "console", "a"), 3),
        (("user", "create", "a", "--password"), 2),
        (("quota", "set"), 2),
        (("vm", "list", "--server", "ftp://x"), 2),
        (("vm", "list", "--server", "http://127.0.0.1:1"), 9),
        (("vm", "list", "--server", "http://127.0.0.1:1", "--token", "x"), 5),
        (("vm", "list", "--server", "http://192.0.2.1:1", "--token", "x"), 2),
        (("vm", "list", "--token-file", "/nowhere"), 2),
        (("vm", "list", "--token", "wrong"), 9),
    ],
)
async def test_what_is_wrong_is_told_in_two_lines(arguments: tuple[str, ...], code: int, data: dict[str, str]) -> None:
    refused = await hostler(*arguments, **data)
    assert refused.code == code, refused
    assert refused.out == ""
    if arguments[:2] == ("vm", "create"):
        assert (await well("vm", "list", "-o", "json", **data)).json == []


async def test_a_list_that_is_watched_shows_each_change(data: dict[str, str], tmp_path: Path) -> None:
    watching = HostlerProcess("vm", "list", "--watch", "-o", "json", folder=tmp_path, environ=data)
    try:
        await well("vm", "create", "web", "--wait", **data)
        await watching.says('"phase":"running"')
        await well("vm", "delete", "web", "--wait", **data)
        await watching.says('"phase":"gone"')
        watching.signal(signal.SIGINT)
        assert await watching.ends() == 130
    finally:
        watching.kill()


async def test_waiting_shows_a_moving_line_on_a_terminal(data: dict[str, str]) -> None:
    command = " ".join([*PROGRAM, "vm", "create", "web", "--wait"])
    process = await asyncio.create_subprocess_exec(
        *("script", "-qec", command, "/dev/null"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=os.environ | data | {"TERM": "xterm"},
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert "web: running" in out.decode()


async def test_a_machine_is_moved_as_it_runs_and_cloned_from_a_snapshot(data: dict[str, str]) -> None:
    await well("vm", "create", "web", "--cpu-share", 200, "--user", "student", "--wait", **data)
    view = (await well("vm", "show", "web", "-o", "json", **data)).json
    assert (view["spec"]["cpu_share"], view["spec"]["user"]) == (200, "student")
    here, there = view["node"], {"local-1": "local-2", "local-2": "local-1"}[view["node"]]
    moved = await well("vm", "migrate", "web", "--to", there, "--wait", **data)
    assert moved.out == f"web: on {there}\n"
    assert "web: moved after" in moved.err
    again = await hostler("vm", "migrate", "web", "--to", there, "--wait", **data)
    assert again.code == 4, again
    assert (await hostler("vm", "migrate", "web", "--to", "nowhere", **data)).code == 3
    assert (await hostler("vm", "clone", "web", "two", **data)).code == 2
    made = await well("vm", "clone", "web", "two", "--now", "--cpus", 2, "--wait", **data)
    assert "snapshot clone-" in made.err
    assert f"two: running on {there}" in made.out
    two = (await well("vm", "show", "two", "-o", "json", **data)).json
    assert (two["spec"]["cpus"], two["spec"]["origin"]["vm"]) == (2, view["id"])
    assert here != two["node"]
    assert (await hostler("vm", "clone", "web", "three", "--snapshot", "none", **data)).code == 3
    await well("vm", "delete", "web", "two", "--yes", "--wait", **data)


async def test_a_machine_gets_the_key_that_we_log_in_with_unless_told_otherwise(
    data: dict[str, str], tmp_path: Path
) -> None:
    environ = data | {"XDG_STATE_HOME": str(tmp_path)}
    other = tmp_path / "other.pub"
    other.write_text("ssh-ed25519 AAAA somebody\n")
    await well("vm", "create", "web", "--off", "--ssh-key", other, **environ)
    own = (tmp_path / "hostler" / "ssh" / "id_ed25519.pub").read_text().strip()
    keys = (await well("vm", "show", "web", "-o", "json", **environ)).json["spec"]["ssh_keys"]
    assert keys == ["ssh-ed25519 AAAA somebody", own]
    await well("vm", "create", "bare", "--off", "--no-ssh-key", **environ)
    assert (await well("vm", "show", "bare", "-o", "json", **environ)).json["spec"]["ssh_keys"] == []
    refused = await hostler("vm", "ssh", "web", "--", "true", **environ)
    assert refused.code == 255
    assert "web" in refused.err


async def test_why_and_the_tree_of_events_lead_from_a_machine_to_the_wish_for_it(data: dict[str, str]) -> None:
    await well("vm", "create", "web", "--wait", **data)
    told = (await well("why", "vm/web", **data)).out.splitlines()
    assert told[0].startswith(f"vm default/{data['HOSTLER_PROJECT']}/web runs on local-")
    assert told[1].startswith("├ placed on local-")
    assert told[-1].startswith("└ requested by admin: vm.create (")
    named = f"vm/default/{data['HOSTLER_PROJECT']}/web"
    tree = (await well("events", "--tree", "--object", named, **data)).out.splitlines()
    assert [line[10:12] for line in tree[:2]] == ["vm", "└ "]
    shown = (await well("why", named, "-o", "json", **data)).json
    assert [step["what"] for step in shown["steps"]] == ["place", "vm.create"]
    assert (await hostler("why", "node/none", **data)).code != 0
    assert (await hostler("events", "--object", named, **data)).code == 2
    await well("vm", "delete", "web", "--wait", **data)


async def test_a_machine_whose_record_is_gone_is_retained_restored_and_deleted_for_good(
    data: dict[str, str], up: Path
) -> None:
    project = f"default/{data['HOSTLER_PROJECT']}"
    await well("vm", "create", "web", "--wait", **data)
    before = (await well("vm", "show", "web", "-o", "json", **data)).json
    await _lose_record(up, project, "web", before["id"])
    (kept,) = await _retained(project, 1, **data)
    assert (kept["vm"], kept["vm_name"], kept["node"]) == (before["id"], "web", before["node"])
    assert "web" in (await well("vm", "retained", "list", **data)).out
    assert kept["node"] in (await well("vm", "retained", "show", kept["name"], **data)).out
    assert f"web on {kept['node']} until" in (await hostler("doctor", **data)).out

    assert "web: running" in (await well("vm", "retained", "restore", kept["name"], "--wait", **data)).out
    after = (await well("vm", "show", "web", "-o", "json", **data)).json
    assert after["node"] == before["node"]
    await _retained(project, 0, **data)

    await _lose_record(up, project, "web", after["id"])
    (kept,) = await _retained(project, 1, **data)
    asked = await hostler("vm", "retained", "delete", kept["name"], **data)
    assert asked.code == 2, "it needs --yes"
    await well("vm", "retained", "delete", kept["name"], "--yes", **data)
    await _retained(project, 0, **data)
    assert (await hostler("vm", "retained", "show", kept["name"], **data)).code == 3


async def _lose_record(up: Path, project: str, name: str, vm: str) -> None:
    """As a restore from a backup that is older than the machine does."""
    for key in (f"/plasmavmc/vms/{project}/{vm}", f"/hostler/v1/names/{project}/{name}"):
        await well("store", "delete", key, HOSTLER_DATA=str(up))


async def _retained(project: str, count: int, **data: str) -> list[dict[str, Any]]:
    """What is retained of the project, once it is so much."""
    async with asyncio.timeout(pace.patience(20.0)):
        while True:
            listed = (await well("vm", "retained", "list", "-o", "json", **data)).json
            found = [each for each in listed if f"{each['org']}/{each['project']}" == project]
            if len(found) == count:
                return found
            await asyncio.sleep(0.1)
