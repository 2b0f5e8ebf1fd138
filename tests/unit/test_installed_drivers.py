"""Drivers that are found by their entry points: ours, and those of other packages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hostler import Store, open_store, open_ttl_storage
from hostler.drivers import BUILT_IN
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.entry.backend import is_cluster
from hostler.errors import Invalid
from hostler.ports.machine_driver import MachineDriver
from hostler.ports.url import PowerDriver, StoreDriver, TtlDriver
from hostler.settings import load
from hostler.settings.driver import GROUPS, MACHINES, POWER, STORES, TTL, Driver, broken_drivers, forget, installed
from hostler.wiring import is_store, machine_driver, open_power

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
MODULE = """
from hostler.drivers.store.memory import MemoryStore
from hostler.ports.url import PowerDriver, StoreDriver, TtlDriver

class Switch:
    def __init__(self, name):
        self.system = name
    async def switch_off(self, node):
        return True
    async def read_state(self):
        return "off"

def _store(url, options):
    return MemoryStore(history=int(options.number("keep", 7, least=1)))

def _storage(url, options):
    from hostler.wiring import ttl_storage_on
    return ttl_storage_on(MemoryStore())

STORE = StoreDriver(about="others", open=_store, shared=True)
STORAGE = TtlDriver(about="others", open=_storage)
POWER = PowerDriver(about="others", open=lambda url, options, timeout, tell: Switch(url.hostname))
"""


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a package with these entry points, for this process."""

    def register(name: str, **groups: dict[str, str]) -> None:
        info = tmp_path / f"{name}-7.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 7\n")
        lines = [
            f"[hostler.{group}]\n" + "".join(f"{k} = {v}\n" for k, v in found.items())
            for group, found in groups.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        forget()

    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "others_drivers.py").write_text(MODULE)
    yield register
    monkeypatch.undo()
    sys.modules.pop("others_drivers", None)
    forget()


def test_our_drivers_are_registered_as_those_of_others_are() -> None:
    """The table counts in a checkout; the entry points are what others see of us."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == BUILT_IN
    assert set(BUILT_IN) == set(GROUPS)


def test_every_driver_of_ours_can_be_loaded() -> None:
    kinds: dict[str, type[Driver]] = {MACHINES: MachineDriver, STORES: StoreDriver, TTL: TtlDriver, POWER: PowerDriver}
    for group, kind in kinds.items():
        found = dict(installed(group).all(kind))
        assert set(BUILT_IN[group]) <= set(found)
        assert all(driver.about for driver in found.values())
    assert broken_drivers() == []


def test_a_descriptor_does_not_import_its_driver() -> None:
    """Settings are loaded at every start, with the descriptors of all drivers."""
    script = "import sys; from hostler.settings import load; load({}, {}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    loaded = set(done.stdout.split())
    assert "hostler.drivers.machines.qemu.descriptor" in loaded
    heavy = {"hcloud", "apsw", "grpc", "aiohttp", "redis", "hostler.drivers.machines.qemu.driver"}
    assert (
        loaded & (heavy | {"hostler.drivers.machines.simulated.driver", "hostler.drivers.machines.hetzner.driver"})
        == set()
    )


def test_the_metadata_of_an_older_checkout_changes_nothing(register: Callable[..., None]) -> None:
    register("hostler", machines={"vmware": "hostler.gone:DRIVER", "qemu": "hostler.moved:DRIVER"})
    assert installed(MACHINES).names == ("simulated", "qemu", "hetzner")
    assert broken_drivers() == []
    assert machine_driver("qemu").about == "QEMU processes on this host"


def test_a_package_of_others_brings_a_store(register: Callable[..., None]) -> None:
    with pytest.raises(Invalid, match="known are memory://, .*; to add one, install its package"):
        open_store("others://x")
    register("others", stores={"others": "others_drivers:STORE"})
    assert isinstance(open_store("others://x?keep=9"), Store)
    assert is_store("others://x")
    assert is_cluster("others://x")
    assert not is_cluster("sqlite:///x")
    assert isinstance(open_ttl_storage("others://x"), StoreTtlStorage)
    with pytest.raises(Invalid, match="unknown option 'kept'; known: keep"):
        open_store("others://x?kept=9")


def test_a_package_of_others_brings_a_ttl_storage(register: Callable[..., None]) -> None:
    register("others", ttl={"others": "others_drivers:STORAGE"})
    assert isinstance(open_ttl_storage("others://x"), StoreTtlStorage)
    assert not is_store("others://x")


async def test_a_package_of_others_brings_a_power_switch(register: Callable[..., None]) -> None:
    with pytest.raises(Invalid, match="must be redfish://…, redfish.http://…, ipmi://…, command:…"):
        load({"power": {"a": "others://board"}}, {}, toml="")
    register("others", power={"others": "others_drivers:POWER"})
    boards = load({"power": {"a": "others://board-1", "b*": "others://{node}"}}, {}, toml="").power
    power: Any = open_power((), boards, timeout=1.0, tell=print)
    assert await power.switch_off("a")
    assert await power.read_state("b7") == "off"
    with pytest.raises(Invalid, match="nodes 'a' and 'c' have the same system"):
        open_power((), {"a": "others://board-1", "c": "others://board-1"}, timeout=1.0, tell=print)


def test_a_driver_that_cannot_be_loaded_is_named_where_it_is_used(register: Callable[..., None]) -> None:
    register("others", stores={"others": "no_such_module:X", "wrong": "others_drivers:POWER"})
    for url, why in (
        ("others://x", "No module named 'no_such_module'"),
        ("wrong://x", "a PowerDriver, not the descriptor"),
    ):
        with pytest.raises(Invalid, match=f"the driver of others 7 cannot be used: .*{why}"):
            open_store(url)
    assert isinstance(open_store("memory://"), Store)
