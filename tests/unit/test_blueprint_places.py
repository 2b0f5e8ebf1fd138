"""Where in a file something is wrong, and what a gate is told by."""

from __future__ import annotations

import json
import tomllib
from time import process_time

import pytest

from hostler.engine.deployments.blueprint_file import looked_through
from hostler.engine.deployments.toml_lines import line_of, lines_of
from hostler.errors import Invalid
from hostler.settings import toml

TOML = """\
name = "shop"

[[slices]]
artifact = "a:b:1"     # a comment
instances = 2

[slices.strategy]
type = "canary"

[[slices]]
artifact = "a:c:1"
settings.environment."A B" = "1"
strategy = {type = "rolling"}
needs = [
  "a:b",
]
"""
JSON = """\
{
  "name": "shop",
  "slices": [
    {"artifact": "a:b:1", "instances": 2,
     "strategy": {"type": "canary",
       "gate": {"min_calls": 1}}},
    {
      "needs": ["a:b",
                "a {[: c"],
      "artifact": "a:c:1"
    }
  ]
}
"""


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("name", 1),
        ("slices", 3),
        ("slices[0]", 3),
        ("slices[0].instances", 5),
        ("slices[0].strategy.type", 8),
        ("slices[0].strategy.gate.min_calls", 7),
        ("slices[1].artifact", 11),
        ("slices[1].settings.environment", 12),
        ("slices[1].strategy.type", 13),
        ("slices[1].needs[0]", 14),
        ("slices[1].instances", 10),
        ("nothing", 0),
        ("", 0),
    ],
)
def test_a_place_is_found_in_toml(place: str, line: int) -> None:
    assert line_of(TOML, place) == line


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("name", 2),
        ("slices", 3),
        ("slices[0].instances", 4),
        ("slices[0].strategy.type", 5),
        ("slices[0].strategy.gate.min_calls", 6),
        ("slices[1]", 7),
        ("slices[1].needs[1]", 8),
        ("slices[1].artifact", 10),
        ("slices[1].instances", 7),
        ("nothing", 0),
    ],
)
def test_a_place_is_found_in_json(place: str, line: int) -> None:
    assert line_of(JSON, place) == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{\n"slices": [\n}', 3),
        ('name = "a"\nslices = [', 2),
        ('[[slices]]\nartifact = "a:b:1"\ninstances = "three"', 3),
        ('[[slices]]\nartifact = "a:b:1"\ninstances = 1\nneeds = ["a:b"]', 4),
    ],
)
def test_each_fault_of_a_file_has_its_line(text: str, line: int) -> None:
    _, faults = looked_through(text)
    assert [line_of(text, *fault) for fault in faults] == [line]


@pytest.mark.parametrize(
    "text", ["", "{", "]", '{"a"', "}}}}]]", "[[[[", "= 1", '"\\', '{"a": ["b", {"c": [', "[[]]\n[..]"]
)
def test_whatever_stands_there_is_looked_through(text: str) -> None:
    _, faults = looked_through(text)
    assert faults
    for fault in faults:
        assert line_of(text, *fault) >= 0
    assert line_of(text, "slices[3].strategy.type") >= 0


@pytest.mark.parametrize(
    "text",
    [
        '[[slices]]\nartifact = "a:b:1"\ninstances = -5\nx = """\n' + ("[" + " " * 3_000 + "\n") * 20 + '"""\n',
        ".".join("a" * 16_000) + " = 1",
        'x = {y = """a"""", ' + ".".join("a" * 16_000) + " = 1}",  # what is before it does not hide it
        'a = """' + '\\"""' * 30_000,
        json.dumps({"slices": [{"artifact": "a:b:1", "instances": 1, "needs": ["a:b"] * 5_000}]}),
        "{" + "".join(f'"a{n}": 1, ' for n in range(10_000)) + '"a9999": 1}',
    ],
    ids=["blanks", "dots", "dots in a table", "quotes", "faults", "twice"],
)
def test_a_hostile_file_takes_as_long_as_a_friendly_one_of_its_length(text: str) -> None:
    started = process_time()
    _, faults = looked_through(text)
    assert len(lines_of(text, faults)) == len(faults) > 0
    assert process_time() - started < 1.0


def test_a_key_of_many_parts_is_refused_with_its_line_and_dots_elsewhere_are_not() -> None:
    fine = [
        ".".join("a" * 16) + " = 1",
        'a = "' + "." * 50 + '"  # ' + "." * 50,
        "a = '''\n" + "x." * 50 + "\n'''",
        "a = [" + "1.5, " * 50 + "]",
        "\n".join(f"a.b{n} = 1.5" for n in range(50)),
    ]
    for text in fine:
        assert toml.parse_toml("x.toml", text) == tomllib.loads(text)
    for key in (".".join("a" * 17), " . ".join(["'a.b'"] * 17), '"x"\t.' + ".".join("a" * 16)):
        for text in (f"b = 1.5\n{key} = 1", f"\n[{key}]", f"\nb = {{ {key} = 1 }}"):
            with pytest.raises(Invalid, match=r"x\.toml: a key is too deep, .* 16 parts \(at line 2\)"):
                toml.parse_toml("x.toml", text)
