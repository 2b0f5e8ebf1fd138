"""The driver and what it finds on disk. Nothing here boots."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from harness import pace
from qemu_opened import Opened, empty_images, plan
from qemu_record import image

from hostler.drivers.machines.qemu import QemuMachines, state
from hostler.drivers.machines.qemu.driver import _needs
from hostler.drivers.machines.qemu.pid_lookup import Run
from hostler.errors import Closed, Damaged, Invalid, Refused, Unavailable
from hostler.kit.clock import boot_id
from hostler.model.image import Seeding
from hostler.model.vm import MachineState, Origin
from hostler.ports.machine_driver import Named
from hostler.ports.machines import Label

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

CREATING, FAILED, STOPPED = MachineState.CREATING, MachineState.FAILED, MachineState.STOPPED
GIB = 2**30


@pytest.fixture
async def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "node", await empty_images(tmp_path / "images"))


async def test_agents_of_one_data_folder_divide_their_host(opened: Opened, tmp_path: Path) -> None:
    nodes = tmp_path / "machines"
    (nodes / "local-1").mkdir(parents=True)
    async with opened(siblings=nodes) as machines:
        whole = await machines.offer()
        (nodes / "local-2").mkdir()
        (nodes / "local-3").mkdir()  # its machines are there, whether its agent runs or not
        part = await machines.offer()
    assert part.capacity.memory_mib == whole.capacity.memory_mib // 3
    assert part.capacity.cpus == max(1, whole.capacity.cpus // 3)
    assert ("share" in whole.facts, part.facts["share"]) == (False, "one of 3 nodes on its host")
    assert part.facts["host"] == boot_id()


@pytest.mark.parametrize("content", [b"", b"{", b'{"label":', b"\xff\xfe", b"[]", b"null"])
async def test_a_torn_state_file_hides_no_other_machine_and_nothing_is_removed(opened: Opened, content: bytes) -> None:
    async with opened() as machines:
        for vm in ("a", "b"):
            await machines.create(plan(vm))
    (opened.of("a") / state.FILE).write_bytes(content)
    before = sorted(path.name for path in opened.of("a").iterdir())
    async with opened() as machines:
        assert [machine.label.vm for machine in await machines.list()] == ["b"]
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: machines.inspect("a"),
            lambda: machines.create(plan("a")),
            lambda: machines.start("a"),
            lambda: machines.delete("a"),
        ]
        for call in calls:
            with pytest.raises(Damaged, match="machine.json"):
                await call()
        assert "machine.json" in (await machines.offer()).facts["damaged"]
        await machines.delete("b")
    assert sorted(path.name for path in opened.of("a").iterdir()) == before


async def test_what_is_no_machine_of_ours_is_left_alone(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan("a"))
    (opened.folder / "vms" / "a file").write_text("of somebody")
    (opened.folder / "vms" / "a folder").mkdir()
    subprocess.run(["cp", "-a", "a", "copy"], cwd=opened.folder / "vms", check=True)
    async with opened() as machines:
        assert [machine.label.vm for machine in await machines.list()] == ["a"]
        with pytest.raises(Damaged, match="whose folder has another name"):
            await machines.inspect("copy")
        await machines.delete("a")
    left = {path.name for path in (opened.folder / "vms").iterdir()}
    assert left == {"a file", "a folder", "copy"}


async def test_a_creation_that_ends_anywhere_leaves_nothing_or_a_machine_that_says_so(opened: Opened) -> None:
    steps: list[str] = []

    async def note(name: str) -> None:
        steps.append(name)

    async with opened(note) as machines:
        await machines.create(plan())
        await machines.delete("a")
    made = [name for name in dict.fromkeys(steps) if name.startswith("create")]
    assert len(made) >= 4
    for last in made:

        async def end(name: str, last: str = last) -> None:
            if name == last:
                raise asyncio.CancelledError

        async with opened(end) as machines:
            with pytest.raises(asyncio.CancelledError):
                await machines.create(plan())
        async with opened() as machines:
            found = await machines.inspect("a")
            if last.startswith("create.begun:before"):
                assert found is None
            else:
                assert found is not None
                assert found.state is (STOPPED if last == "create.done:after" else CREATING)
            assert (await machines.create(plan())).state is STOPPED
            await machines.delete("a")
            assert list((opened.folder / "vms").iterdir()) == []


@pytest.mark.parametrize(
    "vm", ["a b", "-drive", "x\n-device", "../../etc", "a/b", ".hidden", "'\"$(id)", "ä" * 60, "x" * 65, "x" * 1024]
)
async def test_any_name_will_do_and_stays_below_the_folder(opened: Opened, vm: str) -> None:
    async with opened() as machines:
        await machines.create(plan(vm))
    async with opened() as machines:
        (machine,) = await machines.list()
        assert machine.label.vm == vm
        (folder,) = (opened.folder / "vms").iterdir()
        assert (folder / state.FILE).stat().st_mode & 0o777 == 0o600
        assert (folder / "host_key").stat().st_mode & 0o777 == 0o600
        await machines.delete(vm)
        assert list((opened.folder / "vms").iterdir()) == []


async def test_a_disk_is_as_large_as_asked_for_and_never_shrinks(opened: Opened) -> None:
    def size() -> int:
        return state.read(opened.of("a")).disk_bytes

    async with opened() as machines:
        await machines.create(plan())
        assert size() == 2**20, "what its image has"
        await machines.create(plan(disk_gib=2))
        assert size() == 2 * GIB
        made = await machines.create(plan(disk_gib=1))
        assert (made.spec.disk_gib, size()) == (1, 2 * GIB)


async def test_no_new_machine_is_made_on_a_disk_that_is_almost_full(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan("old"))
        assert (await machines.offer()).refuses == ""
    async with opened(reserve_gib=1e9, reserve_share=1.0) as machines:
        assert "almost full" in (await machines.offer()).refuses
        with pytest.raises(Unavailable, match="almost full"):
            await machines.create(plan("new"))
        assert await machines.inspect("new") is None
        with pytest.raises(Unavailable, match="almost full"):
            await machines.start("old")
        with pytest.raises(Unavailable, match="almost full"):
            await machines.snapshot("old", "s")
        await machines.stop("old", grace=0)
        await machines.delete("old")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"memory_mib": 63}, Refused),
        ({"ssh_keys": ("ssh-ed25519 A\nssh-rsa B",)}, Invalid),
        ({"image": "none"}, Refused),
        ({"user": "student"}, Refused),
        ({"origin": Origin(vm="b", snapshot="s")}, Refused),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_there(
    opened: Opened, changes: dict[str, Any], error: type[Exception]
) -> None:
    async with opened() as machines:
        with pytest.raises(error):
            await machines.create(plan(**changes))
        assert await machines.inspect("a") is None
        await machines.create(plan())
        if "origin" not in changes:
            with pytest.raises(error):
                await machines.create(plan(**changes))
        assert (await machines.inspect("a")).spec == plan().spec  # type: ignore[union-attr]


async def test_who_logs_in_is_settled_when_a_machine_is_made_also_for_its_clones(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "node", await empty_images(tmp_path / "images", Seeding.FIRMWARE))
    async with opened() as machines:
        with pytest.raises(Refused, match="user name 'root' is reserved"):
            await machines.create(plan("a", user="root"))
        await machines.create(plan("a", user="student"))
        await machines.create(plan("a", user="student", cpus=2))
        assert state.read(opened.of("a")).user == "student"
        for user in ("", "teacher"):
            with pytest.raises(Refused, match=r"its login user is 'student' and cannot be changed to"):
                await machines.create(plan("a", user=user))
        await machines.snapshot("a", "s")
        origin = Origin(vm="a", snapshot="s")
        with pytest.raises(Refused, match="its login user is 'student'"):
            await machines.create(plan("b", origin=origin))
        await machines.create(plan("b", origin=origin, user="student"))


async def test_a_clone_stands_on_its_own(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan("a"))
        await machines.snapshot("a", "a name with 'quotes'")
        await machines.create(plan("b", disk_gib=1, origin=Origin(vm="a", snapshot="a name with 'quotes'")))
        a, b = state.read(opened.of("a")), state.read(opened.of("b"))
        assert (a.mac, a.host_key, a.number) != (b.mac, b.host_key, b.number)
        assert b.disk_bytes == GIB
        assert (opened.of("a") / "base").samefile(opened.of("b") / "base")
        assert sorted(path.name for path in opened.of("a").iterdir() if "copy" in path.name) == []
        await machines.delete("a")
        await machines.snapshot("b", "s")


@pytest.mark.parametrize(
    ("boot", "fenced", "expected", "detail"),
    [
        ("this", False, FAILED, "its process ended"),
        ("this", True, STOPPED, "its fence was not extended"),
        ("another", False, STOPPED, "its node was switched off"),
    ],
)
async def test_a_process_that_is_not_there_any_more_is_told_by_why_it_went(
    opened: Opened, boot: str, *, fenced: bool, expected: MachineState, detail: str
) -> None:
    async with opened() as machines:
        await machines.create(plan())
    record = state.read(opened.of("a"))
    gone = Run(pid=1, start_time=1, boot_id=boot_id() if boot == "this" else "another")
    state.write(opened.of("a"), msgspec.structs.replace(record, run=gone, fenced=fenced, available_at=1.0))
    for _ in range(2):
        async with opened() as machines:
            machine = await machines.inspect("a")
            assert machine is not None
            assert machine.state is expected
            assert detail in machine.detail
    async with opened() as machines:
        stopped = await machines.stop("a", grace=0)
        assert (stopped.state, stopped.detail) == (STOPPED, "")


async def test_a_verb_under_which_the_driver_is_closed_writes_nothing_more(opened: Opened) -> None:
    machines: QemuMachines

    async def close(name: str) -> None:
        if name == "create.done:before":
            await machines.aclose()

    machines = opened(close)
    await machines.__aenter__()
    with pytest.raises(Closed):
        await machines.create(plan())
    async with opened() as again:
        assert (await again.inspect("a")).state is CREATING  # type: ignore[union-attr]


async def test_fifty_machines_are_looked_at_in_no_time(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan())
    record = state.read(opened.of("a"))
    for number in range(2, 51):
        opened.of(f"m{number}").mkdir()
        label = Label("o", "p", f"m{number}")
        state.write(opened.of(f"m{number}"), msgspec.structs.replace(record, label=label, number=number))
    async with opened() as machines:
        names = [machine.label.vm for machine in await machines.list()]
        assert len(names) == 50
        loop = asyncio.get_running_loop()
        best, since = float("inf"), loop.time()
        for _ in range(5):
            began = loop.time()
            for name in names:
                assert await machines.inspect(name) is not None
            best = min(best, loop.time() - began)
        pace.check(best, 0.1, since=since, what="looking at 50 machines")


@pytest.mark.parametrize("seeding", list(Seeding))
def test_a_node_says_which_user_data_an_image_runs(seeding: Seeding) -> None:
    named = Named(name="tiny", image=image(seeding=seeding), size=1, used_by=0)
    assert _needs(named, "tiny").seeding == seeding.value
