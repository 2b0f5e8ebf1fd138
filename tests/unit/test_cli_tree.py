"""Trees and chains of what happened, as people read them."""

from __future__ import annotations

import re
from typing import Any

from hostler.entry.cli import events
from hostler.model.control_api import Sort, TraceView

VM = "vm acme/web/www"


def happened(id_: str, parent: str = "", **fields: Any) -> TraceView:
    given: dict[str, Any] = {"sort": Sort.DECISION, "revision": int(id_), "at": float(id_), "actor": "machines"}
    given |= {"what": "place", "subject": VM, "why": f"step {id_}"}
    return TraceView(id=id_, parent=parent, **{**given, **fields})


def lines(views: list[TraceView]) -> list[str]:
    return [re.sub(r"^[0-9:]{8}  ", "", line) for line in events.tree_lines(views)]


def test_each_stands_under_what_led_to_it_oldest_first() -> None:
    views = [
        happened("6", "5", subject="node r1-b1", actor="nodes"),
        happened("5", "2"),
        happened("4", "2"),
        happened("3"),
        happened("2", "1"),
        happened("1", sort=Sort.WISH, actor="anna", what="vm.create"),
    ]
    assert lines(views) == [
        f"{VM}: vm.create, requested by anna",
        f"└ {VM}: step 2 (machines)",
        f"  ├ {VM}: step 4 (machines)",
        f"  └ {VM}: step 5 (machines)",
        "    └ node r1-b1: step 6 (nodes)",
        f"{VM}: step 3 (machines)",
    ]


def test_what_hangs_on_nothing_that_is_known_stands_alone_and_says_so() -> None:
    assert lines([happened("2", open=True), happened("3", "gone")]) == [
        f"… {VM}: step 2 (machines)",
        f"{VM}: step 3 (machines)",
    ]


def test_a_tree_may_be_as_deep_as_what_happened_is_long() -> None:
    views = [happened(str(number), str(number - 1) if number > 1 else "") for number in range(1, 3_001)]
    found = list(events.tree_lines(views))
    assert len(found) == 3_000
    assert found[-1].endswith("└ vm acme/web/www: step 3000 (machines)")


def test_a_chain_names_what_is_about_something_else() -> None:
    views = [
        happened("3", "2"),
        happened("2", "1", subject="node r1-b1", actor="nodes", why="it fell silent"),
        happened("1", sort=Sort.WISH, actor="anna", what="vm.create", why="wished for by anna: vm.create", at=None),
    ]
    found = [re.sub(r"\d\d:\d\d:\d\d", "T", line) for line in events.chain_lines(views, VM)]
    assert found == [
        "├ step 3 (machines, T)",
        "├ node r1-b1: it fell silent (nodes, T)",
        "└ wished for by anna: vm.create (--:--:--)",
    ]


def test_days_are_shown_where_there_are_several_and_nothing_moves_the_cursor() -> None:
    nasty = happened("1", why="\x1b[2J\n")
    far = happened("2", at=900_000.0)
    assert all("1970-01-" in line for line in events.tree_lines([nasty, far]))
    assert not any(
        "\x1b" in line or "\n" in line for line in (*events.tree_lines([nasty]), *events.chain_lines([nasty], VM))
    )
