"""Rights and limits of a guest's process: what is written where, and who gets which user."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
from pathlib import Path

import pytest

from hostler.drivers import privileges as module
from hostler.drivers.machines.qemu.privileges import (
    OVERHEAD_MIB,
    ControlGroups,
    GroupLimits,
    accelerator_groups,
    nice_of,
    own_files,
    settings_of,
)
from hostler.drivers.privileges import (
    FEW_UIDS,
    THREADS,
    USUAL_UIDS,
    Privileges,
    pick_uid,
    rights_for,
    uids_of,
    users_here,
)
from hostler.errors import Invalid, Unavailable
from hostler.kit.processes import CgroupBase, cgroup_bases, has_capabilities

# Rights


def test_who_cannot_change_users_still_gives_up_ever_gaining_rights() -> None:
    argv = Privileges().wrap(["qemu", "-x"])
    assert argv[-4:] == ["--no-new-privs", "--", "qemu", "-x"]
    assert "--core=0:0" in argv
    assert not [word for word in argv if word.startswith(("--reuid", "--groups", "--bounding-set", "--nproc"))]


def test_a_user_of_its_own_has_no_group_and_no_capability_beside() -> None:
    argv = Privileges(uid=5000).wrap(["qemu"], cpus=2)
    for word in ("--reuid=5000", "--regid=5000", "--clear-groups", "--no-new-privs", "--bounding-set=-all"):
        assert word in argv
    assert {"--inh-caps=-all", "--ambient-caps=-all", f"--nproc={THREADS + 2}:{THREADS + 2}"} <= set(argv)
    assert "--groups=108" in Privileges(uid=5000, groups=(108,)).wrap(["qemu"])
    assert "--clear-groups" not in Privileges(uid=5000, groups=(108,)).wrap(["qemu"])


def test_a_limit_that_is_lower_already_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (100, 200))
    assert "--nofile=200:200" in Privileges().wrap([])


def test_only_a_device_that_a_group_can_use_brings_its_group(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    device.touch()
    device.chmod(0o660)
    owner = device.stat().st_gid
    assert accelerator_groups("tcg", str(device)) == ()
    assert accelerator_groups("kvm", str(device)) == ((owner,) if owner else ())  # never that of root
    device.chmod(0o666)
    assert accelerator_groups("kvm", str(device)) == ()
    assert accelerator_groups("kvm", str(tmp_path / "none")) == ()


# Users


def test_a_machine_gets_the_same_user_each_time_and_two_places_begin_elsewhere() -> None:
    uids = range(1_000_000, 2_000_000)
    given = [pick_uid("place", number, uids) for number in range(20)]
    assert given == [pick_uid("place", number, uids) for number in range(20)]
    assert len({*given, *(pick_uid("other", number, uids) for number in range(20))}) == 40


def test_a_user_who_is_taken_is_passed_over_until_none_is_left() -> None:
    uids = range(3_000_000, 3_000_003)
    taken: set[int | None] = set()
    for _ in uids:
        taken.add(pick_uid("place", 1, uids, taken=taken))
    assert taken == set(uids)
    with pytest.raises(Unavailable, match="widen qemu_uids"):
        pick_uid("place", 1, uids, taken=taken)


def test_somebody_who_runs_or_is_known_here_is_not_given_to_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_running_uids", lambda: {3_000_000})
    monkeypatch.setattr(module, "_is_known_user", lambda uid: uid == 3_000_001)
    assert pick_uid("place", 1, range(3_000_000, 3_000_003)) == 3_000_002


def test_the_group_of_its_folder_says_whose_a_machine_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    groups = {one: None, two: 3_000_001}
    monkeypatch.setattr(module, "_group_of", groups.get)
    for folder in (one, two):
        folder.mkdir()
    uids = range(3_000_000, 3_000_002)
    assert rights_for(two, "place", 7, uids) == Privileges(uid=3_000_001)
    for number in range(9):  # whichever it would be, the other's is taken
        assert rights_for(one, "place", number, uids).uid == 3_000_000
    groups[one] = 0  # a group that is none of ours says nothing
    assert rights_for(one, "place", 1, uids).uid == 3_000_000
    assert rights_for(one, "place", 1, None) == Privileges()


@pytest.mark.parametrize("text", ["", "5", "a-b", "0-5000", "999-2000", "5000-4999", "1000-4294967294", "-1000-2000"])
def test_a_range_that_is_none_or_holds_users_of_the_system_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="must be FIRST-LAST"):
        uids_of(text)


def test_a_container_that_maps_few_users_has_fewer_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = {"usual": [USUAL_UIDS, FEW_UIDS], "few": [FEW_UIDS], "none": []}
    monkeypatch.setattr(module, "may_change_users", lambda: True)
    for kind, expected in (("usual", USUAL_UIDS), ("few", FEW_UIDS), ("none", None)):
        monkeypatch.setattr(module, "_is_mapped", maps[kind].__contains__)
        assert users_here(None) == expected
    with pytest.raises(Invalid, match="not mapped here"):
        users_here("5000-6000")
    monkeypatch.setattr(module, "may_change_users", lambda: False)
    assert users_here("5000-6000") is None


def test_a_capability_counts_if_it_is_effective() -> None:
    status = "CapPrm:\tffffffffffffffff\nCapEff:\t0000000000001001\n"
    assert has_capabilities(0, 12, status=status)
    assert not has_capabilities(0, 1, status=status)
    assert not has_capabilities(0, status="")


def test_what_was_put_where_the_seed_belongs_is_removed_and_hinders_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "chown", lambda *_, **__: None)
    monkeypatch.setattr(os, "fchown", lambda *_, **__: None)
    folder, elsewhere = tmp_path / "vms" / "a", tmp_path / "elsewhere"
    for path in (folder, elsewhere):
        path.mkdir(parents=True)
    (elsewhere / "secret").touch()
    mode = elsewhere.stat().st_mode
    (folder / "fw").symlink_to(elsewhere)
    (folder / "seed.iso").symlink_to("/etc/passwd")
    own_files(Privileges(uid=5000), folder)
    assert list(folder.iterdir()) == []
    assert (elsewhere / "secret").exists()
    assert elsewhere.stat().st_mode == mode


def test_giving_a_folder_away_follows_no_link_and_leaves_shared_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[str, int, int]] = []

    def chown(path: int | Path, uid: int, gid: int, **_: object) -> None:
        name = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
        given.append((Path(name).name, uid, gid))

    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(os, "fchown", chown)
    (tmp_path / "fw").mkdir()
    for name in ("disk.qcow2", "machine.json", "fw/host_key", "seed.iso"):
        (tmp_path / name).touch()
    (tmp_path / "fw/shared").hardlink_to(tmp_path / "machine.json")
    own_files(Privileges(uid=5000), tmp_path)
    assert sorted(given) == [
        ("disk.qcow2", 5000, 5000),
        ("fw", 0, 5000),
        ("host_key", 0, 5000),
        ("seed.iso", 0, 5000),
        (tmp_path.name, 0, 5000),
    ]
    assert (tmp_path / "fw/host_key").stat().st_mode & 0o777 == 0o440
    assert tmp_path.stat().st_mode & 0o7777 == 0o1770
    (tmp_path / "disk.qcow2").unlink()
    (tmp_path / "disk.qcow2").symlink_to("/etc/passwd")
    with pytest.raises(Unavailable, match="cannot be given to user 5000"):
        own_files(Privileges(uid=5000), tmp_path)
    given.clear()
    own_files(Privileges(), tmp_path)
    assert given == []


# Limits


def test_a_share_of_the_cpus_is_a_weight_or_the_nearest_niceness() -> None:
    assert [nice_of(share, may_raise=False) for share in (1, 50, 80, 100, 200)] == [19, 3, 1, 0, 0]
    assert [nice_of(share, may_raise=True) for share in (100, 125, 10_000)] == [0, -1, -15]
    one, two = CgroupBase("/x", 1, ("cpu",)), CgroupBase("/x", 2, ("cpu",))
    for share, shares in ((100, "1024"), (1, "10"), (10_000, "102400")):
        assert settings_of(one, GroupLimits(128, 1, share)) == {"cpu.shares": shares}
        assert settings_of(two, GroupLimits(128, 1, share)) == {"cpu.weight": str(share)}


def test_the_limit_of_memory_leaves_room_for_qemu_itself() -> None:
    (limit,) = settings_of(CgroupBase("/x", 2, ("memory",)), GroupLimits(1024)).values()
    assert int(limit) == (1024 + 64 + OVERHEAD_MIB) * 2**20
    assert settings_of(CgroupBase("/x", 1, ("pids",)), GroupLimits(1024, 4)) == {"pids.max": str(THREADS + 4)}


def _kernel(folder: Path, cgroup: str, mounts: list[tuple[str, str, str, str]]) -> Path:
    """Tables like the kernel's: (what is shown, where, type, options)."""
    proc = folder / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(cgroup)
    lines = [f"1 2 0:3 {shown} {at} rw - {kind} x rw,{options}\n" for shown, at, kind, options in mounts]
    (proc / "self/mountinfo").write_text("".join(lines))
    return proc


def test_groups_are_made_at_the_top_of_a_version_1_tree_and_not_in_somebody_elses_group(tmp_path: Path) -> None:
    mounts = [("/", f"/sys/{name}", "cgroup", name) for name in ("cpu,cpuacct", "memory", "blkio")]
    for _, at, _, _ in mounts:
        (tmp_path / at.lstrip("/") / "theirs").mkdir(parents=True)
    proc = _kernel(tmp_path, "3:memory:/theirs\n2:cpu,cpuacct:/\n1:blkio:/\n0::/\n", mounts)
    found = cgroup_bases(proc, tmp_path)
    assert CgroupBase(str(tmp_path / "sys/cpu,cpuacct"), 1, ("cpu",)) in found
    if os.geteuid() == 0:  # whoever is not root can only write where it was handed over
        assert [base.controllers for base in found] == [("cpu",)]


def test_a_version_2_group_that_can_be_divided_is(tmp_path: Path) -> None:
    proc = _kernel(tmp_path, "0::/unit\n", [("/", "/sys", "cgroup2", "")])
    unit = tmp_path / "sys/unit"
    unit.mkdir(parents=True)
    (unit / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (unit / "cgroup.subtree_control").write_text("")
    assert cgroup_bases(proc, tmp_path) == [CgroupBase(str(unit), 2, ("memory", "cpu", "pids"))]
    assert (unit / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"


def test_a_version_2_tree_without_controllers_is_of_no_use(tmp_path: Path) -> None:
    proc = _kernel(tmp_path, "0::/\n", [("/", "/sys", "cgroup2", "")])
    (tmp_path / "sys").mkdir()
    (tmp_path / "sys/cgroup.controllers").write_text("hugetlb\n")
    (tmp_path / "sys/cgroup.subtree_control").write_text("")
    assert cgroup_bases(proc, tmp_path) == []


def test_a_container_sees_a_part_of_the_tree_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "sys/cpu/inner").mkdir(parents=True)
    proc = _kernel(tmp_path, "2:cpu:/docker/1\n", [("/docker/1", "/sys/cpu", "cgroup", "cpu")])
    assert cgroup_bases(proc, tmp_path) == [CgroupBase(str(tmp_path / "sys/cpu"), 1, ("cpu",))]


async def test_groups_of_machines_come_and_go_and_leftovers_are_found_by_a_later_process(tmp_path: Path) -> None:
    (tmp_path / "sys/cpu").mkdir(parents=True)
    place = tmp_path / "place"
    place.mkdir()
    proc = _kernel(tmp_path, "2:cpu:/\n", [("/", "/sys/cpu", "cgroup", "cpu")])
    limits = ControlGroups(place, "id", proc=proc, within=tmp_path)
    await limits.open()
    assert limits.about == "cgroup v1: cpu"
    assert os.listdir(tmp_path / "sys/cpu") == []
    for number in (1, 2, 3):
        await limits.apply(number, 4000 + number, GroupLimits(128, share=200))
        group = tmp_path / f"sys/cpu/{limits.name}-{number}"
        assert (group / "cpu.shares").read_text() == "2048"
        assert (group / "cgroup.procs").read_text() == str(4000 + number)
        for file in group.iterdir():  # the kernel's files do not keep a group from being removed
            file.unlink()
    await limits.release(1)
    later = ControlGroups(place, "id", proc=tmp_path / "none")  # which itself is in no group it could use
    await later.open()
    assert later.about == "nice"
    for name in ("hostler-mine", "hostler-0123456789ab-7", "hostler-0123456789ab-8/process"):
        (tmp_path / "sys/cpu" / name).mkdir(parents=True)
    await later.reclaim({2})
    left = [f"{limits.name}-2", "hostler-mine", "hostler-0123456789ab-8"]  # nobody's business, and somebody's
    assert sorted(os.listdir(tmp_path / "sys/cpu")) == sorted(left)


async def test_a_group_that_somebody_took_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sys/cpu").mkdir(parents=True)
    proc = _kernel(tmp_path, "2:cpu:/\n", [("/", "/sys/cpu", "cgroup", "cpu")])
    limits = ControlGroups(tmp_path, "id", proc=proc, within=tmp_path)
    await limits.open()
    made, mkdir = [], Path.mkdir

    def taken_once(path: Path, **options: bool) -> None:
        mkdir(path, **options)
        made.append(path)
        if len(made) == 1:
            path.rmdir()

    monkeypatch.setattr(Path, "mkdir", taken_once)
    await limits.apply(1, 4001, GroupLimits(128))
    assert len(made) == 2
    assert (made[-1] / "cgroup.procs").read_text() == "4001"


async def test_machines_that_are_limited_at_the_same_time_are_all_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cpu", "memory"):
        (tmp_path / "sys" / name).mkdir(parents=True)
    mounts = [("/", f"/sys/{name}", "cgroup", name) for name in ("cpu", "memory")]
    limits = ControlGroups(tmp_path, "id", proc=_kernel(tmp_path, "2:cpu:/\n3:memory:/\n", mounts), within=tmp_path)
    await limits.open()
    replace = Path.replace

    def late(path: Path, target: Path) -> Path:
        time.sleep(0.02)  # another thread writes its own file meanwhile
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", late)
    await asyncio.gather(*(limits.apply(number, 4000 + number, GroupLimits(128)) for number in range(8)))
    assert sorted(limits.remembered()) == [str(tmp_path / "sys" / name) for name in ("cpu", "memory")]


async def test_a_group_whose_process_is_about_to_end_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sys/cpu").mkdir(parents=True)
    proc = _kernel(tmp_path, "2:cpu:/\n", [("/", "/sys/cpu", "cgroup", "cpu")])
    limits = ControlGroups(tmp_path, "id", proc=proc, within=tmp_path)
    await limits.open()
    tries = []

    def rmdir(path: Path) -> None:
        tries.append(path.name)
        if len(tries) < 3:
            raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(Path, "rmdir", rmdir)
    await limits.release(4)
    assert tries == [f"{limits.name}-4"] * 3


async def test_where_no_group_can_be_made_niceness_is_set_on_every_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tmp_path / "proc"
    for task in (70, 71):
        (proc / f"70/task/{task}").mkdir(parents=True)
    (proc / "70/autogroup").touch()
    nice: dict[int, int] = {}
    monkeypatch.setattr(os, "setpriority", lambda _kind, task, value: nice.update({task: value}))
    limits = ControlGroups(tmp_path, "id", proc=proc)
    await limits.open()
    await limits.apply(1, 70, GroupLimits(128, share=50))
    assert nice == {70: 3, 71: 3}
    assert (proc / "70/autogroup").read_text() == "3"
