"""A management board that speaks Redfish: what each of its answers means, true or not."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from harness.pace import patience
from redfish_board import SYSTEM, RedfishBoardStandIn

from hostler.drivers.power import BmcPower
from hostler.errors import Unavailable, Uncertain
from hostler.wiring import open_power

NODE, USER, PASSWORD = "r1-b3", "hostler", "s3cr3t-pa55"


class Bench:
    """A stand-in board, and the switch that reaches it."""

    def __init__(self, folder: Path) -> None:
        self.stand_in = RedfishBoardStandIn()
        self.told: list[str] = []
        self.password_file = folder / "password"
        self.password_file.write_text(f"{PASSWORD}\n")
        self.password_file.chmod(0o600)

    def url(self, more: str = "", *, scheme: str = "redfish+http", path: str = SYSTEM) -> str:
        place = f"{USER}@127.0.0.1:{self.stand_in.port}"
        return f"{scheme}://{place}{path}?password_file={self.password_file}{more}"

    def switch(
        self,
        more: str = "",
        *,
        within: float = 5.0,
        timeout: float = 30.0,
        every: float = 0.05,
        scheme: str = "redfish+http",
    ) -> BmcPower:
        by_url: Any = open_power((), {NODE: self.url(more, scheme=scheme)}, timeout=1.0, tell=self.told.append)
        power = by_url.power_of(NODE)
        assert isinstance(power, BmcPower)
        return BmcPower(power.board, timeout=timeout, request_within=within, every=every, tell=self.told.append)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    found = Bench(tmp_path)
    await found.stand_in.start()
    yield found
    await found.stand_in.stop()
    assert PASSWORD not in "".join(found.told)


def does(**changes: Any) -> Callable[[RedfishBoardStandIn], None]:
    def prepare(stand_in: RedfishBoardStandIn) -> None:
        for name, value in changes.items():
            setattr(stand_in, name, value)

    return prepare


async def test_a_board_that_does_what_it_is_asked_is_asked_once_and_read_back(bench: Bench) -> None:
    assert await bench.switch().switch_off(NODE) is True
    assert bench.stand_in.resets == [b'{"ResetType":"ForceOff"}']
    assert [method for method, *_ in bench.stand_in.asked] == ["GET", "GET", "POST", "GET", "GET"]
    headers = bench.stand_in.asked[0][2]
    assert headers["authorization"] == "Basic aG9zdGxlcjpzM2NyM3QtcGE1NQ=="
    (said,) = bench.told
    assert said.endswith(f"off, as read back from redfish+http://127.0.0.1:{bench.stand_in.port}{SYSTEM}")


OFF_IN_THE_END = {
    "some states on the way": does(coming=["On", "PoweringOff", "On", "PoweringOff", "Off"]),
    "off once, on again, then off": does(coming=["Off", "On", "Off"]),
    "answers 202": does(faults={"POST": "202"}),
    "answers 500 and does it": does(faults={"POST": "500"}),
    "answers 503 and does it": does(faults={"POST": "503"}),
    "closes and does it": does(faults={"POST": "closes"}),
    "answers nonsense and does it": does(faults={"POST": b"\x00\x01 what\r\n\r\n"}),
    "is off already, and refuses": does(state="Off", obeys=False, faults={"POST": "409"}),
    "is off already": does(state="Off"),
    "other words for the same path": does(system_after_reset={"@odata.id": f"{SYSTEM}/"}),
    "no actions": does(system={"@odata.id": SYSTEM}),
}


@pytest.mark.parametrize("prepare", OFF_IN_THE_END.values(), ids=OFF_IN_THE_END)
async def test_a_node_is_off_once_that_is_read_twice_whatever_the_request_was_answered(
    bench: Bench, prepare: Callable[[RedfishBoardStandIn], None]
) -> None:
    prepare(bench.stand_in)
    assert await bench.switch().switch_off(NODE) is True
    assert len(bench.stand_in.resets) == 1


NEVER_SEEN_OFF = {
    "lies: 204, and stays on": does(obeys=False),
    "stays on the way": does(coming=["PoweringOff"]),
    "never off twice in a row": does(coming=["Off", "On"] * 500),
    "other spelling": does(coming=["OFF"]),
    "answers 500, and stays on": does(obeys=False, faults={"POST": "500"}),
    "closes, and stays on": does(obeys=False, faults={"POST": "closes"}),
    "hangs, and stays on": does(obeys=False, faults={"POST": "hangs"}),
    "hangs at each read after it": does(faults_after_reset={"GET": "hangs"}),
    "closes at each read after it": does(faults_after_reset={"GET": "closes"}),
    "nonsense at each read after it": does(faults_after_reset={"GET": b'HTTP/1.1 200 OK\r\n\r\n{"PowerState": "Off"'}),
    "refuses to be read after it": does(faults_after_reset={"GET": "401"}),
    "no state after it": does(system_after_reset={"PowerState": None}),
    "off, of another system": does(system_after_reset={"@odata.id": "/redfish/v1/Systems/2"}),
    "off, of another uuid": does(system_after_reset={"UUID": "0"}),
}


@pytest.mark.slow
async def test_a_node_that_was_not_read_as_off_may_be_on(tmp_path: Path) -> None:
    answers = patience(0.75)

    async def play(prepare: Callable[[RedfishBoardStandIn], None]) -> tuple[str, int]:
        bench = Bench(tmp_path)
        prepare(await bench.stand_in.start())
        try:
            uuid = "&uuid=4c4c4544-0042-3510-8051-b4c04f4b4d32"
            switch = bench.switch(uuid, within=answers, timeout=2 * answers, every=answers / 15)
            return f"{await switch.switch_off(NODE)}", len(bench.stand_in.resets)
        except Uncertain as error:
            return str(error).rpartition("; ")[2], len(bench.stand_in.resets)
        finally:
            await bench.stand_in.stop()

    ends = await asyncio.gather(*map(play, NEVER_SEEN_OFF.values()))
    assert dict(zip(NEVER_SEEN_OFF, ends, strict=True)) == dict.fromkeys(
        NEVER_SEEN_OFF, ("the node may be on or off", 1)
    )


ONLY_READ = {
    "closes": (does(faults={"GET": "closes"}), "does not answer correctly"),
    "garbage": (does(faults={"GET": b"SSH-2.0-dropbear\r\n"}), "does not answer correctly"),
    "no JSON": (
        does(faults={"GET": b"HTTP/1.1 200 OK\r\n\r\n<html>Off</html>"}),
        "is not a ComputerSystem; correct the path",
    ),
    "deep JSON": (does(faults={"GET": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000}), "is not a ComputerSystem"),
    "a list": (does(faults={"GET": b'HTTP/1.1 200 OK\r\n\r\n["Off"]'}), "is not a ComputerSystem"),
    "types": (does(system={"PowerState": {"Off": 1}}), "is not a ComputerSystem"),
    "no state": (does(system={"PowerState": None, "UUID": "U", "SerialNumber": "SN-1"}), "reports no PowerState"),
    "huge": (does(system={"more": "x" * 2_000_000}), "more than 1048576 bytes"),
    "401": (does(faults={"GET": "401"}), "refuses the credentials (401); correct the user or password_file"),
    "403": (does(faults={"GET": "403"}), "refuses the credentials"),
    "404": (does(faults={"GET": "404"}), "no such system (404); correct the path"),
    "500": (does(faults={"GET": "500"}), "answers 500; check the board"),
    "503": (does(faults={"GET": "503"}), "answers 503; check the board"),
    "redirect": (does(faults={"GET": "308"}), "redirects (308), which is not followed"),
    "other system": (does(state="Off", system={"@odata.id": "/redfish/v1/Systems/2"}), "another system"),
    "other uuid": (does(state="Off", system={"UUID": "0"}), "has uuid '0', not"),
    "no uuid": (does(state="Off", system={}), "reports no uuid, not"),
    "other serial": (
        does(state="Off", system={"UUID": "U", "SerialNumber": "SN-2"}),
        "has serial 'SN-2', not 'SN-1'",
    ),
    "no ForceOff": (
        does(
            system={
                "Actions": {"#ComputerSystem.Reset": {"ResetType@Redfish.AllowableValues": ["On"]}},
                "UUID": "U",
                "SerialNumber": "SN-1",
            }
        ),
        "does not offer ForceOff; use power_command",
    ),
    "reset elsewhere": (
        does(
            system={
                "Actions": {"#ComputerSystem.Reset": {"target": "/redfish/v1/Systems/2/Actions/ComputerSystem.Reset"}},
                "UUID": "U",
                "SerialNumber": "SN-1",
            }
        ),
        "expects resets at /redfish/v1/Systems/2/",
    ),
}


@pytest.mark.parametrize(("prepare", "said"), ONLY_READ.values(), ids=ONLY_READ)
async def test_a_board_that_cannot_be_read_as_that_of_the_node_is_asked_for_nothing(
    bench: Bench, prepare: Callable[[RedfishBoardStandIn], None], said: str
) -> None:
    prepare(bench.stand_in)
    with pytest.raises(Unavailable) as caught:
        await bench.switch("&uuid=U&serial=SN-1").switch_off(NODE)
    assert said in str(caught.value)
    assert f"power of node {NODE}: redfish+http://127.0.0.1:" in str(caught.value)
    assert {method for method, *_ in bench.stand_in.asked} <= {"GET"}
    assert "/elsewhere" not in {path for _, path, *_ in bench.stand_in.asked}


@pytest.mark.parametrize("fault", ["hangs", "drips"])
async def test_a_board_that_does_not_come_to_an_end_is_given_up(bench: Bench, fault: str) -> None:
    bench.stand_in.faults = {"GET": fault}
    with pytest.raises(Unavailable, match=r"no answer within 0\.1 s"):
        await bench.switch(within=0.1).switch_off(NODE)
    assert bench.stand_in.resets == []


async def test_a_request_whose_answer_never_comes_counts_if_the_node_is_read_as_off(bench: Bench) -> None:
    bench.stand_in.faults = {"POST": "hangs"}
    assert await bench.switch(within=patience(0.5)).switch_off(NODE) is True
    assert len(bench.stand_in.resets) == 1


@pytest.mark.parametrize("status", ["400", "401", "405", "307"])
async def test_a_refused_request_changed_nothing_and_is_sent_nowhere_else(bench: Bench, status: str) -> None:
    bench.stand_in.faults, bench.stand_in.obeys = {"POST": status}, False
    with pytest.raises(Unavailable, match=f"answers {status} to ForceOff, so it was refused"):
        await bench.switch().switch_off(NODE)
    assert [method for method, *_ in bench.stand_in.asked].count("POST") == 1


async def test_where_nothing_listens_nothing_was_asked(bench: Bench) -> None:
    switch = bench.switch()
    await bench.stand_in.stop()
    with pytest.raises(Unavailable, match="cannot be reached .*; check the address and the network"):
        await switch.switch_off(NODE)
    await bench.stand_in.start()


# Passwords


@pytest.mark.parametrize("why", ["others", "missing", "empty", "pipe", "lines"])
async def test_a_password_that_others_may_read_or_that_is_none_is_not_used(bench: Bench, why: str) -> None:
    file = bench.password_file
    if why == "others":
        file.chmod(0o604)
    elif why in ("missing", "pipe"):
        file.unlink()
    if why == "pipe":
        os.mkfifo(file, 0o600)
    elif why in ("empty", "lines"):
        file.write_text("" if why == "empty" else f"{PASSWORD}\nmore\n")
    with pytest.raises(Unavailable, match="password_file"):
        await bench.switch().switch_off(NODE)
    assert bench.stand_in.connections == 0
    assert why != "others" or f"chmod 600 {file}" in bench.told[0]


async def test_a_password_may_be_changed_without_a_restart(bench: Bench) -> None:
    switch = bench.switch()
    bench.password_file.write_text("other")
    assert await switch.read_state() == "On"
    assert bench.stand_in.asked[0][2]["authorization"] == "Basic aG9zdGxlcjpvdGhlcg=="


# Trust


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("trust", ["ca", "fingerprint", "verify=false", "none", "other fingerprint"])
async def test_the_password_is_shown_only_to_a_board_that_is_trusted(
    tmp_path: Path, authority: trustme.CA, trust: str
) -> None:
    cert = authority.issue_cert("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    cert.configure_cert(context)
    bench = Bench(tmp_path)
    await bench.stand_in.start(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own = hashlib.sha256(ssl.PEM_cert_to_DER_cert(cert.cert_chain_pems[0].bytes().decode())).hexdigest()
    more = {
        "ca": f"&ca={tmp_path}/ca.pem",
        "fingerprint": f"&fingerprint={own}",
        "verify=false": "&verify=false",
        "none": "",
        "other fingerprint": f"&fingerprint={'0' * 64}",
    }[trust]
    try:
        if trust in ("none", "other fingerprint"):
            with pytest.raises(Unavailable, match="certificate"):
                await bench.switch(more, scheme="redfish").switch_off(NODE)
            assert bench.stand_in.asked == []
        else:
            assert await bench.switch(more, scheme="redfish").switch_off(NODE) is True
    finally:
        await bench.stand_in.stop()


async def test_who_gives_up_leaves_no_connection(bench: Bench) -> None:
    bench.stand_in.faults = {"POST": "hangs"}
    task = asyncio.create_task(bench.switch().switch_off(NODE))
    while not bench.stand_in.resets:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while bench.stand_in._writers:
        await asyncio.sleep(0.005)
