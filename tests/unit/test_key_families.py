"""The families, to the letter of the documents, each on one page."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import random
import re
from pathlib import Path

import pytest

import hostler
import hostler.keys
from hostler.errors import Invalid
from hostler.keys.families import (
    ACTUAL,
    ALERT,
    ALIVE,
    BLADE,
    BLUEPRINT,
    COMMAND,
    ENDPOINT,
    FENCE,
    FILLING,
    HANDLE,
    INSTANCE,
    KEYS,
    LEADER,
    LOCK,
    MEMBER,
    MORE_PDUS,
    MORE_TORS,
    PDU,
    RACK,
    SLICE,
    TARGET,
    TOR,
    USER,
    VM,
    WORKLOAD,
    find,
)
from hostler.keys.key import Key, Union
from hostler.keys.lab import LAB, LabNames, check_user
from hostler.model.lab import ORG, lab_project, lab_user

VM_IDS = {"org": "o1", "project": "p1", "vm": "v1"}


def test_virtual_machines() -> None:
    assert VM.fill(**VM_IDS) == "/plasmavmc/vms/o1/p1/v1"
    assert HANDLE.fill(**VM_IDS) == "/plasmavmc/handles/o1/p1/v1"
    assert LOCK.fill(**VM_IDS) == "/plasmavmc/locks/o1/p1/v1"
    assert VM.prefix(org="o1", project="p1") == "/plasmavmc/vms/o1/p1/"


def test_replicas() -> None:
    assert LEADER.fill(n=1) == "sysvvm/1/1"
    assert FENCE.fill(n=1) == "sysvvm/2/1"
    assert LEADER.prefix() == "sysvvm/1/"


def test_inventory() -> None:
    assert USER.fill(user="u") == "/CloudChamber/V0.1/users/u"
    assert USER.prefix() == "/CloudChamber/V0.1/users/"
    assert RACK.fill(rack="rack1") == "/CloudChamber/V0.1/racks/rack1"
    assert RACK.prefix() == "/CloudChamber/V0.1/racks/"
    assert TOR.fill(rack="rack1") == "/CloudChamber/V0.1/rack/rack1/tor"
    assert PDU.fill(rack="rack1") == "/CloudChamber/V0.1/rack/rack1/pdu"
    assert MORE_TORS.fill(rack="rack1", n=2) == "/CloudChamber/V0.1/rack/rack1/tors/2"
    assert MORE_PDUS.fill(rack="rack1", n=2) == "/CloudChamber/V0.1/rack/rack1/pdus/2"
    assert BLADE.fill(rack="rack1", blade="b2") == "/CloudChamber/V0.1/rack/rack1/blades/b2"
    assert BLADE.prefix(rack="rack1") == "/CloudChamber/V0.1/rack/rack1/blades/"


def test_workloads() -> None:
    ids = {"workload": "w", "instance": "i"}
    assert WORKLOAD.fill(workload="w") == "/CloudChamber/V0.1/workloads/w"
    assert WORKLOAD.prefix() == "/CloudChamber/V0.1/workloads/"
    assert INSTANCE.fill(**ids) == "/CloudChamber/V0.1/workload/w/instances/i"
    assert INSTANCE.prefix(workload="w") == "/CloudChamber/V0.1/workload/w/instances/"
    assert ACTUAL.fill(**ids) == "/CloudChamber/V0.1/workload/w/instance/i/actual"
    assert TARGET.fill(**ids) == "/CloudChamber/V0.1/workload/w/instance/i/target"


def test_deployments() -> None:
    artifact = "org.example:slice:1.0.0"
    assert BLUEPRINT.fill(blueprint="production") == "blueprints/production"
    assert SLICE.fill(node="node-1", artifact=artifact) == "slices/node-1/org.example:slice:1.0.0"
    assert SLICE.prefix(node="node-1") == "slices/node-1/"
    assert (
        ENDPOINT.fill(artifact=artifact, method="process", instance=1) == "endpoints/org.example:slice:1.0.0/process:1"
    )
    assert ALERT.fill(base="org.example:slice", alert="slow") == "/hostler/v1/alerts/org.example:slice/slow"


def test_nodes() -> None:
    assert COMMAND.fill(node="local-1", vm="v1") == "/hostler/v1/nodes/local-1/vms/v1"
    assert COMMAND.prefix(node="local-1") == "/hostler/v1/nodes/local-1/vms/"
    assert MEMBER.fill(node="local-1") == "/hostler/v1/members/local-1"
    assert ALIVE.fill(node="local-1") == "/hostler/v1/alive/local-1"


def test_transfers() -> None:
    assert FILLING.fill() == "/hostler/v1/filling"


def test_names_in_redis() -> None:
    names = LabNames()
    assert names.provision == "vmmanager:provision"
    assert names.decommission == "vmmanager:decommission"
    assert names.dead == "vmmanager:dead"
    assert names.servers == "vmmanager:servers:*"
    assert names.server("userA") == "vmmanager:servers:userA"
    assert names.user_of("vmmanager:servers:userA") == "userA"
    assert names.events("userA") == "vmmanager:events:userA"
    assert names.processing("provision", "w1") == "vmmanager:processing:provision:w1"


def test_names_in_redis_stand_apart_in_a_test_namespace() -> None:
    names = LabNames("Test:Standard:")
    assert names.provision == "Test:Standard:vmmanager:provision"
    assert names.server("u") == "Test:Standard:vmmanager:servers:u"
    assert names.user_of(names.server("u")) == "u"
    with pytest.raises(Invalid):
        names.user_of("vmmanager:servers:u")
    with pytest.raises(Invalid):
        names.processing("other", "w")


NO_USERS = ["", "a\nb", "\0", "\x7f", "a\x85b", "\u2028", "a\u200bb", "\u202e", "\ud800", "x" * 256, "x" * 10_000]


@pytest.mark.parametrize("user", NO_USERS, ids=ascii)
def test_what_cannot_be_printed_is_no_user_id(user: str) -> None:
    with pytest.raises(Invalid, match="webuserid"):
        check_user(user)
    with pytest.raises(Invalid, match="webuserid"):
        LabNames().server(user)


FEDERATED = "f:6fdd9d7c-1b1e-4a6f-9a51-2f1b7f0c3c11:ada@example.org"
ODD_USERS = [
    FEDERATED,
    "a:b",
    "a/b",
    "/",
    "//",
    "*",
    "a*",
    "a?",
    "[a]",
    "a\\",
    "^",
    "^2F",
    "^5E2F",
    ".",
    "..",
    "...",
    " ",
]
ODD_USERS += [
    " a",
    "a b",
    "%2F",
    "{a}",
    "'",
    '"',
    "ä",
    "東" * 255,
    "😀" * 255,
    "/" * 255,
    "^" * 255,
    "x" * 255,
    "a:provision",
]


def test_l2_any_printable_user_id_has_keys_of_its_own() -> None:
    """L2: what is read of a key is the id as it was sent; a front end makes the Redis name of the id alone."""
    names = LabNames()
    for user in ODD_USERS:
        assert check_user(user) == user
        assert LAB.parse(LAB.fill(user=user)) == {"user": user}
        assert lab_user(lab_project(user)) == user
        assert VM.parse(VM.fill(org=ORG, project=lab_project(user), vm="v"))["project"] == lab_project(user)
        assert names.server(user) == f"vmmanager:servers:{user}"
        assert names.user_of(names.server(user)) == user
    assert LAB.fill(user=FEDERATED) == f"/hostler/v1/labs/{FEDERATED}"
    assert LAB.fill(user="a/b") == "/hostler/v1/labs/a^2Fb"
    assert lab_project("*") not in ("*", "..")
    assert LAB.match("/hostler/v1/labs/a^2fb") is None  # no key of ours: it would be the record of a/b at a second key
    assert LAB.match("/hostler/v1/labs/a^41") is None


def test_a_user_id_cannot_name_somebody_elses_record() -> None:
    """L2, L26: no two ids have one key, one project or one name in Redis, of any family; nor do ids that are plain
    change their key, for records of earlier releases stand there."""
    rng, letters = random.Random(2), "ab:/*^.2FE5 %ä"
    users = {"".join(rng.choices(letters, k=rng.randint(1, 6))) for _ in range(20_000)} | set(ODD_USERS)
    assert len({LAB.fill(user=user) for user in users}) == len(users)
    assert len({lab_project(user) for user in users}) == len(users)
    names = LabNames()
    families = (names.server, names.events, names.generation)
    made = [family(user) for family in families for user in users]
    made += [names.next(queue) + user for queue in ("provision", "decommission") for user in users]
    assert len(set(made)) == len(made)
    others = {names.provision, names.decommission, names.dead, names.waiting, names.workers, names.epoch}
    assert others.isdisjoint(made)
    for user in users:
        assert LAB.parse(LAB.fill(user=user)) == {"user": user}
        if not set(":*?[]^\\/").intersection(user) and user not in (".", ".."):
            assert LAB.fill(user=user) == f"/hostler/v1/labs/{user}"


def test_every_key_of_every_page_is_registered_once() -> None:
    pages = {
        value.template: value
        for info in pkgutil.iter_modules(hostler.keys.__path__)
        for value in vars(importlib.import_module(f"hostler.keys.{info.name}")).values()
        if isinstance(value, Key) and not isinstance(value, Union)
    }
    assert pages == {key.template: key for key in KEYS}
    assert len(pages) == len(KEYS)
    found = find("/CloudChamber/V0.1/rack/rack1/pdu")
    assert found is not None
    assert found == (PDU, {"rack": "rack1"})
    assert find("/unheard/of") is None


ROOTS = re.compile(
    r"^/?(plasmavmc|CloudChamber|sysvvm|blueprints|slices|endpoints|hostler/v1)/|^/hostler/|^/?(users|racks?|workloads?)/\{?"
    r"|vmmanager:|^Test:"
)


WORDS = re.compile(
    r"(plasmavmc|CloudChamber|sysvvm|blueprints|slices|endpoints|hostler|users|racks?|workloads?)/|vmmanager:|Test:"
)
"""What a file with such a text has in it: the others are not parsed."""


def test_no_key_is_spelled_anywhere_else() -> None:
    """Texts in code, docstrings aside."""
    source, benchmarks = Path(hostler.__file__).parent, Path(__file__).parents[2] / "bench"
    assert (benchmarks / "__main__.py").exists()
    spelled = []
    for path in (*source.rglob("*.py"), *benchmarks.rglob("*.py")):
        if path.is_relative_to(source) and path.relative_to(source).parts[0] in ("keys", "testing"):
            continue
        text = path.read_text(encoding="utf-8")
        if not WORDS.search(text):
            continue
        tree = ast.parse(text)
        docs = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            said = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
            if isinstance(said, str) and ROOTS.search(said):
                spelled.append(f"{path}:{node.lineno}: {said!r}")
    assert spelled == []


def test_the_page_about_keys_names_every_family_and_its_record() -> None:
    page = (Path(__file__).parents[2] / "docs" / "keys.md").read_text(encoding="utf-8")
    for key in KEYS:
        assert f"| `{key.template}` | `{key.record.__name__}` |" in page
