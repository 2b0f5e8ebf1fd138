"""Hostler's own bridge, and whether labs can be asked for through Redis."""

from __future__ import annotations

from ipaddress import IPv6Network
from typing import TYPE_CHECKING, Any

import pytest

from hostler.drivers.machines.qemu import default_bridge, descriptor
from hostler.drivers.machines.qemu.default_bridge import DefaultBridge, load_prefix, mac_of_prefix, names
from hostler.drivers.machines.qemu.network import network_of
from hostler.entry.labs import lab_entry_of, lab_network
from hostler.errors import Damaged, Refused, Unavailable
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord
from hostler.ports.machine_driver import GuestNetwork
from hostler.settings import load

if TYPE_CHECKING:
    from pathlib import Path

REDIS = {"redis": "redis://:secret@127.0.0.1:6379"}


class Kernel:
    """The links of a host. `faster`: who makes a bridge of that name just before we do, by MAC."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.macs: dict[str, str] = {}
        self.addresses: list[str] = []
        self.faster: dict[str, str] = {}
        monkeypatch.setattr(default_bridge, "has_capabilities", lambda *_: True)
        monkeypatch.setattr(default_bridge.socket, "if_nametoindex", lambda name: list(self.macs).index(name))
        for name in ("make_bridge", "mac_of", "add_address"):
            monkeypatch.setattr(default_bridge, name, getattr(self, name))
        monkeypatch.setattr(default_bridge, "set_up", lambda _: None)

    def make_bridge(self, name: str, mac: str) -> None:
        self.macs |= {name: self.faster.pop(name)} if name in self.faster else {}
        if name in self.macs:
            raise FileExistsError(17, "File exists")
        self.macs[name] = mac

    def mac_of(self, name: str) -> str:
        if name not in self.macs:
            raise OSError(19, "No such device")
        return self.macs[name]

    def add_address(self, index: int, address: object, length: int) -> None:
        said = f"{list(self.macs)[index]} {address}/{length}"
        if said in self.addresses:
            raise FileExistsError(17, "File exists")
        self.addresses.append(said)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


# The bridge


def test_a_folder_has_one_prefix_which_is_its_own(tmp_path: Path) -> None:
    one, other = load_prefix(tmp_path / "one"), load_prefix(tmp_path / "other")
    assert one != other
    assert one.prefixlen == 64
    assert one.subnet_of(IPv6Network("fd00::/8"))
    assert load_prefix(tmp_path / "one") == one
    assert (tmp_path / "one" / "bridge6").stat().st_mode & 0o777 == 0o600
    assert mac_of_prefix(IPv6Network("fd12:3456:789a::/64")) == "02:12:34:56:78:9a"
    assert names(one)[0] == names(other)[0] == "hostler0"
    assert names(one)[1] != names(other)[1]


@pytest.mark.parametrize("text", ["nothing", "fd00::/48", "2001:db8::/64", "ü"])
def test_a_prefix_that_is_none_is_told_with_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "bridge6").write_text(text)
    with pytest.raises(Damaged, match="bridge6: .* is not a prefix such as"):
        load_prefix(tmp_path)


def test_a_prefix_that_cannot_be_kept_is_told(tmp_path: Path) -> None:
    (tmp_path / "bridge6").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="cannot store the bridge's prefix"):
        load_prefix(tmp_path)


def test_two_folders_have_two_bridges_and_each_finds_its_own_again(tmp_path: Path, kernel: Kernel) -> None:
    one, other = DefaultBridge(tmp_path / "one"), DefaultBridge(tmp_path / "other")
    first, second = one.make(), other.make()
    assert first == ("hostler0", load_prefix(tmp_path / "one"))
    assert second == (names(second[1])[1], load_prefix(tmp_path / "other"))
    del kernel.macs["hostler0"]
    assert other.make() == second, "a name that became free is not taken: guests are on the other one"
    assert one.make() == first
    assert len(kernel.addresses) == 2
    assert kernel.addresses[0] == f"hostler0 {first[1][1]}/64"


def test_who_is_faster_with_the_name_has_it(tmp_path: Path, kernel: Kernel) -> None:
    own = load_prefix(tmp_path)
    kernel.faster = {"hostler0": "02:00:00:00:00:01", names(own)[1]: mac_of_prefix(own)}
    assert DefaultBridge(tmp_path).make() == (names(own)[1], own), (
        "another folder was, then another process of this one"
    )
    kernel.macs = dict.fromkeys(names(own), "02:00:00:00:00:01")
    with pytest.raises(Refused, match="belong to others; name a bridge"):
        DefaultBridge(tmp_path).make()


def test_the_bridge_gets_the_prefix_that_is_set(tmp_path: Path, kernel: Kernel) -> None:
    prefix = IPv6Network("2001:db8::/64")
    assert DefaultBridge(tmp_path, prefix).make() == ("hostler0", prefix)
    assert kernel.addresses == ["hostler0 2001:db8::1/64"]
    assert kernel.macs == {"hostler0": mac_of_prefix(load_prefix(tmp_path))}


async def test_a_node_whose_bridge_cannot_be_says_so_and_so_does_the_machine(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_bridge, "has_capabilities", lambda *_: False)
    network = network_of("bridge", None, place="p", uids=None, data=tmp_path)
    await network.open()
    assert network.about.startswith("none: network bridge: a bridge needs CAP_NET_ADMIN")
    with pytest.raises(Refused, match="CAP_NET_ADMIN"):
        await network.attach(1, "52:54:00:00:00:01")
    monkeypatch.setattr(default_bridge, "has_capabilities", lambda *_: True)
    await network.open()
    assert network.about.startswith("bridge hostler0")
    assert list(kernel.macs) == ["hostler0"]
    assert network.kind == f"bridge {load_prefix(tmp_path)}", "a guest that runs stays on it"
    other = network_of("bridge:br0", None, place="p", uids=None)
    assert other.kind == "bridge"


# The door


def settled(tmp_path: Path, **flags: Any) -> Any:
    return load({"data": str(tmp_path), "machines": "qemu", **flags}, {}, toml="")


def network(tmp_path: Path, found: GuestNetwork, **flags: Any) -> str:
    """The setting that the machines of this process run with."""
    return str(settled(tmp_path, **flags).with_driver_options(**found.options).driver_options["network"])


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What trying the bridge out says."""
    found = {"why": ""}
    monkeypatch.setattr(descriptor, "bridge_refusal", lambda _: found["why"])
    return found


def test_with_redis_guests_are_on_our_own_bridge_unless_another_network_is_named(
    tmp_path: Path, tried: dict[str, str]
) -> None:
    def seen(**flags: Any) -> tuple[str, str]:
        found = lab_network(settled(tmp_path, **flags))
        return network(tmp_path, found, **flags), found.why

    assert seen(**REDIS) == ("bridge", "")
    assert seen(**REDIS, network="bridge") == ("bridge", "")
    assert seen(**REDIS, network="bridge:br0") == ("bridge:br0", "")
    tried["why"] = "it must not be tried; for nobody asked"
    assert seen() == ("user", "")
    assert seen(**REDIS, machines="simulated") == ("user", "")


def test_a_bridge_that_somebody_names_is_tried_out(tmp_path: Path) -> None:
    found = lab_network(settled(tmp_path, **REDIS, network="bridge:nosuch0"))
    assert network(tmp_path, found, network="bridge:nosuch0") == "bridge:nosuch0"
    assert "nosuch0" in found.why
    assert found.advice


@pytest.mark.parametrize("named", ["user", "isolated"])
def test_a_network_without_addresses_that_somebody_chose_stays_and_closes_the_door(
    tmp_path: Path, tried: dict[str, str], named: str
) -> None:
    found = lab_network(settled(tmp_path, **REDIS, network=named))
    assert network(tmp_path, found, network=named) == named
    assert f"network = {named} (--network) gives guests no IPv6 address" in found.why
    assert "set network = bridge" in found.advice
    assert "secret" not in found.why
    assert not tried["why"]


def test_where_no_bridge_can_be_had_it_is_said_why_and_what_to_do(tmp_path: Path, tried: dict[str, str]) -> None:
    tried["why"] = "no tap; load the module"
    for flags, expected in (({}, "user"), ({"network": "bridge"}, "bridge"), ({"network": "bridge:b"}, "bridge:b")):
        found = lab_network(settled(tmp_path, **REDIS, **flags))
        assert network(tmp_path, found, **flags) == expected
        refusal = lab_entry_of([], own={"r-1": found}).refusal
        assert refusal.startswith("labs are not taken from Redis: no tap; load the module. HTTP")
        assert "\n" not in refusal


def node(name: str, network: str | None, **changes: Any) -> NodeRecord:
    fields: dict[str, Any] = {
        "node": name,
        "lifecycle": Lifecycle.ON_DUTY,
        "capacity": Capacity(cpus=1, memory_mib=1),
        "driver": "qemu",
        "facts": {} if network is None else {"network": network},
        "registered_at": 0.0,
        **changes,
    }
    return NodeRecord(**fields)


def test_a_worker_alone_goes_by_what_the_nodes_say() -> None:
    fine = [
        node("a", "bridge hostler0; guests are not held to their addresses: nft is not installed"),
        node("b", None, driver="simulated"),
        node("c", "user", lifecycle=Lifecycle.DECOMMISSIONED),
    ]
    assert lab_entry_of(fine) == lab_entry_of([]) == lab_entry_of([], own={"r-1": GuestNetwork()})
    assert not lab_entry_of(fine).refusal + lab_entry_of(fine).warning
    left = [node("c", "user", lifecycle=Lifecycle.DECOMMISSIONED), node("f", "user", lifecycle=Lifecycle.SHUTTING_DOWN)]
    for network, says in (
        ("user; guests reach this host's loopback: x", "node d: its guests have no IPv6 address (network: user); set"),
        (None, "node d: its guests have no IPv6 address (network: not known); set"),
        ("none: a bridge takes CAP_NET_ADMIN; run it as root", "node d: a bridge takes CAP_NET_ADMIN; set"),
    ):
        without = [node("e", "isolated"), node("d", network)]
        assert says in lab_entry_of([*left, *without]).refusal
        found = lab_entry_of([*fine, *without])
        assert not found.refusal, "a node whose guests can be reached has labs for the door"
        assert f"labs from Redis fail on d, e: {says}" in found.warning


def test_our_own_nodes_count_as_they_will_be_and_not_as_they_were() -> None:
    before, other = node("a", "user"), node("b", "user")
    assert lab_entry_of([before], own={"a": GuestNetwork()}).refusal == ""
    found = lab_entry_of([before, other], own={"a": GuestNetwork()})
    assert (found.refusal, "fail on b: node b" in found.warning) == ("", True)
    ours = {"a": GuestNetwork({}, "no tap", "load it")}
    assert "from Redis: no tap; load it" in lab_entry_of([other], own=ours).refusal
    found = lab_entry_of([node("h", None, driver="hetzner")], own=ours)
    assert (found.refusal, "fail on a: no tap; load it" in found.warning) == ("", True)
