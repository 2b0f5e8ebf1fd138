"""What a server carries of ours comes back exactly, and fits what Hetzner Cloud takes."""

from __future__ import annotations

import msgspec
import pytest
from hcloud.helpers.labels import LabelValidator
from hetzner.cloud import check_labels
from hypothesis import given
from hypothesis import strategies as st

from hostler.drivers.machines.hetzner.api_types import state_of
from hostler.drivers.machines.hetzner.labels import (
    Card,
    card_of,
    encode_text,
    pack_key,
    server_name,
    snapshot_labels,
    unpack_key,
)
from hostler.drivers.machines.seed import new_host_key
from hostler.errors import Damaged, Invalid
from hostler.model.vm import MachineState
from hostler.ports.machines import Label

TEXTS = st.text(max_size=200) | st.text("ab_.-0:é/", max_size=80)
NAMES = TEXTS.filter(bool)
LABEL = Label("labs", "550e8400-e29b-41d4-a716-446655440000", "vm-1", "c", "local-1")
CARD = Card(label=LABEL, spec="0" * 32, shape=(1, 2, 3))


@given(
    label=st.builds(Label, TEXTS, TEXTS, NAMES, TEXTS, TEXTS),
    tags=st.dictionaries(TEXTS, TEXTS, max_size=5),
    image=TEXTS,
    user=TEXTS,
    restoring_to=TEXTS,
    numbers=st.tuples(*[st.integers(0, 2**63 - 1)] * 3),
    snapshots=st.booleans(),
)
def test_every_card_comes_back_from_labels_that_hetzner_cloud_takes(  # noqa: PLR0917
    label: Label,
    tags: dict[str, str],
    image: str,
    user: str,
    restoring_to: str,
    numbers: tuple[int, ...],
    snapshots: bool,
) -> None:
    resets, restored, restoring = numbers
    card = Card(
        label=label,
        tags=tags,
        spec="a" * 32,
        shape=(4096, 2**30, 2**30),
        image=image,
        user=user,
        resets=resets,
        restored=restored,
        restoring=restoring,
        restoring_to=restoring_to,
        snapshots=snapshots,
    )
    labels = card.labels()
    assert LabelValidator.validate_verbose(labels) == (True, "")
    check_labels(labels)
    assert card_of(labels) == card


@given(st.lists(NAMES, min_size=2, max_size=2, unique=True))
def test_machines_of_two_ids_have_servers_of_two_names_and_each_is_a_host_name(vms: list[str]) -> None:
    one, other = map(server_name, vms)
    assert one != other
    for name in (one, other):
        assert len(name) <= 63
        assert all(character in "abcdefghijklmnopqrstuvwxyz0123456789-" for character in name)
        assert not name.endswith("-")


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", ""), ("local-1", "local-1"), ("2026-11-15T22:00:00Z", "2026-11-15T22_3a00_3a00Z"), ("a_b", "a_5fb")],
)
def test_what_people_look_for_can_be_read(text: str, shown: str) -> None:
    assert encode_text("key", text) == {"key": shown}


def test_tags_stand_under_their_own_names() -> None:
    labels = Card(label=LABEL, spec="", shape=(1, 1, 1), tags={"lab": "5", "of whom": "x"}).labels()
    assert labels["hostler.tag/lab"] == "5"
    assert labels["managed-by"] == "hostler"
    assert labels["hostler/project"] == LABEL.project
    assert "of whom" not in str(labels)


def test_text_that_is_none_is_refused() -> None:
    for card in (
        Card(label=Label("o", "p", "v"), spec="", shape=(1, 1, 1), tags={"a": "\ud800"}),
        Card(label=Label("o", "p", "v"), spec="", shape=(1, 1, 1), tags={"a b": "\ud800"}),
    ):
        with pytest.raises(Invalid):
            card.labels()


@pytest.mark.parametrize(
    "change",
    [
        {"hostler/vm": "another"},
        {"hostler/shape": "1-2"},
        {"hostler/resets": "many"},
        {"hostler/org": "_ff"},
        {"hostler.odd/0.0": "aaaa"},
        {"hostler.tag/x.0": "!"},
    ],
)
def test_labels_that_somebody_has_changed_are_told_of(change: dict[str, str]) -> None:
    with pytest.raises(Damaged):
        card_of(CARD.labels() | change)


def test_what_is_not_ours_is_not_read() -> None:
    assert card_of({}) is None
    assert card_of({"managed-by": "terraform", "hostler/id": "x"}) is None
    assert card_of({"managed-by": "hostler"}) is None


def test_a_host_key_fits_into_a_label() -> None:
    public = new_host_key().public
    assert unpack_key(pack_key(public)).split() == public.split()[:2]
    assert len(pack_key(public)) <= 63
    for bad in ("", "abc", "!!"):
        assert unpack_key(bad) == ""


def test_a_snapshot_is_named_by_its_labels() -> None:
    retained = msgspec.structs.replace(CARD, home="v-1", retained="v-1", retained_at=5)
    for card in (CARD, retained):
        labels = snapshot_labels(card, "before the exam: 1")
        assert LabelValidator.validate(labels)
        assert labels["hostler/id"] == card.labels()["hostler/id"]
        assert card_of(card.labels()) == card
    assert CARD.labels()["hostler/id"] != retained.labels()["hostler/id"]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("running", MachineState.RUNNING),
        ("off", MachineState.STOPPED),
        ("stopping", MachineState.STOPPING),
        ("deleting", MachineState.CREATING),
        *((each, MachineState.STARTING) for each in ("initializing", "starting", "migrating", "rebuilding", "unknown")),
        ("a word of next year", MachineState.STARTING),
    ],
)
def test_their_states_are_ours(status: str, state: MachineState) -> None:
    assert state_of(status, CARD) is state
    for life in ("creating", "deleting"):
        assert state_of(status, Card(label=LABEL, spec="", shape=(1, 1, 1), life=life)) is MachineState.CREATING
