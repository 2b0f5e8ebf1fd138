"""The setting `power`: which URLs there are, which node has which switch, and what `doctor` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redfish_board import SYSTEM, RedfishBoardStandIn

from hostler.drivers.power import CommandPower, IpmiBmc, RedfishBmc
from hostler.entry.cli import main
from hostler.entry.control_plane import ControlPlaneProcess
from hostler.entry.doctor.host import boards, power
from hostler.errors import Invalid
from hostler.ports.machine_driver import Level
from hostler.settings import load
from hostler.wiring import open_power, open_store

FILE = "password_file=/etc/hostler/bmc.password"
REDFISH = f"redfish://hostler@{{node}}-bmc.example/redfish/v1/Systems/1?{FILE}"
SECRET = "s3cr3t-pa55"


def opened(table: dict[str, str], command: tuple[str, ...] = (), told: list[str] | None = None) -> Any:
    return open_power(command, table, timeout=9.0, tell=(told if told is not None else []).append)


def test_a_name_comes_before_patterns_and_patterns_in_their_order() -> None:
    table = {
        "r1-*": REDFISH,
        "r1-b?": f"ipmi://u@10.0.0.8?{FILE}&uuid={{node}}",
        "r1-b3": f"ipmi://u@10.0.0.7:6230?{FILE}&cipher=17&privilege=operator",
        "cloud-*": "command:/etc/hostler/off -v {node}",
    }
    switches = opened(table, ("/else", "{node}"))
    named = {node: switches.power_of(node) for node in ("r1-b3", "r1-b4", "cloud-1", "r2-b1")}
    assert (named["r1-b3"].board.name, type(named["r1-b3"].board)) == ("ipmi://10.0.0.7:6230", IpmiBmc)
    name = "redfish://r1-b4-bmc.example:443/redfish/v1/Systems/1"
    assert (named["r1-b4"].board.name, type(named["r1-b4"].board)) == (name, RedfishBmc)
    assert named["cloud-1"]._command == ("/etc/hostler/off", "-v", "{node}")
    assert named["r2-b1"]._command == ("/else", "{node}")
    assert {each._timeout for each in named.values()} == {9.0}


async def test_a_node_without_a_switch_is_out_of_reach() -> None:
    told: list[str] = []
    assert await opened({"r1-*": REDFISH}, told=told).switch_off("r2-b1") is False
    assert await opened({"r1-*": REDFISH}, told=told).switch_off("r1-b 1@x") is False
    assert told[0] == "power of node r2-b1: no entry of the setting power reaches it"
    assert told[1].startswith("power of node r1-b 1@x: this name cannot be part of a host name")
    path = f"redfish://u@chassis.example/redfish/v1/Systems/{{node}}?{FILE}"
    board = opened({"*": path}).power_of("b 1").board
    assert board.name == "redfish://chassis.example:443/redfish/v1/Systems/b%201"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"redfish://u:{SECRET}@h/s?{FILE}", "must not contain a password"),
        (f"redfish://u@h/s?password={SECRET}", "must not contain a password"),
        (f"ipmi://u@h?{FILE}&pass={SECRET}", "unknown option"),
        ("redfish://u@h/s", "'password_file' must be given as an absolute path"),
        ("redfish://u@h/s?password_file=bmc.password", "'password_file' must be given as an absolute path"),
        (f"redfish://h/s?{FILE}", "needs a user before the host"),
        (f"redfish://u@h?{FILE}", "/redfish/v1/Systems/ID"),
        (f"redfish://u@/s?{FILE}", "needs host:port"),
        (f"redfish://u@h:x/s?{FILE}", "needs host:port"),
        (f"redfish://u@h_/s?{FILE}", "cannot replace"),
        (f"redfish://u@h/s?{FILE}&ca=/a&verify=false", "give one of ca, fingerprint and verify=false"),
        (f"redfish://u@h/s?{FILE}&ca=a", "'ca' must be an absolute path"),
        (f"redfish://u@h/s?{FILE}&fingerprint=00", "SHA-256 in hexadecimal"),
        (f"redfish://u@h/s?{FILE}&verify=no", "must be true or false"),
        (f"redfish+http://u@10.0.0.7/s?{FILE}", "in clear text; use redfish://, or set insecure=true"),
        (f"redfish+http://u@127.0.0.1/s?{FILE}&verify=false", "unknown option"),
        (f"redfish://u@h/s?{FILE}&insecure=true", "unknown option"),
        (f"ipmi://u@h/x?{FILE}", "no path is allowed after the host"),
        (f"ipmi://u@h?{FILE}&cipher=0", "must be one of 3, 8, 12, 17"),
        (f"ipmi://u@h?{FILE}&privilege=user", "must be administrator or operator"),
        (f"ipmi://u@-h?{FILE}", "cannot replace"),
        ("command:/off", "as a separate argument"),
        ("command:/off '{node}", "no closing quotation"),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_secrets(url: str, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        opened({"r1-b3": url})
    assert said in str(caught.value)
    assert str(caught.value).startswith("power, node 'r1-b3': power URL")
    assert SECRET not in str(caught.value)


def test_plain_http_is_for_this_machine_or_by_consent() -> None:
    for url in (f"redfish+http://u@127.0.0.1/s?{FILE}", f"redfish+http://u@10.0.0.7/s?{FILE}&insecure=true"):
        assert opened({"a": url}).power_of("a").board.name.startswith("redfish+http://")


def test_two_nodes_cannot_have_the_same_system() -> None:
    one = f"redfish://a@10.0.0.7/redfish/v1/Systems/1?{FILE}"
    with pytest.raises(Invalid, match="nodes 'b1' and 'b2' have the same system; correct one of the URLs"):
        opened({"b1": one, "b2": f"redfish://b@10.0.0.7:443/redfish/v1/Systems/1/?{FILE}"})
    with pytest.raises(Invalid, match="a pattern names many nodes, so its URL must contain {node}"):
        opened({"b*": one})


async def test_the_leader_has_the_switches_of_the_settings() -> None:
    settings = load({}, {}, toml=f"[power]\n'r1-*' = '{REDFISH}'")
    async with open_store("memory://") as store:
        plane = ControlPlaneProcess(store, settings)
        nodes: Any = next(each for each in plane.controllers() if each.name == "nodes")
        assert nodes._power.reaches("r1-b3")
        assert not nodes._power.reaches("r2-b3")
        await plane._hasher.aclose()
    assert isinstance(open_power(("/off", "{node}"), {}, timeout=1.0, tell=print), CommandPower)
    assert open_power((), {}, timeout=1.0, tell=print) is None


def test_settings_are_shown_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    torn = f"ipmi://hostler:{SECRET}/{SECRET}?{SECRET}@h"
    (tmp_path / "hostler.toml").write_text(
        f"[power]\n'r1-*' = '{REDFISH}'\nb = '{torn}'\nc = 'command:/off {{node}}'\nd = 'ipmi://u@h?password={SECRET}'"
    )
    for output in ("table", "json"):
        assert main(["config", "show", "-o", output]) == 0
        shown = capsys.readouterr().out
        assert SECRET not in shown
        assert f"redfish://***@{{node}}-bmc.example/redfish/v1/Systems/1?{FILE}" in shown
        assert "command:/off {node}" in shown
    (tmp_path / "hostler.toml").write_text(f"power = 'a={SECRET}'")
    assert main(["config", "show"]) == 2
    assert SECRET not in capsys.readouterr().err


# The doctor


async def test_the_doctor_reads_every_board_and_switches_nothing(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET)
    file.chmod(0o600)
    stand_ins = [await RedfishBoardStandIn().start() for _ in range(4)]
    _, off, wrong, hidden = stand_ins
    off.state = wrong.state = "Off"
    hidden.faults = {"GET": "401"}

    def url(stand_in: RedfishBoardStandIn) -> str:
        return f"redfish+http://u@127.0.0.1:{stand_in.port}{SYSTEM}?password_file={file}"

    names = dict(zip(("on", "off", "wrong", "hidden"), map(url, stand_ins), strict=True))
    settings = load({"power": {**names, "cloud-*": "command:/no/off {node}"}}, {}, toml="")
    alive = {"on": True, "off": False, "wrong": True, "r9-b1": True, "cloud-1": True}
    place = f"redfish+http://127.0.0.1:{hidden.port}{SYSTEM}"
    try:
        found = [(each.level, each.what, each.next) for each in await boards(settings, alive)]
    finally:
        for stand_in in stand_ins:
            await stand_in.stop()
    assert [(level, what) for level, what, _ in found] == [
        (Level.OK, "2 management boards answer: 1 On, 1 off"),
        (Level.WARN, "no switch for 1 node: r9-b1"),
        (Level.FAIL, f"node hidden: {place}: refuses the credentials (401)"),
        (Level.FAIL, "node wrong: its management board reports off, but its agent is alive"),
    ]
    assert found[2][2] == "correct the user or password_file"
    assert found[3][2] == "the URL names another system: correct it before this node fails"
    assert {method for each in stand_ins for method, *_ in each.asked} == {"GET"}
    assert SECRET not in str(found)
    (command,) = power(settings)
    assert (command.level, command.what) == (Level.FAIL, "/no/off not found")
    assert command.next.startswith("install it, or correct power, node cloud-*")


async def test_the_doctor_says_which_url_cannot_be() -> None:
    assert await boards(load({}, {}, toml=""), {"a": True}) == []
    (found,) = await boards(load({"power": {"a": "ipmi://u@h"}}, {}, toml=""), {})
    assert (found.level, found.of) == (Level.FAIL, "power")
    assert (
        found.what
        == "power, node 'a': power URL ipmi://…: the option 'password_file' must be given as an absolute path"
    )
