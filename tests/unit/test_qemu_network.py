"""Networks of guests: addresses, ports, and the rules that hold them."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

import pytest

from hostler.drivers.machines.qemu import bridge, firewall, network
from hostler.drivers.machines.qemu.bridge import addresses_of, interface_address, name_server, prefix_of, tap_name
from hostler.drivers.machines.qemu.network import network_of, pick_port, port_was_taken
from hostler.errors import Invalid, Refused, Unavailable

MAC = "02:11:22:33:44:55"


@pytest.mark.parametrize("text", ["", "tap", "bridge:", "bridge:a/b", "bridge:a,script=/bin/sh", "bridge:" + "x" * 16])
def test_a_network_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="must be user, isolated, bridge or bridge:NAME"):
        network_of(text, None, place="p", uids=None)


async def test_a_user_mode_guest_has_one_port_of_the_loopback_and_an_isolated_one_nothing_else() -> None:
    user = network_of("user", None, place="p", uids=None)
    attached = await user.attach(1, MAC)
    assert attached.netdev == f"user,id=n0,ipv6=off,hostfwd=tcp:127.0.0.1:{attached.port}-:22"
    assert (attached.host, attached.forwarded, attached.descriptors) == ("127.0.0.1", True, ())
    assert (attached.ip4, attached.gw4, attached.dns, attached.ip6) == ("10.0.2.15/24", "10.0.2.2", "10.0.2.3", "")
    isolated = network_of("isolated", None, place="p", uids=None)
    assert ",restrict=on," in (await isolated.attach(1, MAC)).netdev
    assert isolated.about == "isolated"


async def test_a_node_says_that_its_guests_reach_its_loopback_and_why() -> None:
    user = network_of("user", None, place="p", uids=None)
    await user.open()
    assert user.about == "user; guests reach this host's loopback: they do not run as separate users"


async def test_rules_that_cannot_be_set_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "why_not", lambda: "nft is not installed")
    user = network_of("user", None, place="p", uids=range(5000, 6000))
    await user.open()
    assert user.about == "user; guests reach this host's loopback: nft is not installed"
    await user.aclose(empty=True)


def test_a_port_stays_with_its_machine_while_it_can_be_had() -> None:
    first = pick_port("place", 1)
    assert network.PORTS_FROM <= first < network.PORTS_UP_TO
    assert pick_port("place", 1, first=first) == first
    assert pick_port("place", 1, first=first, taken={first}) != first
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", first))
        taker.listen()
        assert pick_port("place", 1, first=first) != first
    assert pick_port("place", 1) == first


async def test_a_machine_waits_a_moment_for_the_port_that_its_last_process_had() -> None:
    user = network_of("user", None, place="place", uids=None)
    first = pick_port("place", 1)
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", first))
        taker.listen()
        asyncio.get_running_loop().call_later(0.05, taker.close)
        assert (await user.attach(1, MAC, port=first)).port == first
    began = time.monotonic()
    assert (await user.attach(1, MAC, port=first, taken={first})).port != first
    assert time.monotonic() - began < network.PORT_WITHIN


def test_no_port_of_the_kernels_own_choice_is_given_out() -> None:
    least = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [pick_port("place", number) for number in range(50)]
    assert max(ports) < max(least, network.PORTS_FROM + 1000)
    assert len(set(ports)) > 40


def test_when_no_port_is_free_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_is_free", lambda _port: False)
    with pytest.raises(Unavailable, match="none is free on 127.0.0.1"):
        pick_port("place", 1)


def test_only_a_taken_port_is_taken_for_one() -> None:
    assert port_was_taken("qemu: -netdev user,…: Could not set up host forwarding rule 'tcp:127.0.0.1:1-:22'")
    assert not port_was_taken("qemu: could not open disk")


# Bridge


def test_an_address_is_the_prefix_and_the_mac() -> None:
    assert interface_address(IPv6Network("fd00:1::/64"), MAC) == IPv6Address("fd00:1::11:22ff:fe33:4455")
    assert interface_address(IPv6Network("fe80::/64"), "52:54:00:12:34:56") == IPv6Address("fe80::5054:ff:fe12:3456")


@pytest.mark.parametrize("text", ["fd00::/48", "fd00::1/64", "10.0.0.0/24", "x"])
def test_a_prefix_that_leaves_no_room_for_the_mac_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="prefix of 64 bits"):
        prefix_of(text)


def test_the_bridges_addresses_are_those_that_guests_can_use(tmp_path: Path) -> None:
    table = tmp_path / "if_inet6"
    table.write_text(
        "fe8000000000000044c60dfffef2d57d 02 40 20 c0      br0\n"
        "fd000001000000000000000000000001 02 40 00 82      br0\n"
        "fd000002000000000000000000000001 02 30 00 82      br0\n"
        "fd000003000000000000000000000001 03 40 00 82      br1\n"
    )
    assert addresses_of("br0", table) == [(IPv6Address("fd00:1::1"), IPv6Network("fd00:1::/64"))]
    assert addresses_of("br2", table) == []
    assert addresses_of("br0", tmp_path / "none") == []


def test_names_of_taps_fit_and_differ() -> None:
    names = {tap_name(place, number) for place in ("a", "b") for number in range(100)}
    assert len(names) == 200
    assert max(map(len, names)) <= 15


def test_a_name_server_that_only_the_host_reaches_is_not_told(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    file.write_text("# x\nnameserver 10.0.0.1\nnameserver ::1\nnameserver fe80::1%eth0\nnameserver fd00::53\n")
    assert name_server(file) == "fd00::53"
    file.write_text("nameserver 127.0.0.53\n")
    assert name_server(file) == ""
    assert name_server(tmp_path / "none") == ""


async def test_without_the_right_to_make_taps_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "has_capabilities", lambda *_: False)
    net = network_of("bridge:br0", None, place="p", uids=None)
    with pytest.raises(Refused, match="CAP_NET_ADMIN.*run the agent as root or with that capability, or set network"):
        await net.attach(1, MAC)


async def test_a_bridge_says_if_its_guests_are_not_held_to_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "why_not", lambda: "nft is not installed")
    net = network_of("bridge:br0", None, place="p", uids=None)
    await net.open()
    assert net.about == "bridge br0; guests are not held to their addresses: nft is not installed"
    await net.detach(1)
    await net.reclaim(())


# Rules


def test_rules_replace_what_was_there_in_one_step() -> None:
    text = firewall.loopback_rules("t", range(5000, 6000))
    assert text.startswith("table inet t\ndelete table inet t\ntable inet t {\n")
    assert "meta skuid 5000-5999 oifname lo tcp flags & (syn | ack) == syn reject with tcp reset" in text
    assert "ct state" not in text


def test_whose_rules_they_are_is_written_where_it_can_be() -> None:
    assert f'comment "{os.stat("/proc/self/ns/mnt").st_ino} /a b"' in firewall.loopback_rules(
        "t", range(9), Path("/a b")
    )
    for path in ('/a"; flush ruleset; "', "/a\\", "/a\nb", "/" + "x" * 128):
        assert firewall.loopback_rules("t", range(9), Path(path)) == firewall.loopback_rules("t", range(9))


def test_a_guest_says_only_what_is_its_own_to_say() -> None:
    text = firewall.guest_rules("t", "ht1", MAC, [IPv6Address("fd00::5")])
    assert "policy drop" in text
    assert f"ether saddr != {MAC} drop" in text
    assert "ip6 saddr != { fd00::5, :: } drop" in text
    assert text.index("@th,64,128 0xfd000000000000000000000000000005 accept") < text.index("nd-router-advert")


def test_tables_are_named_after_place_and_machine() -> None:
    assert firewall.table_name("a", 7) == f"{firewall.table_name('a')}_7"
    assert firewall.table_name("a") != firewall.table_name("b")


@pytest.mark.parametrize("kind", ["user", "isolated"])
async def test_tables_of_machines_from_a_bridge_go_with_them(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    tables = {firewall.table_name("a", number) for number in (1, 2, 3)} | {firewall.table_name("b", 1)}

    async def nft(*words: str, said: str = "") -> tuple[str, str]:
        if words == ("-f", "-"):
            tables.difference_update(line.split()[-1] for line in said.splitlines() if line.startswith("delete"))
            return "", ""
        return json.dumps({"nftables": [{"table": {"name": name}} for name in sorted(tables)]}), ""

    monkeypatch.setattr(firewall, "why_not", lambda: "")
    monkeypatch.setattr(firewall, "_nft", nft)
    net = network_of(kind, None, place="a", uids=None)
    await net.reclaim({2, 3})
    assert tables == {firewall.table_name("a", 2), firewall.table_name("a", 3), firewall.table_name("b", 1)}
    await net.detach(2)
    await net.detach(4)
    assert tables == {firewall.table_name("a", 3), firewall.table_name("b", 1)}


async def test_tables_of_other_places_and_of_others_are_nobody_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [firewall.table_name("a", 7), firewall.table_name("a"), firewall.table_name("b", 8), "filter"]
    names += [firewall.table_name("a", 9) + "x"]

    async def answer(*_words: str, said: str = "") -> tuple[str, str]:
        tables = ", ".join(f'{{"table": {{"family": "netdev", "name": "{name}", "handle": 1}}}}' for name in names)
        return f'{{"nftables": [{{"metainfo": {{"version": "1"}}}}, {tables}]}}', ""

    monkeypatch.setattr(firewall, "_nft", answer)
    assert await firewall.machine_tables("a") == {7: firewall.table_name("a", 7)}


async def test_tables_whose_folders_were_deleted_are_found_by_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / str(number) for number in range(20)]
    for place in places[:15]:
        place.mkdir()
    rules = [firewall.loopback_rules(firewall.table_name(str(place)), range(9), place) for place in places]
    tables = [text.partition("delete ")[2].partition("\n")[2] for text in rules]
    foreign = "table inet filter {\n\tchain input {\n\t}\n}\n"
    asked: list[tuple[str, ...]] = []

    async def nft(*words: str, said: str = "") -> tuple[str, str]:
        asked.append(words)
        return foreign + "".join(tables), ""

    monkeypatch.setattr(firewall, "_nft", nft)
    assert await firewall.abandoned() == [firewall.table_name(str(place)) for place in places[15:]]
    assert asked == [("list", "ruleset", "inet")]
