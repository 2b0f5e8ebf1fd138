"""Keys: a part never leaves its segment; filling and parsing are exact inverses."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from dose import dose
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hostler.errors import Invalid
from hostler.keys.families import BLADE, BLUEPRINT, ENDPOINT, KEYS, MEMBER, RACK, SLICE, USER, VM, WORKLOAD, find
from hostler.keys.key import Key
from hostler.keys.template import MAX_PART, check_part
from hostler.model.name import fold

ODD = (
    "/",
    "..",
    ".",
    "",
    "a/b",
    "a:b",
    ":",
    "a\nb",
    "\0",
    "\x7f",
    "\x85",
    "\u2028",
    "\ud800",
    "%2f",
    "rack1",
    "rack10",
)
ODD += ("{vm}", "é", "e\u0301", "İ", "ẞ", "\u212a", "ﬃ", "a b", " ", "*", "\\", "😀", "x" * 255, "x" * 256, "é" * 128)
hostile = st.text(max_size=12) | st.sampled_from((*ODD, "0", "01"))
PAIRS = Key("pairs/{a}:{b}-{c}/x{d}y/{e}", int)
TEMPLATES = (*KEYS, PAIRS)


@pytest.mark.parametrize(
    "bad",
    ["", ".", "..", "/", "a/", "/a", "a/b", "\0", "a\n", "\x1f", "\x7f", "\x80", "\x9f", "\u2028", "\u2029", "\ud800",
     "a\udfff", "x" * (MAX_PART + 1), "é" * (MAX_PART // 2 + 1), None, 1, b"a", ["a"]],
)  # fmt: skip
def test_a_part_that_could_leave_its_segment_is_refused(bad: Any) -> None:
    with pytest.raises(Invalid, match="^thing"):
        check_part(bad, "thing")
    for name in VM.names:
        # The project of a lab is as long as a web user id may be.
        longer = bad * 4 if name == "project" and isinstance(bad, str) and len(bad) > 100 else bad
        with pytest.raises(Invalid, match=f"^{name}"):
            VM.fill(**({"org": "o", "project": "p", "vm": "v"} | {name: longer}))
    with pytest.raises(Invalid, match="^org"):
        VM.prefix(org=bad)


@pytest.mark.parametrize(
    "good", ["a", "...", ".a", " ", "a b", "x" * MAX_PART, "é" * (MAX_PART // 2), "😀", "%2F", "a:b", "*"]
)
def test_any_other_text_is_a_part(good: str) -> None:
    ids = {"org": "o", "project": good, "vm": "v"}
    assert VM.fill(**ids) == f"/plasmavmc/vms/o/{good}/v"
    assert VM.parse(VM.fill(**ids)) == ids


@settings(max_examples=dose(test=120, full=4000), deadline=None)
@given(st.sampled_from(TEMPLATES), st.data())
def test_filling_and_parsing_are_inverses(key: Key[Any], data: st.DataObject) -> None:
    values: dict[str, str | int] = {}
    for name in key.names:
        numbers = st.integers(-1, 10**19)
        artifacts = st.just("org.example:slice:1.0.0")
        values[name] = data.draw(hostile | numbers | artifacts if name in ("n", "instance", "artifact") else hostile)
    try:
        full = key.fill(**values)
    except Invalid:
        return
    parts = key.parse(full)
    assert key.fill(**parts) == full
    assert full.count("/") == key.template.count("/")
    for name in key.names:
        assert parts[name] in (str(values[name]), fold(str(values[name])))
    for count in range(len(key.names)):
        leading = {name: parts[name] for name in key.names[:count]}
        try:
            prefix = key.prefix(**leading)
        except Invalid:
            continue  # half of a segment
        assert prefix.endswith("/")
        assert full.startswith(prefix)


@settings(max_examples=dose(test=80, full=3000), deadline=None)
@given(
    st.lists(hostile | st.sampled_from(["slices", "endpoints", "a:b:1", "plasmavmc", "vms", "m:1"]), max_size=6).map(
        "/".join
    )
)
@example("endpoints/a:b:1/m:1")
@example("endpoints/a:b:1/m:n:1")
@example("pairs/a:b-c/xdy/e")
def test_what_parses_is_what_filling_makes(text: str) -> None:
    for key in TEMPLATES:
        parts = key.match(text)
        if parts is not None:
            assert key.fill(**parts) == text
        else:
            with pytest.raises(Invalid):
                key.parse(text)


def test_two_sets_of_parts_never_make_one_key() -> None:
    texts = ["a", "b", "a:b", ":", "a-b", "-", "1", "a:1", "é", "A"]
    made: dict[str, tuple[str, ...]] = {}
    for a in texts:
        for b in texts:
            for c in texts:
                try:
                    key = PAIRS.fill(a=a, b=b, c=c, d="y", e=c)
                except Invalid:
                    continue
                assert made.setdefault(key, (a, b, c)) == (a, b, c)
    assert made


def test_parts_that_share_a_segment_cannot_hold_its_separator() -> None:
    with pytest.raises(Invalid, match="method 'a:b'"):
        ENDPOINT.fill(artifact="g:n:1", method="a:b", instance=1)
    assert ENDPOINT.match("endpoints/g:n:1/a:b:1") is None


@pytest.mark.parametrize("number", [-1, True, 1.0, "01", "-1", "+1", " 1", "1_0", "١", "", None, 10**18])
def test_a_number_has_one_spelling(number: Any) -> None:
    with pytest.raises(Invalid, match="^instance"):
        ENDPOINT.fill(artifact="g:n:1", method="m", instance=number)
    if isinstance(number, str):
        assert ENDPOINT.match(f"endpoints/g:n:1/m:{number}") is None


@pytest.mark.parametrize("artifact", ["a", "a:b", "a:b:c:d", "a:b:ä", ""])
def test_an_artifact_in_a_key_is_one(artifact: str) -> None:
    with pytest.raises(Invalid, match="^artifact"):
        SLICE.fill(node="n-1", artifact=artifact)
    assert SLICE.match(f"slices/n-1/{artifact}") is None


def test_a_prefix_ends_at_a_slash_so_rack1_does_not_match_rack10() -> None:
    assert BLADE.prefix(rack="rack1") == "/CloudChamber/V0.1/rack/rack1/blades/"
    assert not BLADE.fill(rack="rack10", blade="b").startswith(BLADE.prefix(rack="rack1"))
    assert VM.prefix() == "/plasmavmc/vms/"
    assert VM.prefix(org="a") == "/plasmavmc/vms/a/"
    assert VM.prefix(org="a", project="b") == "/plasmavmc/vms/a/b/"
    assert ENDPOINT.prefix(artifact="a:b:1") == "endpoints/a:b:1/"
    assert BLUEPRINT.prefix() == "blueprints/"


@pytest.mark.parametrize(
    "parts", [{"project": "p"}, {"org": "o", "vm": "v"}, {"org": "o", "project": "p", "vm": "v"}, {"x": "y"}]
)
def test_a_prefix_takes_leading_parts_only(parts: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="prefix of"):
        VM.prefix(**parts)


def test_a_prefix_takes_whole_segments() -> None:
    with pytest.raises(Invalid, match="whole segments"):
        ENDPOINT.prefix(artifact="a:b:1", method="m")


@pytest.mark.parametrize(
    "parts",
    [{}, {"org": "o"}, {"org": "o", "project": "p", "vm": "v", "x": "y"}, {"org": "o", "project": "p", "VM": "v"}],
)
def test_a_key_takes_exactly_its_parts(parts: dict[str, str]) -> None:
    with pytest.raises(Invalid, match="needs org, project, vm"):
        VM.fill(**parts)


@pytest.mark.parametrize(
    "template", ["{a}{b}", "{a}::{b}", "{a}/{a}", "{store}", "{a:nope}", "{A}", "{a", "a}", "{}", "x/{lease}"]
)
def test_a_template_that_would_be_ambiguous_cannot_be_made(template: str) -> None:
    with pytest.raises(ValueError, match="template"):
        Key(template, int)


def test_names_are_folded_in_keys_and_ids_are_not() -> None:
    assert USER.fill(user="Straße") == USER.fill(user="STRASSE")
    assert RACK.fill(rack="Rack1") == "/CloudChamber/V0.1/racks/rack1"
    assert BLADE.fill(rack="R", blade="E\u0301") == "/CloudChamber/V0.1/rack/r/blades/é"
    assert WORKLOAD.fill(workload="Render") == "/CloudChamber/V0.1/workloads/render"
    assert SLICE.fill(node="Local-1", artifact="Org:B:1") == "slices/local-1/Org:B:1"
    assert MEMBER.fill(node="Local-1") == "/hostler/v1/members/local-1"
    assert VM.fill(org="A", project="b", vm="C") == "/plasmavmc/vms/A/b/C"
    assert USER.match("/CloudChamber/V0.1/users/Admin") is None


def test_a_name_that_grows_too_long_when_folded_is_refused() -> None:
    name = "ŉ" * 120
    assert len(name.encode()) <= MAX_PART < len(fold(name).encode())
    with pytest.raises(Invalid, match="bytes"):
        USER.fill(user=name)


@pytest.mark.slow
def test_folding_never_makes_a_slash_or_a_control_character() -> None:
    for point in range(0x110000):
        if not 0xD800 <= point < 0xE000:
            char = chr(point)
            folded = fold(char)
            assert folded, hex(point)
            assert "/" not in folded or char == "/", hex(point)
            if unicodedata.category(char) != "Cc":
                assert not any(unicodedata.category(c) == "Cc" for c in folded), hex(point)


def test_a_rack_holds_no_hyphen() -> None:
    with pytest.raises(Invalid, match="must not hold a '-'"):
        RACK.fill(rack="a-b")
    assert BLADE.fill(rack="ab", blade="c-d").endswith("/rack/ab/blades/c-d")


@settings(max_examples=dose(test=60, full=2000), deadline=None)
@given(st.lists(hostile, max_size=8).map("/".join) | hostile)
def test_a_key_belongs_to_one_family_at_most(text: str) -> None:
    owners = [key for key in KEYS if key.match(text) is not None]
    assert len(owners) <= 1
    assert (find(text) is None) == (not owners)
