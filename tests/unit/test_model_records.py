"""The records of the contracts, to the letter."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest

from hostler.errors import Invalid
from hostler.model.deployment import (
    MOVES,
    Artifact,
    Blueprint,
    Endpoint,
    SliceInstance,
    SliceRecord,
    SliceSpec,
    SliceState,
    may_move,
)
from hostler.model.inventory import Blade, Capacity, Condition, Rights, User
from hostler.model.lab import LabDecommission, LabRequest, LabServer, LabStatus, utc_time
from hostler.model.name import fold
from hostler.model.node import node_id, split_node_id
from hostler.model.record import Record
from hostler.model.replica import LeaderRecord
from hostler.model.vm import LockInfo

USER_ID = "550e8400-e29b-41d4-a716-446655440000"
SERVER = {
    "user": "student",
    "address": "2a01:4f8:c17:abcd::1",
    "status": "running",
    "available": True,
    "cloudStatus": "running",
    "serverId": "hcloud-12345678",
    "expiresAt": "2025-10-22T14:30:00Z",
    "webUserId": USER_ID,
    "labId": 5,
}
FROM_THE_DOCUMENTS: list[tuple[Record, Any]] = [
    (LockInfo(timestamp=2**64 - 1, node_id="n1"), {"timestamp": 2**64 - 1, "node_id": "n1"}),
    (LeaderRecord(address="10.0.0.1", holder="h", fence=3), {"address": "10.0.0.1", "holder": "h", "fence": 3}),
    (LabRequest(webuserid=USER_ID, lab_id=5), {"webuserid": USER_ID, "labId": 5}),
    (LabDecommission(webuserid=USER_ID, lab_id=5), {"webuserid": USER_ID, "labId": 5}),
    (LabDecommission(webuserid=USER_ID), {"webuserid": USER_ID}),
    (
        LabServer(
            user="student",
            address="2a01:4f8:c17:abcd::1",
            status=LabStatus.RUNNING,
            available=True,
            cloud_status="running",
            server_id="hcloud-12345678",
            expires_at="2025-10-22T14:30:00Z",
            web_user_id=USER_ID,
            lab_id=5,
        ),
        SERVER,
    ),
    (
        Blueprint(slices=(SliceSpec(artifact="org.example:slice:1.0.0", instances=3),)),
        {"slices": [{"artifact": "org.example:slice:1.0.0", "instances": 3}]},
    ),
    (
        SliceRecord(state=SliceState.ACTIVE, timestamp=1234567890),
        {"state": "ACTIVE", "timestamp": 1234567890},
    ),
    (
        SliceRecord(
            state=SliceState.ACTIVE,
            timestamp=1,
            instances={1: SliceInstance(state=SliceState.ACTIVE), 3: SliceInstance(state=SliceState.LOAD)},
        ),
        {"state": "ACTIVE", "timestamp": 1, "instances": {"1": {"state": "ACTIVE"}, "3": {"state": "LOAD"}}},
    ),
    (
        Endpoint(node_id="node-1", instance=1, state=SliceState.ACTIVE),
        {"node-id": "node-1", "instance": 1, "state": "ACTIVE"},
    ),
]


@pytest.mark.parametrize(("record", "document"), FROM_THE_DOCUMENTS, ids=lambda x: type(x).__name__)
def test_the_json_is_that_of_the_document(record: Record, document: Any) -> None:
    written = json.loads(record.encode())
    assert written == document
    assert list(written) == list(document)
    assert b" " not in record.encode()
    assert type(record).decode(json.dumps(document).encode(), strict=True) == record


@pytest.mark.parametrize(
    "lab_id", ["true", "false", "0", "-1", '"5"', "5.0", "5e0", "null", "2147483648", "[]", "1e99"]
)
def test_a_lab_id_is_a_whole_number_from_one(lab_id: str) -> None:
    data = f'{{"webuserid":"u","labId":{lab_id}}}'.encode()
    # L5: in a decommission, null means that the field was omitted.
    for kind in (LabRequest,) if lab_id == "null" else (LabRequest, LabDecommission):
        with pytest.raises(Invalid, match=r"at \$\.labId"):
            kind.decode(data)


@pytest.mark.parametrize("user", ["null", '""', "1", '"' + "x" * 256 + '"'])
def test_a_request_names_its_user(user: str) -> None:
    with pytest.raises(Invalid, match=r"at \$\.webuserid"):
        LabRequest.decode(f'{{"webuserid":{user},"labId":1}}'.encode())


@pytest.mark.parametrize("missing", SERVER)
def test_a_lab_record_has_all_nine_fields(missing: str) -> None:
    with pytest.raises(Invalid, match=missing):
        LabServer.decode(json.dumps({name: value for name, value in SERVER.items() if name != missing}).encode())


@pytest.mark.parametrize(
    "instant", ["2025-10-22T14:30:00", "2025-10-22T14:30:00+00:00", "2025-10-22", "x", "2025-10-22T14:30:00Z\n"]
)
def test_expires_at_ends_in_z(instant: str) -> None:
    with pytest.raises(Invalid, match=r"at \$\.expiresAt"):
        LabServer.decode(json.dumps(SERVER | {"expiresAt": instant}).encode())


def test_an_instant_survives_its_text() -> None:
    wall = 1761143400.9
    server = LabServer.decode(json.dumps(SERVER | {"expiresAt": utc_time(wall)}).encode())
    assert server.expires_at == "2025-10-22T14:30:00Z"
    assert server.expires == 1761143400.0


@pytest.mark.parametrize("text", ["a:b:1", "org.example:slice:1.0.0-SNAPSHOT+build.5", "_a:b_c:0"])
def test_an_artifact_is_its_three_parts(text: str) -> None:
    assert str(Artifact.parse(text)) == text
    assert Artifact.parse(text).version == text.split(":")[2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a:b",
        "a:b:",
        ":b:1",
        "a::1",
        "a:b:1:2",
        "a:b:1\n",
        "a/b:c:1",
        "a b:c:1",
        "ä:b:1",
        "a:b:" + "1" * 252,
        ".:..:1",
    ],
)
def test_a_malformed_artifact_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(Invalid):
        Artifact.parse(text)
    with pytest.raises(Invalid, match=r"Blueprint at \$\.slices\[0\]\.artifact"):
        Blueprint.decode(json.dumps({"slices": [{"artifact": text, "instances": 1}]}).encode())


@pytest.mark.parametrize("instances", [0, -1, True, 1.5, "3", None])
def test_a_blueprint_wants_at_least_one_instance(instances: object) -> None:
    with pytest.raises(Invalid, match=r"\$\.slices\[0\]\.instances"):
        Blueprint.decode(json.dumps({"slices": [{"artifact": "a:b:1", "instances": instances}]}).encode())


def test_the_moves_of_a_slice_are_those_of_the_contract() -> None:
    contract = """LOAD LOADING, LOADING LOADED, LOADING FAILED, LOADED ACTIVATE, LOADED UNLOAD, ACTIVATE ACTIVATING,
        ACTIVATING ACTIVE, ACTIVATING FAILED, ACTIVE DEACTIVATE, DEACTIVATE DEACTIVATING, DEACTIVATING LOADED,
        DEACTIVATING FAILED, FAILED UNLOAD, UNLOAD UNLOADING, UNLOADING gone, LOAD UNLOAD, ACTIVATE FAILED,
        ACTIVE FAILED, DEACTIVATE FAILED, UNLOADING FAILED, gone LOAD"""
    states: dict[str, SliceState | None] = {state.value: state for state in SliceState} | {"gone": None}
    legal = {(states[old], states[new]) for old, new in (move.split() for move in contract.split(","))}
    for old, new in itertools.product(states.values(), repeat=2):
        assert may_move(old, new) is ((old, new) in legal), (old, new)
        dead = (old, new) in legal or (old is not None and new is None)
        assert may_move(old, new, node_dead=True) is dead, (old, new)


def test_every_state_has_a_way_out_and_a_way_in() -> None:
    def reach(start: SliceState | None) -> set[SliceState | None]:
        seen, todo = set(), [start]
        while todo:
            for state in MOVES[todo.pop()]:
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
        return seen

    assert reach(None) == {*SliceState, None}
    assert all(None in reach(state) for state in SliceState)


def test_a_piece_of_hardware_is_on_duty_only_if_enabled_and_operational() -> None:
    blade = Blade(name="b1", capacity=Capacity(cpus=1, memory_mib=1))
    assert blade.on_duty
    assert not msgspec.structs.replace(blade, enabled=False).on_duty
    for condition in set(Condition) - {Condition.OPERATIONAL}:
        assert not msgspec.structs.replace(blade, condition=condition).on_duty
    assert {c.value for c in Condition} == {
        "not_in_service", "operational", "burn_in", "out_for_repair", "retiring", "retired",
    }  # fmt: skip


def test_a_user_starts_without_rights() -> None:
    rights = json.loads(User(name="Ada").encode())["rights"]
    assert set(rights.values()) == {False}
    assert set(rights) == {
        "manage_accounts", "step_time", "modify_workloads", "modify_inventory", "inject_faults", "perform_repairs",
    }  # fmt: skip
    assert User(name="Ada").rights == Rights()


def test_a_node_is_a_blade_of_a_rack() -> None:
    assert split_node_id(node_id("local", "1")) == ("local", "1")
    assert split_node_id(node_id("r", "b-2")) == ("r", "b-2")
    for rack, blade in (("a-b", "1"), ("", "1"), ("a", "")):
        with pytest.raises(Invalid):
            node_id(rack, blade)
    for text in ("", "a", "-a", "a-"):
        with pytest.raises(Invalid):
            split_node_id(text)


def test_names_that_differ_in_case_or_composition_are_one() -> None:
    assert fold("STRASSE") == fold("straße")
    assert fold("E\u0301va") == fold("éVA")
    assert fold("ΣΊΣΥΦΟΣ") == fold("σίσυφος")
    assert fold("ada") != fold("adá")


def test_folding_twice_is_folding_once() -> None:
    marks = ("", "\u0301", "\u0345", "\u0308\u0301", "\u0307")
    for point in range(0x110000):
        if not 0xD800 <= point < 0xE000 and (chr(point).isalpha() or point < 0x500):
            for mark in marks if point < 0x2200 else ("",):
                once = fold(chr(point) + mark)
                assert fold(once) == once
