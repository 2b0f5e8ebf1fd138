"""Test namespaces: where each key stands, and the exact way back."""

from __future__ import annotations

import pytest
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.errors import Invalid
from hostler.keys.families import KEYS
from hostler.keys.key import Key
from hostler.keys.lab import LabNames
from hostler.keys.namespace import PRODUCTION, SLASH_ROOTS, TEST_ROOT, Namespace, choose
from hostler.settings import NamespaceOptions

STANDARD = Namespace("Standard")
EXAMPLES = {
    "/plasmavmc/vms/o/p/v": "plasmavmc/vms/o/p/v",
    "sysvvm/1/1": "sysvvm/1/1",
    "/CloudChamber/V0.1/users/u": "users/u",
    "/CloudChamber/V0.1/racks/r": "racks/r",
    "/CloudChamber/V0.1/rack/r/pdu": "rack/r/pdu",
    "/CloudChamber/V0.1/workloads/w": "workloads/w",
    "/CloudChamber/V0.1/workload/w/instances/1": "workload/w/instances/1",
    "blueprints/production": "blueprints/production",
    "slices/node-1/a:b:1": "slices/node-1/a:b:1",
    "endpoints/a:b:1/m:1": "endpoints/a:b:1/m:1",
    "/hostler/v1/nodes/n-1/vms/v": "hostler/v1/nodes/n-1/vms/v",
}
SAMPLE = {
    "artifact": "a:b:1",
    "base": "a:b",
    **dict.fromkeys(("number", "n", "instance", "life", "fence", "epoch"), "1"),
}


def sample(key: Key[object]) -> str:
    return key.fill(**{name: SAMPLE.get(name, name) for name in key.names})


@pytest.mark.parametrize(("key", "tail"), EXAMPLES.items())
def test_a_key_stands_where_the_contract_says(key: str, tail: str) -> None:
    assert STANDARD.stored(key) == f"/CloudChamber/V0.1/Test/Standard/{tail}"
    assert STANDARD.production(STANDARD.stored(key)) == key
    assert PRODUCTION.stored(key) == key == PRODUCTION.production(key)


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_every_family_has_its_place_and_its_way_back(key: Key[object]) -> None:
    text = sample(key)
    assert STANDARD.stored(text).startswith("/CloudChamber/V0.1/Test/Standard/")
    assert STANDARD.production(STANDARD.stored(text)) == text
    assert Namespace("Other").production(STANDARD.stored(text)) is None
    assert STANDARD.production(text) is None


def test_no_two_families_share_a_place() -> None:
    places = {STANDARD.stored(sample(key)) for key in KEYS}
    assert len(places) == len(KEYS)


@pytest.mark.parametrize(
    "key",
    ["users/x", "/users/x", "plasmavmc/vms/o/p/v", "/slices/x", "/unheard/of", "//plasmavmc/x",
     "/CloudChamber/V0.1/slices/n",
     "/CloudChamber/V0.1/plasmavmc/x", "/CloudChamber/V0.1/users", "/CloudChamber/V0.1users/x", "/CloudChamber/V0.1",
     "/", "/CloudChamber/V0.1/", "/CloudChamber/V0.1/Test/Standard/users/x", "/CloudChamber/V0.2/users/x", "/plasmavmc",
     "/CloudChamber/V0.1//users/x", "hostler/v1/x"],
)  # fmt: skip
def test_a_key_without_a_way_back_is_refused(key: str) -> None:
    with pytest.raises(Invalid, match="test namespace Standard"):
        STANDARD.stored(key)


texts = st.text("abu/\0é", max_size=6) | st.sampled_from(
    [root[:cut] for root in (*SLASH_ROOTS, "slices/") for cut in range(len(root) + 1)]
)
texts |= st.builds(str.__add__, texts, st.text("ab/s", max_size=4))


@settings(max_examples=dose(test=200, full=10000), deadline=None)
@given(texts, texts)
def test_the_way_there_and_back_is_exact_and_never_merges_two_keys(one: str, other: str) -> None:
    places = []
    for key in (one, other):
        try:
            places.append(STANDARD.stored(key))
        except Invalid:
            return
        assert places[-1].startswith(STANDARD.prefix)
        assert STANDARD.production(places[-1]) == key
    assert (places[0] == places[1]) == (one == other)


@settings(max_examples=dose(test=200, full=10000), deadline=None)
@given(texts)
def test_a_place_that_no_key_leads_to_is_not_of_the_namespace(tail: str) -> None:
    key = STANDARD.production(STANDARD.prefix + tail)
    if key is not None:
        assert STANDARD.stored(key) == STANDARD.prefix + tail


def options(test: bool, unique: bool, clean: bool) -> NamespaceOptions:
    return NamespaceOptions(use_test_namespace=test, use_unique_instance=unique, pre_clean_store=clean)


def test_the_options_choose_the_namespace() -> None:
    wall = 1763207423.25
    assert choose(options(False, False, False), wall=wall, token="t").name is None
    assert choose(options(False, True, False), wall=wall, token="t").name is None
    assert choose(options(True, False, False), wall=wall, token="t").prefix == "/CloudChamber/V0.1/Test/Standard/"
    unique = choose(options(True, True, False), wall=wall, token="4f")
    assert unique.prefix == "/CloudChamber/V0.1/Test/20251115T115023.250000Z-4f/"
    assert unique.redis_prefix == "Test:20251115T115023.250000Z-4f:"


def test_unique_names_sort_by_age() -> None:
    walls = [0.0, 1.5, 999999999.0, 1000000000.0, 1763207423.000001, 1763207423.1, 4102444800.0]
    names = [choose(options(True, True, False), wall=wall, token="ff").prefix for wall in walls]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert not any(name.startswith(f"{TEST_ROOT}Standard") for name in names)


@pytest.mark.parametrize(("test", "unique", "clean"), [(True, True, True), (False, True, True), (False, False, True)])
def test_pre_clean_is_refused_with_a_unique_instance_and_outside_of_tests(
    test: bool, unique: bool, clean: bool
) -> None:
    with pytest.raises(Invalid, match="PreCleanStore"):
        options(test, unique, clean)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "x" * 64, "a:b", "Standard/", "ä", "a\n"])
def test_a_namespace_name_cannot_leave_its_segment(name: str) -> None:
    with pytest.raises(Invalid, match="namespace"):
        Namespace(name)


def test_redis_names_follow() -> None:
    assert LabNames(STANDARD.redis_prefix).provision == "Test:Standard:vmmanager:provision"
    assert LabNames(PRODUCTION.redis_prefix).provision == "vmmanager:provision"
