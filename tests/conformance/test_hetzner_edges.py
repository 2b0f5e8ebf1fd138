"""Machines at Hetzner Cloud: how they end, types that are no more, answers that say nothing, and a cloud that hangs."""

from __future__ import annotations

import asyncio
import http.client
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncssh
import msgspec
import pytest
from hetzner.opened import PACE, SPEC, hetzner
from hetzner.standin import StandIn

from hostler.drivers.machines.hetzner import api as api_calls
from hostler.errors import HostlerError, Refused, TooManyTries, Unavailable, Uncertain
from hostler.model.vm import MachineState, Readiness, Step
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from hostler.drivers.machines.hetzner import HetznerMachines

VM = "vm-1"
PLAN = MachinePlan(label=Label("labs", "ada", VM, "c", "n"), spec=SPEC, name="lab-5")
replace = msgspec.structs.replace


@pytest.fixture
def standin() -> Iterator[StandIn]:
    with StandIn() as found:
        yield found


async def test_the_stand_in_ends_though_a_client_keeps_its_connection() -> None:
    # As a client does whose answer is still held somewhere: its thread would be "left behind" for the next test.
    client = http.client.HTTPConnection("127.0.0.1", timeout=60)
    with StandIn() as standin:
        client.port = urlsplit(standin.endpoint).port
        client.request("GET", "/v1/locations")
        assert client.getresponse().read()
    assert not [thread for thread in threading.enumerate() if "process_request_thread" in thread.name]
    client.close()


# The end


def ending(standin: StandIn) -> list[str]:
    return [call.split()[0] if call.startswith("DELETE") else call.rpartition("/")[2] for call in standin.calls
            if call.startswith(("POST", "DELETE"))]  # fmt: skip


async def test_a_running_server_is_shut_down_before_it_is_deleted(standin: StandIn, tmp_path: Path) -> None:
    standin.cloud.shuts_down_in = 0.05
    deleted_as: list[str] = []
    delete = standin.cloud.delete
    standin.cloud.delete = lambda server: (deleted_as.append(server.status), delete(server))[1]  # type: ignore[method-assign]
    async with hetzner(tmp_path, standin, pace=replace(PACE, ends_within=20.0)) as machines:
        await machines.create(PLAN)
        await machines.start(VM)
        standin.calls.clear()
        await machines.delete(VM)
    assert ending(standin) == ["shutdown", "DELETE"]
    assert deleted_as == ["off"], "its guest had no time"
    assert standin.cloud.servers == {}


@pytest.mark.parametrize("fault", ["deaf", "500", "locked", "cut-after", "empty"])
async def test_a_guest_that_does_not_shut_down_is_deleted_all_the_same(
    fault: str, standin: StandIn, tmp_path: Path
) -> None:
    standin.cloud.shuts_down_in = None
    async with hetzner(tmp_path, standin, pace=replace(PACE, ends_within=0.05)) as machines:
        await machines.create(PLAN)
        await machines.start(VM)
        standin.calls.clear()
        if fault != "deaf":
            standin.inject(fault, match="shutdown", times=-1)
        await machines.delete(VM)
    assert ending(standin)[0] == "shutdown"
    assert standin.cloud.servers == {}


async def test_one_that_is_off_or_half_made_is_deleted_at_once(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin) as machines:
        for state in ("off", "running"):
            await machines.create(PLAN)
            server = standin.cloud.named(f"hostler-{VM}")
            server.status = state
            if state == "running":
                server.labels["hostler/life"] = "creating"
            standin.calls.clear()
            await machines.delete(VM)
            assert ending(standin) == ["DELETE"]


# Types


def days_from_now(days: int) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="seconds")


@pytest.mark.parametrize(("days", "kind"), [(-1, "cx23"), (1, "cpx11")])
async def test_a_type_is_taken_until_none_of_it_is_made_any_more(
    days: int, kind: str, standin: StandIn, tmp_path: Path
) -> None:
    standin.cloud.ends["cpx11"] = days_from_now(days)
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(PLAN)
        assert standin.cloud.named(f"hostler-{VM}").type == kind
    assert standin.calls.count("POST /servers") == 1, "it was known before"


async def test_where_a_type_is_refused_the_next_is_tried(standin: StandIn, tmp_path: Path) -> None:
    standin.cloud.withdrawn.add("cpx11")
    async with hetzner(tmp_path, standin, server_types=("cpx11", "cx23")) as machines:
        assert (await machines.create(PLAN)).state is MachineState.STOPPED
        assert standin.cloud.named(f"hostler-{VM}").type == "cx23"
        standin.cloud.withdrawn.add("cx23")
        with pytest.raises(Refused, match="tried cpx11.*deprecated.*cx23.*name others in hcloud_server_type"):
            await machines.create(replace(PLAN, label=replace(PLAN.label, vm="vm-2")))
        standin.cloud.withdrawn.clear()
        standin.cloud.ends |= {"cpx11": days_from_now(-1), "cx23": days_from_now(-1)}
        with pytest.raises(Refused, match=r"cpx11, cx23: no longer available at Hetzner Cloud.*one of cax11, cx33$"):
            await machines.create(replace(PLAN, label=replace(PLAN.label, vm="vm-2")))


# Odd answers


@pytest.mark.parametrize(
    ("match", "verb", "error"),
    [
        ("GET /servers", lambda machines: machines.start(VM), Unavailable),
        ("POST .*poweron", lambda machines: machines.start(VM), Uncertain),
        ("PUT", lambda machines: machines.mark(replace(PLAN, tags={"lab": "6"})), Uncertain),
        ("DELETE", lambda machines: machines.delete(VM), Uncertain),
        ("POST .*create_image", lambda machines: machines.snapshot(VM, "s"), Uncertain),
        ("GET /actions", lambda machines: machines.start(VM), None),
    ],
)
async def test_an_answer_without_what_was_asked_for_is_as_good_as_none(
    match: str,
    verb: Callable[[HetznerMachines], Any],
    error: type[HostlerError] | None,
    standin: StandIn,
    tmp_path: Path,
) -> None:
    standin.cloud.takes = {"start_server": 0.02, "create_image": 0.02}
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(PLAN)
        standin.inject("empty", match=match)
        if error is not None:
            with pytest.raises(error):
                await verb(machines)
        async with asyncio.timeout(40):
            await verb(machines)
        assert standin.faults[0].times == 0, "nothing was odd"


async def test_what_nobody_foresaw_leaves_nobody_waiting(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    standin.cloud.takes = {"start_server": 0.02}
    async with hetzner(tmp_path, standin) as machines:
        await machines.create(PLAN)
        api = machines._site.api
        actions, servers = api.actions, api.servers

        async def broken(*_: Any, **__: Any) -> Any:
            monkeypatch.setattr(api, "actions", actions)
            monkeypatch.setattr(api, "servers", servers)
            raise ZeroDivisionError

        monkeypatch.setattr(api, "actions", broken)
        async with asyncio.timeout(40):
            await machines.start(VM)
        monkeypatch.setattr(api, "servers", broken)
        with pytest.raises(Unavailable, match="ZeroDivisionError"):
            await machines.inspect(VM)
        assert await machines.inspect(VM) is not None
    assert caplog.text.count("ZeroDivisionError") >= 2


async def test_what_fails_otherwise_makes_no_silence_longer(standin: StandIn, tmp_path: Path) -> None:
    async with hetzner(tmp_path, standin, pace=replace(PACE, watch_every=60.0)) as machines:
        await machines.create(PLAN)
        standin.recovers_in = 3600.0
        standin.inject("500", times=8)
        for _ in range(8):
            with pytest.raises(Unavailable):
                await machines.inspect(VM)
        standin.inject("429")
        with pytest.raises(TooManyTries) as caught:
            await machines.inspect(VM)
        assert caught.value.after <= PACE.silence


async def test_no_silence_is_long(standin: StandIn, tmp_path: Path) -> None:
    """So that all goes on soon once it may."""
    async with hetzner(tmp_path, standin, pace=replace(PACE, watch_every=60.0)) as machines:
        standin.recovers_in = 59.0
        standin.inject("429")
        with pytest.raises(TooManyTries) as caught:
            await machines.inspect(VM)
        assert caught.value.after <= 20.0


# A cloud that hangs


async def test_closing_does_not_wait_for_what_is_read(standin: StandIn, tmp_path: Path) -> None:
    standin.slow = 60.0
    async with hetzner(tmp_path, standin) as machines:
        standin.inject("slow", times=-1)
        looking = [asyncio.create_task(look) for look in (machines.inspect(VM), machines.offer(), machines.list())]  # type: ignore[arg-type]
        await standin.until(lambda: standin.working >= 2)
        for task in looking:
            task.cancel()
    assert standin.working >= 2


@asynccontextmanager
async def left_behind(standin: StandIn, machines: HetznerMachines) -> AsyncIterator[None]:
    """A start whose writing was waited for long enough."""
    await machines.create(PLAN)
    standin.inject("slow", match="poweron")
    starting = asyncio.create_task(machines.start(VM))
    await standin.until(lambda: any("poweron" in call for call in standin.calls))
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert standin.working == 1
    yield


async def test_closing_waits_for_what_is_written_but_not_for_long(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_calls, "LEAVES_WITHIN", 0.05)
    standin.slow = 60.0
    async with hetzner(tmp_path, standin) as machines, left_behind(standin, machines):
        pass
    assert standin.working == 1


async def test_who_comes_after_one_who_left_waits_for_what_is_still_written(
    standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_calls, "LEAVES_WITHIN", 0.05)
    standin.slow = 0.3
    async with hetzner(tmp_path, standin) as machines, left_behind(standin, machines):
        assert (await machines.stop(VM, grace=0)).state is MachineState.STOPPED
        await standin.idle()
        seen = await machines.inspect(VM)
        assert seen is not None
        assert seen.state is MachineState.STOPPED, "it was started after it was stopped"


# Being there for the user, again


async def test_one_that_was_available_is_so_after_a_restart_unless_it_proves_not_to_be(tmp_path: Path) -> None:
    with StandIn(network="::/64") as standin:
        key, other = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        async with asyncssh.listen("::1", 0, server_host_keys=[key]) as guest:
            port = guest.get_port()
            probing: dict[str, Any] = {"probe": True, "ssh_port": port}
            async with hetzner(tmp_path, standin, **probing) as machines:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("hostler.drivers.machines.hetzner.create.new_host_key", lambda: made_of(key))
                    await machines.create(PLAN)
                await machines.start(VM)
                available = await readiness(machines, Step.AVAILABLE)
        async with hetzner(tmp_path, standin, **probing) as machines:  # nobody answers now
            assert await readiness(machines) == available
            await asyncio.sleep(0)
            assert await readiness(machines) == available
        async with hetzner(tmp_path, standin, **probing, boot_seconds=0.05) as machines:
            late = await readiness(machines, Step.BOOTING)
            assert "no server answers" in late.cause
        async with hetzner(tmp_path, standin, **probing) as machines:
            assert (await readiness(machines)).step is Step.BOOTING, "it was not any more"
            async with asyncssh.listen("::1", port, server_host_keys=[key]):
                await readiness(machines, Step.AVAILABLE)
        async with (
            asyncssh.listen("::1", port, server_host_keys=[other]),
            hetzner(tmp_path, standin, **probing) as machines,
        ):
            await readiness(machines, Step.SSH)
        async with (
            asyncssh.listen("::1", port, server_host_keys=[key]),
            hetzner(tmp_path, standin, **probing) as machines,
        ):
            await readiness(machines, Step.AVAILABLE)
            await machines.stop(VM, grace=0)
            assert list((tmp_path / "ready").iterdir()) == []


def made_of(key: asyncssh.SSHKey) -> Any:
    from hostler.drivers.machines.seed import HostKey

    private, public = key.export_private_key("openssh").decode(), key.export_public_key("openssh").decode().strip()
    return HostKey(private=private, public=public)


async def readiness(machines: HetznerMachines, step: Step | None = None) -> Readiness:
    """As it is, or once it is so."""
    async with asyncio.timeout(50):
        while True:
            seen = await machines.inspect(VM)
            assert seen is not None
            assert seen.readiness is not None
            if step is None or seen.readiness.step is step:
                return seen.readiness
            await asyncio.sleep(0.02)
