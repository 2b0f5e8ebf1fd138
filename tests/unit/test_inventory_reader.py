"""Large inventory files are read by a process of their own, and say the same."""

from __future__ import annotations

import sys

import pytest

from hostler.engine.inventory.export import read_document
from hostler.entry import inventory_reader
from hostler.entry.inventory_reader import SMALL, read_aside
from hostler.errors import Invalid, Unavailable

RACK = "  - {name: r%d, pdus: [{name: P1, ports: 3}], tors: [{name: t, ports: 2}], blades: {count: 2}}\n"
LARGE = "racks:\n" + "".join(RACK % n for n in range(SMALL // 80))


@pytest.mark.slow
def test_a_large_file_says_the_same_and_its_mistakes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said = read_document(LARGE, "dc.yaml")
    wrong = LARGE + "  - {name: r1}\n"
    with pytest.raises(Invalid) as expected:
        read_document(wrong, "dc.yaml")
    monkeypatch.delattr(inventory_reader, "read_document")  # it is not read here
    assert read_aside(LARGE, "dc.yaml") == said
    with pytest.raises(Invalid) as found:
        read_aside(wrong, "dc.yaml")
    assert str(found.value) == str(expected.value)


def test_where_there_is_no_answer_one_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(inventory_reader, "WITHIN", 0.001)
        with pytest.raises(Unavailable, match="not parsed within"):
            read_aside(LARGE, "dc.yaml")
    for python, why in (("/bin/false", "ended with code 1"), ("/nowhere/python", "No such file")):
        monkeypatch.setattr(sys, "executable", python)
        with pytest.raises(Unavailable, match=why):
            read_aside(LARGE, "dc.yaml")
