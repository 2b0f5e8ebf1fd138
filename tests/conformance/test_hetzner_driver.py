"""Machines at Hetzner Cloud: what is made there, what is asked for, and what is told when it goes wrong."""

from __future__ import annotations

import asyncio
import email
import json
import logging
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import asyncssh
import msgspec
import pytest
from harness.pace import patience
from hetzner.opened import PACE, SPEC, hetzner, options
from hetzner.standin import TOKEN, StandIn

from hostler.drivers.machines.hetzner import HetznerMachines
from hostler.drivers.machines.hetzner.api_types import translate_error
from hostler.errors import (
    Damaged,
    Forbidden,
    HostlerError,
    NotFound,
    Refused,
    TooManyTries,
    Unavailable,
    Uncertain,
)
from hostler.kit.clock import SystemClock
from hostler.model.vm import MachineState, Origin, Step
from hostler.ports.machines import ChannelKind, Label, MachinePlan, Machines, fencing_of, migration_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

replace = msgspec.structs.replace
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0000000000000000000000000000000000000000000 ada"


def plan_of(vm: str = "vm-1", **changes: Any) -> MachinePlan:
    return MachinePlan(label=Label("labs", "ada", vm, "c", "n"), spec=replace(SPEC, **changes), name="lab-5")


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with StandIn() as found:
        yield found


def told(standin: StandIn, vm: str = "vm-1") -> dict[str, Any]:
    """Our part of a server's user-data."""
    text = standin.cloud.named(f"hostler-{vm}").user_data
    if not text.startswith("#cloud-config"):
        part = next(part for part in email.message_from_string(text).walk() if not part.is_multipart())
        text = part.get_payload(decode=True).decode()
    return json.loads(text.removeprefix("#cloud-config\n"))


# What is made


async def test_a_server_is_made_as_planned(standin: StandIn, tmp_path: Path) -> None:
    chosen = {"firewall": "labs", "ssh_keys": ("teacher",), "locations": ("nbg1",), "server_types": ("cx23",)}
    async with hetzner(tmp_path, standin, **chosen) as machines:
        plan = replace(plan_of(ssh_keys=(KEY,), user="ada"), tags={"lab": "5", "expires": "2026-11-15T22:00:00Z"})
        made = await machines.create(plan)
        server = standin.cloud.named("hostler-vm-1")
        assert (server.type, server.location, server.firewalls, server.ssh_keys) == ("cx23", "nbg1", (7,), ("teacher",))
        assert (server.status, server.ipv4) == ("off", None)
        assert made.id == f"hcloud-{server.id}"
        assert made.address == server.ipv6.replace("/64", "1")
        assert made.cloud_status == "off"
        labels = server.labels
        assert labels["managed-by"] == "hostler"
        assert (labels["hostler/org"], labels["hostler/project"], labels["hostler/vm"]) == ("labs", "ada", "vm-1")
        assert (labels["hostler.tag/lab"], labels["hostler.tag/expires"]) == ("5", "2026-11-15T22_3a00_3a00Z")
        ours = told(standin)
        assert ours["hostname"] == "lab-5"
        assert [(user["name"], user["ssh_authorized_keys"]) for user in ours["users"]] == [("ada", [KEY])]
        assert made.access is not None
        assert made.access.host_keys == (" ".join(ours["ssh_keys"]["ed25519_public"].split()[:2]),)
        assert (made.access.user, made.access.port) == ("ada", 22)


async def test_an_ipv4_address_is_had_where_it_is_asked_for(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin, ipv4=True) as machines:
        await machines.create(plan_of())
        assert standin.cloud.named("hostler-vm-1").ipv4


@pytest.mark.parametrize(("own", "said"), [("", "echo file"), ("#!/bin/sh\necho own", "echo own")])
async def test_user_data_is_added_to_ours_and_the_files_where_there_is_none(
    own: str, said: str, standin: StandIn, tmp_path: Path
) -> None:
    async with hetzner(tmp_path, standin, cloud_init="#!/bin/sh\necho file") as machines:
        await machines.create(plan_of(user_data=own))
        parts = list(email.message_from_string(standin.cloud.named("hostler-vm-1").user_data).walk())
        assert said in parts[-1].get_payload(decode=True).decode()  # type: ignore[union-attr]
        assert told(standin)["users"][0]["name"] == "student"


async def test_user_data_that_is_too_large_is_refused_with_its_size(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        with pytest.raises(Refused, match="accepts 32768"):
            await machines.create(plan_of(user_data="#!/bin/sh\n" + "x" * 40_000))
        assert standin.cloud.made == 0


async def test_the_smallest_type_that_will_do_is_taken_and_none_of_another_kind(
    standin: StandIn, tmp_path: Path
) -> None:
    async with hetzner(tmp_path, standin) as machines:
        for vm, spec, kind in (("a", SPEC, "cpx11"), ("b", replace(SPEC, cpus=3), "cx33")):
            await machines.create(MachinePlan(label=Label("o", "p", vm), spec=spec))
            assert standin.cloud.named(f"hostler-{vm}").type == kind
        with pytest.raises(Refused, match="no server type is large enough; available: cpx11"):
            await machines.create(plan_of(cpus=64))


async def test_where_there_is_no_room_the_next_location_and_type_are_tried(standin: StandIn, tmp_path: Path) -> None:
    chosen = {"server_types": ("cpx11", "cx23"), "locations": ("hel1", "fsn1", "nbg1")}
    async with hetzner(tmp_path, standin, **chosen) as machines:
        standin.cloud.sold_out |= {("cx23", "hel1"), ("cpx11", "fsn1")}
        await machines.create(plan_of())
        server = standin.cloud.named("hostler-vm-1")
        assert (server.type, server.location) == ("cx23", "fsn1"), "cpx11 is not offered in hel1"
        standin.cloud.sold_out.add(("*", "*"))
        with pytest.raises(Unavailable) as caught:
            await machines.create(plan_of("vm-2"))
        for tried in ("cx23 in hel1", "cpx11 in fsn1", "cx23 in fsn1", "cpx11 in nbg1", "cx23 in nbg1"):
            assert tried in str(caught.value)
        assert await machines.inspect("vm-2") is None


async def test_one_that_had_no_room_after_the_answer_goes_to_the_next_place(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin, locations=("fsn1", "nbg1")) as machines:
        standin.cloud.half_made.append(("resource_unavailable", "no host has room"))
        await machines.create(plan_of())
        assert [server.location for server in standin.cloud.servers.values()] == ["fsn1"]
        assert standin.cloud.made == 2, "the next type at the same place"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"server_types": ("cx1",)}, "cx1.*one of cax11, cpx11"),
        ({"firewall": "none"}, "firewall 'none'"),
        ({"ssh_keys": ("nobody",)}, "SSH key nobody not found"),
        ({"image": "tiny"}, "image not found"),
        ({"locations": ("moon",), "server_types": ("cx23",)}, "tried nothing"),
    ],
)
async def test_what_does_not_exist_there_is_told_with_the_setting(
    changes: dict[str, Any], said: str, standin: StandIn, tmp_path: Path
) -> None:
    async with hetzner(tmp_path, standin, **changes) as machines:
        with pytest.raises(HostlerError, match=said):
            await machines.create(plan_of())
        assert standin.cloud.servers == {}


async def test_a_server_of_that_name_that_is_not_ours_is_left_alone(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(plan_of())
        standin.cloud.named("hostler-vm-1").labels = {"of": "somebody"}
        assert await machines.inspect("vm-1") is None
        assert await machines.list() == []
        with pytest.raises(Refused, match="not Hostler's"):
            await machines.create(plan_of())
        await machines.delete("vm-1")
        assert len(standin.cloud.servers) == 1


async def test_labels_that_somebody_has_changed_are_no_absence(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(plan_of())
        standin.cloud.named("hostler-vm-1").labels["hostler/shape"] = "x"
        with pytest.raises(Damaged, match="hostler-vm-1"):
            await machines.inspect("vm-1")


async def test_a_clone_begins_with_the_snapshot_of_another(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(plan_of())
        standin.cloud.named("hostler-vm-1").disk = "precious"
        await machines.snapshot("vm-1", "s")
        origin = Origin(vm="vm-1", snapshot="s")
        await machines.create(plan_of("vm-2", origin=origin))
        assert standin.cloud.named("hostler-vm-2").disk == "precious"
        with pytest.raises(Refused, match="its origin"):
            await machines.create(plan_of("vm-3", origin=Origin(vm="vm-1", snapshot="none")))


@pytest.mark.parametrize(
    "change", [{"user_data": "x"}, {"ssh_keys": (KEY,)}, {"user": "bob"}, {"image": "ubuntu-24.04"}]
)
async def test_what_is_told_once_cannot_become_another(
    change: dict[str, Any], standin: StandIn, tmp_path: Path
) -> None:
    async with hetzner(tmp_path, standin) as machines:
        made = await machines.create(plan_of())
        with pytest.raises(Refused, match="create another machine"):
            await machines.create(plan_of(**change))
        assert await machines.inspect("vm-1") == made


async def test_without_the_nodes_folder_its_machines_are_known_and_take_their_spec_again(
    standin: StandIn, tmp_path: Path
) -> None:
    plan = plan_of(ssh_keys=(KEY,), user_data="#!/bin/sh")
    async with hetzner(tmp_path / "a" / "node", standin) as machines:
        made = await machines.create(plan)
        place = machines.place
    async with hetzner(tmp_path / "b" / "node", standin) as machines:
        assert machines.place == place
        (seen,) = await machines.list()
        assert (seen.label, seen.id, seen.access) == (made.label, made.id, made.access)
        assert (seen.spec.cpus, seen.spec.memory_mib) == (plan.spec.cpus, plan.spec.memory_mib)
        assert (await machines.create(plan)).spec == plan.spec


# Errors


async def test_after_too_many_calls_none_is_made_before_its_time(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(plan_of())
        standin.recovers_in = 1.2
        standin.inject("429")
        with pytest.raises(TooManyTries, match="called too often; try again in") as caught:
            await machines.inspect("vm-1")
        assert 0 < caught.value.after <= 1.2
        calls = len(standin.calls)
        for _ in range(5):
            with pytest.raises(TooManyTries):
                await machines.inspect("vm-1")
        assert len(standin.calls) == calls, "it was asked though it said not to"
        assert "almost used up" in (await machines.offer()).refuses
        await asyncio.sleep(caught.value.after)
        assert await machines.inspect("vm-1") is not None
        assert (await machines.offer()).refuses == ""


async def test_no_machine_is_taken_when_few_calls_are_left(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        standin.limit, standin.remaining = 3600, 150
        await machines.list()
        assert "almost used up" in (await machines.offer()).refuses
        standin.calls.clear()
        for _ in range(20):
            await machines.list()
        assert standin.calls == [], "the last look is good for a while"


async def test_a_server_that_is_busy_is_waited_for_but_not_for_ever(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin, pace=replace(PACE, locked_within=patience(0.25))) as machines:
        await machines.create(plan_of())
        standin.inject("locked", match="poweron", times=3)
        assert (await machines.start("vm-1")).state is MachineState.RUNNING
        standin.inject("locked", match="poweroff", times=-1)
        with pytest.raises(Unavailable, match="busy with another action"):
            await machines.stop("vm-1", grace=0)


async def test_a_token_that_is_refused_is_said_and_nothing_is_taken(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        assert (await machines.offer()).refuses == ""
        standin.token_is_good = False
        with pytest.raises(Forbidden, match="rejects the token.*hcloud_token"):
            await machines.inspect("vm-1")
        assert "rejects the token" in (await machines.offer()).refuses
        standin.token_is_good = True
        assert (await machines.offer()).refuses == "", "though nobody asked for anything else since"


async def test_the_token_is_told_to_nobody(standin: StandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    machines = hetzner(tmp_path, standin)
    async with machines:
        await machines.create(plan_of())
        standin.token_is_good = False
        with pytest.raises(Forbidden) as caught:
            await machines.list()
    shown = f"{options(standin)!r} {options(standin)} {machines!r} {vars(machines)} {caught.value!r} {caplog.text}"
    assert TOKEN not in shown
    assert all(TOKEN not in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())


async def test_nobody_there_is_unavailable_and_nothing_was_sent(tmp_path: Path) -> None:
    with StandIn() as standin:
        pass
    async with hetzner(tmp_path, standin) as machines:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await machines.create(plan_of())
        assert (await machines.offer()).refuses == ""


@pytest.mark.parametrize(
    ("code", "kind", "written"),
    [
        ("unauthorized", Forbidden, Forbidden),
        ("token_readonly", Forbidden, Forbidden),
        ("rate_limit_exceeded", TooManyTries, TooManyTries),
        (429, TooManyTries, TooManyTries),
        ("locked", Unavailable, Unavailable),
        ("conflict", Unavailable, Unavailable),
        ("resource_unavailable", Unavailable, Unavailable),
        ("resource_limit_exceeded", Unavailable, Unavailable),
        ("maintenance", Unavailable, Unavailable),
        ("uniqueness_error", Unavailable, Unavailable),
        ("not_found", Refused, Refused),
        ("invalid_input", Refused, Refused),
        ("protected", Refused, Refused),
        ("a code of next year", Refused, Refused),
        ("service_error", Unavailable, Uncertain),
        (500, Unavailable, Uncertain),
        (502, Unavailable, Uncertain),
        (504, Unavailable, Uncertain),
    ],
)
def test_each_code_means_something(code: str | int, kind: type[Exception], written: type[Exception]) -> None:
    from hcloud import APIException

    error = APIException(code, "why", {})
    for writes, expected in ((False, kind), (True, written)):
        found = translate_error(error, "server x", writes=writes, after=1.0)
        assert isinstance(found, expected), found
        assert not isinstance(found, NotFound), "that says that there is no machine"
    assert isinstance(translate_error(KeyError("x"), "server x", writes=True, after=1.0), Uncertain)


# Looking


async def test_many_who_look_share_a_look_and_every_page_is_read(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        vms = [f"vm-{number}" for number in range(120)]
        await asyncio.gather(*(machines.create(plan_of(vm)) for vm in vms))
        assert len(await machines.list()) == 120
        standin.calls.clear()
        found = await asyncio.gather(*(machines.inspect(vm) for vm in vms))
        assert [machine.label.vm for machine in found if machine is not None] == vms
        assert len(standin.calls) <= 10, "three pages, and what was under way before"


async def test_one_that_is_on_no_page_is_asked_for_alone(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        vms = ["a", "b", "c"]
        await asyncio.gather(*(machines.create(plan_of(vm)) for vm in vms))
        standin.cloud.hidden.add("hostler-b")
        found = await asyncio.gather(*(machines.inspect(vm) for vm in (*vms, "none")))
        assert [machine and machine.label.vm for machine in found] == [*vms, None]


async def test_a_server_that_came_after_the_look_is_not_made_again(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        standin.slow = 0.1
        standin.inject("slow", match="GET /server_types")
        making = asyncio.create_task(machines.create(plan_of()))
        await standin.until(lambda: "GET /server_types" in standin.calls)
        async with hetzner(tmp_path / "other", standin) as other:  # whose answer was lost, and who is dead now
            await other.create(plan_of())
        assert (await making).state is MachineState.STOPPED
        assert standin.cloud.made == 1


async def test_many_who_wait_share_one_list_of_actions(standin: StandIn, tmp_path: Path) -> None:
    standin.cloud.takes = {"start_server": 0.3}
    async with hetzner(tmp_path, standin, pace=replace(PACE, poll_first=0.1, poll_most=0.1)) as machines:
        vms = [f"vm-{number}" for number in range(20)]
        await asyncio.gather(*(machines.create(plan_of(vm)) for vm in vms))
        standin.calls.clear()
        began = time.monotonic()
        await asyncio.gather(*(machines.start(vm) for vm in vms))
        took = time.monotonic() - began
        asked = [call for call in standin.calls if call == "GET /actions"]
        assert 1 <= len(asked) <= 1 + took / 0.05, "one at a time for all, with pauses of 0.05 s to 0.1 s"
        assert len(standin.calls) - len(asked) < 20 + 20 + 20


async def test_a_server_that_others_stop_is_told_of_once_and_what_verbs_do_is_not(
    standin: StandIn, tmp_path: Path
) -> None:
    async with hetzner(tmp_path, standin, pace=replace(PACE, watch_every=0.02)) as machines:
        news: list[str] = []
        machines.listen(news.append)
        await machines.create(plan_of())
        await machines.start("vm-1")
        await machines.list()
        assert news == []
        standin.cloud.named("hostler-vm-1").status = "off"
        await standin.until(lambda: bool(news))
        standin.calls.clear()
        await standin.until(lambda: len(standin.calls) > 3)
        assert news == ["vm-1"]


# One after the other


async def test_who_is_cancelled_while_something_is_written_waits_for_its_end(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        standin.slow = 0.2
        standin.inject("slow", match="POST /servers$")
        making = asyncio.create_task(machines.create(plan_of()))
        await standin.until(lambda: "POST /servers" in standin.calls)
        making.cancel()
        await asyncio.wait([making])
        assert making.cancelled()
        assert standin.cloud.made == 1, "it comes to be while somebody else works on the machine"


async def test_who_is_cancelled_while_looking_waits_for_nobody(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        standin.slow = 0.4
        standin.inject("slow", match="GET /server_types")
        looking = asyncio.create_task(machines.offer())
        await standin.until(lambda: "GET /server_types" in standin.calls)
        looking.cancel()
        await asyncio.wait([looking])
        assert standin.working == 1


async def test_verbs_of_one_machine_do_not_undo_each_other(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(plan_of())
        standin.slow = 0.1
        standin.calls.clear()
        standin.inject("slow", match="PUT")
        marking = asyncio.create_task(machines.mark(replace(plan_of(), tags={"lab": "6"})))
        await standin.until(lambda: any(call.startswith("PUT") for call in standin.calls))
        await asyncio.gather(marking, machines.reset("vm-1", 3))
        seen = await machines.inspect("vm-1")
        assert seen is not None
        assert (seen.tags, seen.resets) == ({"lab": "6"}, 3)


# Being there for the user


async def test_one_that_went_off_and_on_by_itself_is_on_its_way_anew(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(plan_of())
        before = (await machines.start("vm-1")).readiness
        server = standin.cloud.named("hostler-vm-1")
        found = []
        for status in ("running", "off", "running"):
            server.status = status
            seen = await machines.inspect("vm-1")
            assert seen is not None
            found.append(seen.readiness)
        assert found[:2] == [before, None]
        assert found[2] not in (before, None)


async def test_a_server_is_available_once_the_ssh_server_that_was_made_for_it_answers(tmp_path: Path) -> None:
    with StandIn(network="::/64") as standin:
        probing = hetzner(tmp_path, standin, probe=True, ssh_port=_free_port(), boot_seconds=0.05)
        async with probing as machines:
            news: list[str] = []
            machines.listen(news.append)
            await machines.create(plan_of())
            started = await machines.start("vm-1")
            assert started.access is not None
            assert started.readiness is not None
            assert started.readiness.step is Step.BOOTING
            key = asyncssh.import_private_key(told(standin)["ssh_keys"]["ed25519_private"])
            other = asyncssh.generate_private_key("ssh-ed25519")
            for server_key, step in ((other, Step.SSH), (key, Step.AVAILABLE)):
                news.clear()
                server = await asyncssh.listen("::1", started.access.port, server_host_keys=[server_key])
                async with asyncio.timeout(50):
                    while True:
                        seen = await machines.inspect("vm-1")
                        assert seen is not None
                        assert seen.readiness is not None
                        if seen.readiness.step is step:
                            break
                        await asyncio.sleep(0.02)
                assert "vm-1" in news
                if step is Step.AVAILABLE:
                    async with machines.channel("vm-1", ChannelKind.SSH) as door:
                        assert (await door.read()).startswith(b"SSH-2.0")
                server.close()
                await server.wait_closed()
            await machines.stop("vm-1", grace=0)
            with pytest.raises(NotFound):
                async with machines.channel("vm-1", ChannelKind.SSH):
                    pass


def _free_port() -> int:
    import socket

    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        return int(taken.getsockname()[1])


# Processes


PROGRAM = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from hetzner.opened import PACE, SPEC
from hetzner.standin import TOKEN
from hostler.drivers.machines.hetzner import HetznerMachines, HetznerOptions
from hostler.ports.machines import Label, MachinePlan

async def main():
    options = HetznerOptions(token=TOKEN, endpoint={endpoint!r}, probe=False, pace=PACE)
    async with HetznerMachines({folder!r}, options=options) as machines:
        await machines.create(MachinePlan(label=Label("labs", "ada", "vm-1", "c", "n"), spec=SPEC, name="lab-5"))
        await machines.start("vm-1")
        await machines.stop("vm-1", grace=0)
        await machines.delete("vm-1")

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "match", ["POST /servers$", "GET /actions", "PUT /servers", "POST .*poweron", "POST .*poweroff", "DELETE"]
)
async def test_a_process_that_is_killed_at_any_step_leaves_what_the_next_one_finishes(
    match: str, standin: StandIn, tmp_path: Path
) -> None:
    folder = tmp_path / "node"
    program = PROGRAM.format(tests=str(_tests()), endpoint=standin.endpoint, folder=str(folder))
    standin.slow = 0.3
    standin.inject("slow", match=match)
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        await standin.until(lambda: any(re.search(match, call) for call in standin.calls) or process.poll() is not None)
        assert process.poll() is None, "it ended before"
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    await standin.idle()
    async with hetzner(folder, standin) as machines:
        assert len(await machines.list()) == len(standin.cloud.servers)
        assert (await machines.create(plan_of())).state in (MachineState.STOPPED, MachineState.RUNNING)
        assert len(standin.cloud.servers) == 1
        assert (await machines.start("vm-1")).state is MachineState.RUNNING
        await machines.delete("vm-1")
        assert standin.cloud.servers == {}


def _tests() -> Path:
    from pathlib import Path

    return Path(__file__).parent.parent


def test_the_driver_is_one_of_the_port(tmp_path: Path) -> None:
    with StandIn() as standin:
        assert isinstance(HetznerMachines(tmp_path, options=options(standin), clock=SystemClock()), Machines)


async def test_a_server_is_not_fenced_and_not_handed_over(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        with pytest.raises(Refused):
            await machines.create(replace(plan_of(), fenced=True))
        assert fencing_of(machines) is None
        assert migration_of(machines) is None
