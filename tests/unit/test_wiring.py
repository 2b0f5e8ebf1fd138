"""URLs and the stores behind them; settings and the machines behind those."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from hostler import Invalid, Store, open_store, settings
from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.node_context import QemuOptions
from hostler.model.inventory import Capacity
from hostler.ports.machine_driver import NodeSetup
from hostler.wiring import Options, open_machines

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "memory:///",
        "memory://?history=10",
        "sqlite:///tmp/never-opened.db",
        "sqlite:///tmp/with%20space%23.db?timeout=2.5",
        "file:///tmp/never-opened.json",
        "etcd://localhost:2379",
        "etcd://a:1,b:2,c:3?timeout=2",
        "etcd://localhost",
        "etcd://[::1]:2379",
        "etcd://host:1?user=root&password=x",
        "etcds://host:1",
    ],
)
def test_a_store_url_gives_a_store_without_touching_anything(url: str) -> None:
    assert isinstance(open_store(url), Store)


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
async def test_percent_signs_in_a_path_stand_for_characters(scheme: str, tmp_path: Path) -> None:
    async with open_store(f"{scheme}://{tmp_path}/a%20b%23%3F.state") as store:
        await store.put("/a", b"1")
    assert (tmp_path / "a b#?.state").is_file()


async def test_each_memory_url_is_a_store_of_its_own() -> None:
    async with open_store("memory://") as one, open_store("memory://") as two:
        await one.put("/a", b"1")
        assert await two.get("/a") is None


def test_options_are_taken_once_and_what_is_left_is_an_error() -> None:
    options = Options(urlsplit("x://?a=1&b=2.5&c=three&d=four"))
    assert options.text("a") == "1"
    assert options.number("b", 0, least=1) == 2.5
    assert options.number("missing", 7, least=1) == 7
    with pytest.raises(Invalid, match="the option 'c' must be a number of at least 1"):
        options.number("c", 0, least=1)
    with pytest.raises(Invalid, match="unknown option 'd'; known: a, b, c, missing"):
        options.finish()


def test_an_option_given_twice_or_empty_is_an_error() -> None:
    with pytest.raises(Invalid, match="'user' is given twice"):
        Options(urlsplit("x://?user=1&user=1"))
    with pytest.raises(Invalid, match="'a' is empty"):
        Options(urlsplit("x://?a=")).text("a")


@pytest.mark.parametrize("text", ["0.9", "-1", "nan", "inf", "-inf", "1e999", "one", " "])
def test_a_number_is_finite_and_large_enough(text: str) -> None:
    with pytest.raises(Invalid, match="at least 1"):
        Options(urlsplit(f"x://?n={text}")).number("n", 5, least=1)


def test_machines_of_qemu_run_as_the_settings_say(tmp_path: Path) -> None:
    flags = {"data": str(tmp_path), "image": "debian", "network": "bridge:br0", "network_prefix6": "fd00::/64"}
    more = {"qemu_uids": "5000-6000", "accelerator": "tcg", "disk_reserve_gib": "3", "cpu_overcommit": "2"}
    settled = settings.load({**flags, **more}, {}, toml="")
    capacity = Capacity(cpus=1, memory_mib=1)
    machines = open_machines(
        NodeSetup(
            kind="qemu",
            folder=tmp_path / "machines" / "a",
            capacity=capacity,
            settings=settled,
            nodes=3,
            siblings=tmp_path,
        )
    )
    assert isinstance(machines, QemuMachines)
    options = QemuOptions(
        network="bridge:br0",
        data=tmp_path,
        prefix6="fd00::/64",
        uids="5000-6000",
        accelerator="tcg",
        reserve_gib=3.0,
        cpu_overcommit=2,
        shared_by=3,
        siblings=tmp_path,
    )
    assert machines._options == options
    assert (machines._images.path, machines._images.default) == (tmp_path / "images", "debian")
