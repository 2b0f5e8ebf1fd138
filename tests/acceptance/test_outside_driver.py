"""A machine driver that is a distribution of its own: found by its entry point, and as good as ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hostler.ports.machine_driver import NodeSetup
from hostler.settings.driver import forget
from hostler.testing import MachineSetup, check_machines
from hostler.wiring import open_machines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.ports.machines import Machines

SOURCE = Path(__file__).parents[1] / "outside" / "process"
BROKEN = """Metadata-Version: 2.1
Name: {name}
Version: 7
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the driver."""
    target = tmp_path_factory.mktemp("target")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--no-deps", "--no-index", "--no-compile", str(SOURCE)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def installed(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The driver is installed for this process."""
    monkeypatch.syspath_prepend(str(target))
    forget()
    yield
    monkeypatch.undo()
    for name in [name for name in sys.modules if name.startswith("hostler_process")]:
        del sys.modules[name]
    forget()


def register(folder: Path, name: str, *entries: str, group: str = "hostler.machines") -> Path:
    """Write the metadata of an installed distribution with these entry points."""
    info = folder / f"{name}-7.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(BROKEN.format(name=name))
    (info / "entry_points.txt").write_text("\n".join((f"[{group}]", *entries, "")))
    return folder


def hostler(*words: str, path: tuple[Path, ...], data: Path, **more: str) -> subprocess.CompletedProcess[str]:
    before = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([*map(str, path), *([before] if before else [])])
    environ = {**os.environ, "PYTHONPATH": paths, "HOSTLER_CONFIG": os.devnull, "HOSTLER_DATA": str(data), **more}
    command = [sys.executable, "-m", "hostler", *words]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=280, cwd=data, check=False)


def alive(pid: int) -> bool:
    """A process that has ended and that nothing waits for is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def save(machines: Any, vm: str, text: str) -> None:
    (machines.disk(vm) / "text").write_text(text)


async def show(machines: Any, vm: str) -> str:
    file = machines.disk(vm) / "text"
    return file.read_text() if file.exists() else ""


async def boots(machines: Any, vm: str) -> int:
    return len((machines.disk(vm).parent / "boots").read_text().splitlines())


async def power_off(machines: Any, vm: str) -> None:
    os.killpg(int((machines.disk(vm).parent / "pid").read_text()), 15)


@pytest.mark.usefixtures("installed")
async def test_it_passes_every_claim_about_machines(tmp_path: Path) -> None:
    setup = MachineSetup(
        unknown_image="none",
        console=False,
        grace=2.0,
        points=12,
        save=save,
        show=show,
        boots=boots,
        power_off=power_off,
    )

    def opened() -> Machines:
        return open_machines(NodeSetup(kind="process", folder=tmp_path))

    assert type(opened()).__module__ == "hostler_process.machines"
    await check_machines(opened, setup=setup)
    left = [file for file in tmp_path.rglob("*") if file.is_dir() and file.parent != tmp_path]
    assert left == [], "the suite leaves nothing behind"


@pytest.mark.usefixtures("installed")
async def test_its_processes_end_with_their_machines(tmp_path: Path) -> None:
    module = import_module("hostler_process.machines")
    await check_machines(
        lambda: open_machines(NodeSetup(kind="process", folder=tmp_path)),
        only=["a_destroyed_machine_is_gone_running_or_not"],
    )
    await asyncio.sleep(0)
    assert module._spawned == set()


def test_help_and_config_name_it(target: Path, tmp_path: Path) -> None:
    for verb in ("up", "agent"):
        shown = " ".join(hostler(verb, "--help", path=(target,), data=tmp_path).stdout.split())
        assert "The machine driver: simulated, qemu, hetzner or process." in shown
    drivers = json.loads(hostler("config", "drivers", "-o", "json", path=(target,), data=tmp_path).stdout)
    (row,) = [row for row in drivers if row["name"] == "process"]
    assert row == {
        "kind": "machines",
        "name": "process",
        "from": "hostler-process 0.1",
        "settings": ["process_command"],
        "about": "plain processes of this host",
        "problem": "",
    }
    found = hostler(
        *("config", "show", "-o", "json"), path=(target,), data=tmp_path, HOSTLER_PROCESS_COMMAND="sleep 1000"
    )
    assert json.loads(found.stdout)["process_command"] == {
        "value": ["sleep", "1000"],
        "from": "HOSTLER_PROCESS_COMMAND",
    }
    report = hostler("doctor", "-o", "json", path=(target,), data=tmp_path, HOSTLER_MACHINES="process").stdout
    assert "machines run /" in report


def test_labs_are_checked_by_it(target: Path, tmp_path: Path) -> None:
    (tmp_path / "user.yaml").write_text("#cloud-config\n")
    (tmp_path / "labs.toml").write_text("[default]\nprovider = 'process'\n[labs.5]\ncloud_init = 'user.yaml'\n")
    found = hostler("up", "--labs", "labs.toml", "--listen", "127.0.0.1:0", path=(target,), data=tmp_path)
    assert found.returncode != 0
    assert "[labs.5] cloud_init: a process has no cloud-init\n  next: remove it" in found.stderr


def test_without_it_its_name_is_refused_with_what_is_there_and_what_to_do(tmp_path: Path) -> None:
    for verb in (("up",), ("agent", "--node", "a")):
        found = hostler(*verb, "--machines", "process", path=(), data=tmp_path)
        assert found.returncode != 0
        assert (
            "--machines = 'process': must be simulated, qemu or hetzner\n  next: to add one, install its package"
            in found.stderr
        )
    assert "unknown setting" in hostler("config", "show", path=(), data=tmp_path, HOSTLER_PROCESS_COMMAND="x").stderr


def test_broken_drivers_are_named_in_one_line_each_and_the_others_work(target: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "raising.py").write_text("raise RuntimeError('out of\\norder')\nDRIVER = 1\n")
    (tmp_path / "there" / "other.py").write_text("DRIVER = 'no descriptor'\n")
    (tmp_path / "there" / "greedy.py").write_text(
        "from hostler.ports.machine_driver import MachineDriver\n"
        "from hostler.settings.option import Option\n"
        "OPTIONS = (Option('data', 'data', 'HOSTLER_DATA', str, 'ours', 'x'),)\n"
        "DRIVER = MachineDriver(about='greedy', open=print, options=OPTIONS)\n"
    )
    entries = (
        "absent = no_such_module:DRIVER",
        "raising = raising:DRIVER",
        "other = other:DRIVER",
        "greedy = greedy:DRIVER",
        "qemu = other:DRIVER",
    )
    there = register(tmp_path / "there", "broken", *entries)
    (there / "damaged-1.dist-info").mkdir()
    (there / "damaged-1.dist-info" / "entry_points.txt").write_bytes(b"[hostler.machines]\n\xff\xfe no equals\n")
    path, data = (target, there), tmp_path / "data"
    data.mkdir()
    rows = json.loads(hostler("config", "drivers", "-o", "json", path=path, data=data).stdout)
    problems = {row["name"]: row["problem"] for row in rows if row["problem"]}
    assert problems == {
        "absent": "cannot be used: ModuleNotFoundError: No module named 'no_such_module'",
        "raising": "cannot be used: RuntimeError: out of order",
        "other": "cannot be used: other:DRIVER is a str, not the descriptor of such a driver",
        "greedy": "cannot be used: its setting data already exists",
        "qemu of broken 7": "cannot be used: the name is taken by hostler",
    }
    assert {"simulated", "qemu", "hetzner", "process"} <= {row["name"] for row in rows if not row["problem"]}
    chosen = hostler("up", "--machines", "raising", path=path, data=data)
    assert "this driver is installed and cannot be used: RuntimeError: out of order" in chosen.stderr
    unknown = hostler("config", "show", path=path, data=data, HOSTLER_GREEDY="1").stderr
    assert "unknown setting" in unknown
    assert "greedy" in unknown
    report = hostler("doctor", path=path, data=data)
    assert "raising cannot be used: RuntimeError" in report.stdout


def test_two_packages_of_one_name_are_both_refused(tmp_path: Path) -> None:
    for one in ("one", "two"):
        register(tmp_path / "there", one, f"same = {one}:DRIVER")
    rows = json.loads(hostler("config", "drivers", "-o", "json", path=(tmp_path / "there",), data=tmp_path).stdout)
    assert {row["name"]: row["problem"] for row in rows if row["problem"]} == {
        "same": "cannot be used: one 7 and two 7 both have this name"
    }


def test_a_host_runs_its_machines_and_an_agent_finds_them_again(target: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    up = ("up", "--detach", "--machines", "process", "--listen", "127.0.0.1:0")
    try:
        broken = register(tmp_path / "there", "broken", "absent = no_such_module:DRIVER")
        started = hostler(*up, "--first-vm", path=(target, broken), data=data)
        assert started.returncode == 0, started.stdout + started.stderr
        assert "driver absent (hostler.machines) is left out: ModuleNotFoundError" in started.stdout
        shown = json.loads(hostler("vm", "show", "hello", "-o", "json", path=(target,), data=data).stdout)
        assert shown["phase"] == "running", shown
        pids = [file.read_text() for file in data.glob("machines/*/machines/*/pid")]
        assert len(pids) == 1
        assert hostler("down", path=(target,), data=data).returncode == 0
        assert alive(int(pids[0]))
        again = hostler(*up, path=(target,), data=data)
        assert again.returncode == 0, again.stdout + again.stderr
        assert [file.read_text() for file in data.glob("machines/*/machines/*/pid")] == pids
        gone = hostler("vm", "delete", "hello", "--yes", "--wait", path=(target,), data=data)
        assert gone.returncode == 0, gone.stderr
    finally:
        hostler("down", path=(target,), data=data)
        for file in data.glob("machines/*/machines/*/pid"):
            os.killpg(int(file.read_text()), 9)
    assert not alive(int(pids[0]))
