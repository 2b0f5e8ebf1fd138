"""Blueprint files: what people write becomes a blueprint, or is refused with the place of everything that is wrong."""

from __future__ import annotations

import json
import math
import string
from typing import Any

import pytest
from blueprint_scene import blueprint, changed, spec
from dose import dose
from hypothesis import given, settings
from hypothesis import strategies as st

from hostler.engine.deployments.blueprint_file import (
    LARGEST_FILE,
    check_name,
    dependents,
    faults,
    link_faults,
    needed_blueprints,
    read_blueprint,
    write_blueprint,
)
from hostler.errors import Invalid
from hostler.model.access import HIDDEN
from hostler.model.deployment import (
    Autoscale,
    Blueprint,
    Callers,
    Gate,
    SliceSettings,
    SliceSpec,
    Stage,
    Strategy,
    StrategyKind,
)

EXAMPLES = dose(test=40, full=5_000)
ONE = {"artifact": "org.example:cart:1.0.0", "instances": 3}
TOML = """
name = "shop"

[[slices]]
artifact = "org.example:cart:1.1.0"
instances = 3
needs = ["org.example:prices"]
min_available = 2
callers = "everybody"
node_labels = { disk = "ssd" }

[slices.settings]
environment = { LEVEL = "info" }
memory_mib = 256
cpus = 0.5

[slices.strategy]
type = "canary"
stages = [{ weight = 5, hold = 30 }, { weight = 50 }]
gate = { max_error_rate = 0.02, min_calls = 10 }

[slices.autoscale]
min = 2
max = 10

[[slices]]
artifact = "org.example:prices:2.0"
instances = 1
"""
WHOLE = blueprint(
    SliceSpec(
        artifact="org.example:cart:1.1.0",
        instances=3,
        needs=("org.example:prices",),
        min_available=2,
        callers=Callers.EVERYBODY,
        node_labels={"disk": "ssd"},
        settings=SliceSettings(environment={"LEVEL": "info"}, memory_mib=256, cpus=0.5),
        strategy=Strategy(
            type=StrategyKind.CANARY,
            stages=(Stage(weight=5, hold=30.0), Stage(weight=50)),
            gate=Gate(max_error_rate=0.02, min_calls=10),
        ),
        autoscale=Autoscale(min=2, max=10),
    ),
    SliceSpec(artifact="org.example:prices:2.0", instances=1),
)


def written(**more: Any) -> str:
    return json.dumps({"slices": [{**ONE, **more}]})


def wrong(text: str | bytes, file: str = "shop") -> str:
    with pytest.raises(Invalid) as caught:
        read_blueprint(text, file)
    return str(caught.value)


def test_toml_and_json_say_the_same() -> None:
    assert read_blueprint(TOML, "shop.toml") == ("shop", WHOLE, ())
    assert read_blueprint(TOML.encode(), "standard input") == ("shop", WHOLE, ())
    as_json = json.dumps(write_blueprint("shop", WHOLE), indent=1)
    assert read_blueprint(as_json, "shop.json") == ("shop", WHOLE, ())
    assert read_blueprint(b"\xef\xbb\xbf" + as_json.encode()) == ("shop", WHOLE, ()), "an editor's byte order mark"


def test_the_contracts_own_example_is_taken_and_kept_as_it_is() -> None:
    text = '{"slices": [{"artifact": "org.example:slice:1.0.0", "instances": 3}]}'
    found = read_blueprint(text)
    assert found.name == ""
    assert json.loads(found.blueprint.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (written(instances=0), "shop: slices[0].instances: expected int >= 1, not 0"),
        (written(instances=-3), "shop: slices[0].instances: expected int >= 1, not -3"),
        (written(instances=2.5), "shop: slices[0].instances: expected int, got float, not 2.5"),
        (written(artifact="cart:1"), "shop: slices[0].artifact: expected str group:name:version"),
        (written(artifact="a:b:c\n"), "shop: slices[0].artifact: expected str group:name:version"),
        (written(replicas=2), "shop: slices[0]: unknown field replicas"),
        (written(strategy={"typ": "canary"}), "shop: slices[0].strategy: unknown field typ"),
        (
            written(strategy={"type": "big-bang"}),
            "shop: slices[0].strategy.type: must be one of rolling, canary, blue-green, not 'big-bang'",
        ),
        (written(settings={"environment": {"1A": ""}}), "shop: slices[0].settings.environment: expected str letters"),
        (written(needs=["a:b:1"]), "shop: slices[0].needs[0]: expected str group:name"),
        ('{"slices": [{"artifact": "a:b:1"}]}', "shop: slices[0]: lacks the field instances"),
        ("{}", "shop: lacks the field slices"),
        ('{"slices": [], "hostler:unknown": {}}', "shop: unknown field 'hostler:unknown'"),
        ('{"slices": []}', "shop: slices: must contain at least one"),
        ('{"slices": [],\n "slices": []}', "shop: field 'slices' is given twice"),
        ('{"slices": [1,\n  ]}', "shop: not JSON: "),  # Python 3.13 says more of it
        ('{"slices": [1,\n  ?]}', "shop: not JSON: Expecting value (at line 2, column 3)"),
        ('{"name": "Shop"}', "shop: name: expected str of at most 63 lower-case letters"),
        ("slices = [\n  {artifact = }\n]", "shop: not TOML: Invalid value (at line 2, column 15)"),
        ("[[slices]]\ninstances = nan\nartifact = 'a:b:1'", "shop: slices[0].instances: must be a finite number"),
        ('{"slices": [{"x": NaN}]}', "shop: NaN is not a JSON number"),
        ('{"slices": [{"x": 1e999}]}', "shop: slices[0].x: must be a finite number"),
        ('{"slices": [{"x": "\\ud800"}]}', "shop: slices[0].x: contains half of a surrogate pair"),
        ('{"slices": ' + "9" * 5000 + "}", "shop: a number in it has too many digits"),
        ("[" * 100_000, "shop: not TOML"),
        ('{"slices": ' + "[" * 100_000, "shop: it is nested too deeply"),
        ('{"a": ' * 40 + "1" + "}" * 40, "it is nested too deeply"),
        (b"{\n\xff", "shop: line 2: is not UTF-8"),
        ("", "shop: it is empty"),
        (" " * (LARGEST_FILE + 1), "shop: it has more than 1048576 bytes"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str | bytes, said: str) -> None:
    assert said in wrong(text)
    assert "\n" not in wrong(text)


def canary(*weights: int) -> Strategy:
    return Strategy(type=StrategyKind.CANARY, stages=tuple(Stage(weight=weight) for weight in weights))


@pytest.mark.parametrize(
    ("slices", "said"),
    [
        ([spec("a:1"), spec("a:2")], "slices[1].artifact: org:a is slices[0] already"),
        ([spec("a:1", 2, min_available=3)], "slices[0].min_available: 3 is more than instances, 2"),
        ([spec("a:1", 1, "a")], "slices[0].needs[0]: org:a cannot need itself"),
        ([spec("a:1", 1, "b", "b"), spec("b:1")], "slices[0].needs[1]: org:b is named twice"),
        ([spec("a:1", strategy=Strategy(max_surge=0))], "slices[0].strategy: max_surge and max_unavailable are both 0"),
        (
            [spec("a:1", 2, min_available=2, strategy=Strategy(max_surge=0, max_unavailable=1))],
            "slices[0].strategy.max_surge: 0, while min_available requires all 2",
        ),
        ([spec("a:1", strategy=canary(5, 25, 25))], "slices[0].strategy.stages[2].weight: 25 is not above 25"),
        (
            [spec("a:1", strategy=Strategy(stages=(Stage(weight=5),)))],
            "slices[0].strategy.stages: are for a canary, and this is rolling",
        ),
        ([spec("a:1", 3, autoscale=Autoscale(min=4, max=3))], "slices[0].autoscale.min: 4 is more than max, 3"),
        ([spec("a:1", 9, autoscale=Autoscale(max=3))], "slices[0].instances: 9 is not within autoscale's 1 to 3"),
        (
            [spec("a:1", 3, autoscale=Autoscale(min=1, max=3), min_available=2)],
            "slices[0].min_available: 2 is more than autoscale.min, 1",
        ),
        (
            [spec("z:1"), spec("a:1", 1, "b"), spec("b:1", 1, "c"), spec("c:1", 1, "z", "a")],
            "slices[1].needs[0]: circular dependency: org:a → org:b → org:c → org:a; none of them could",
        ),
        ([spec(f"a{number}:1") for number in range(101)], "slices: has 101, at most 100"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(slices: list[SliceSpec], said: str) -> None:
    found = [str(fault) for fault in faults(blueprint(*slices))]
    assert len(found) == 1
    assert found[0].startswith(said)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    twice = blueprint(spec("a:1", 1, "a", min_available=2), spec("a:2", strategy=Strategy(max_surge=0)))
    lines = wrong(json.dumps(write_blueprint("", twice))).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        *("slices[0].min_available", "slices[0].needs[0]", "slices[1].artifact", "slices[1].strategy"),
    ]


def test_a_blueprint_that_would_not_fit_into_a_transaction_is_refused() -> None:
    large = [
        spec(f"a{n}:1", settings=SliceSettings(environment={f"V{m}": "x" * 4096 for m in range(6)})) for n in range(10)
    ]
    assert "at most 204800 are stored" in str(faults(blueprint(*large))[0])


def test_needs_across_blueprints() -> None:
    base, above = blueprint(spec("db:1")), blueprint(spec("api:1", 2, "db"))
    top = blueprint(spec("web:1", 1, "api"))
    assert not link_faults("top", top, {"above": above, "base": base})
    assert needed_blueprints(top, {"above": above, "base": base, "else": blueprint(spec("x:1"))}) == ["above", "base"]
    assert not needed_blueprints(base, {"above": above})
    [missing] = link_faults("top", top, {"base": base})
    assert missing.place == "slices[0].needs[0]"
    assert missing.what.startswith("org:api: no blueprint has such a slice")
    [circle] = link_faults("base", blueprint(spec("db:1", 1, "web")), {"above": above, "top": top})
    assert circle.place == "slices[0].needs[0]"
    assert "org:db → org:web → org:api → org:db" in circle.what
    assert not link_faults(
        "base", blueprint(changed(base.slices[0], artifact="org:db:2")), {"above": above, "top": top}
    )
    assert dependents(["org:db", "org:x"], {"above": above, "top": top}) == [("org:db", "above", "org:api")]


@pytest.mark.parametrize("name", ["shop", "a", "0", "a.b_c-d", "x" * 63, "Shop"])
def test_names(name: str) -> None:
    assert check_name(name) == name.lower()


@pytest.mark.parametrize("name", ["", "x" * 64, "-a", ".a", "a/b", "a b", "ä", "a\n", ".."])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(Invalid, match="its name must be"):
        check_name(name)


# Fuzzing

WORD = st.text(string.ascii_letters + string.digits + "_.+-", min_size=1, max_size=8).filter(
    lambda w: w[0] not in ".+-"
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["canary", "rolling", "a:b:1", "a:b", "org:x:1", 5, 1, 0])
)
FIELDS = (
    *("slices", "name", "artifact", "instances", "needs", "settings", "strategy", "type", "stages", "weight", "hold"),
    *("min_available", "autoscale", "min", "max", "environment", "node_labels", "callers", "hostler:unknown", "gate"),
)
NAMES = st.sampled_from(FIELDS) | st.text(max_size=5)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "slices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "artifact": st.sampled_from(["a:b:1", "a:c:1", "a", ""]) | SCALARS,
                    "instances": st.integers(-1, 4) | SCALARS,
                    "needs": st.lists(st.sampled_from(["a:b", "a:c", "x:y"]) | SCALARS, max_size=3) | SCALARS,
                    "strategy": TREES,
                    "settings": TREES,
                    "autoscale": TREES,
                    "min_available": st.integers(-1, 3),
                },
            ),
            max_size=4,
        )
        | TREES
    },
    optional={"name": SCALARS},
)


def reads_or_refuses(text: str | bytes, file: str) -> None:
    """Never anything else than a blueprint that can be kept, or a refusal that begins with the file."""
    refusal, found = "", None
    try:
        found = read_blueprint(text, file).blueprint
    except Invalid as error:
        refusal = str(error)
    if found is None:
        assert refusal.startswith(f"{file}: ")
        assert len(refusal) > len(file) + 4
    else:
        assert Blueprint.decode(found.encode()) == found
        assert not faults(found)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200), st.sampled_from(["f", "f.json", "f.toml"]))
def test_bytes(text: str | bytes, file: str) -> None:
    reads_or_refuses(text, file)


@settings(max_examples=EXAMPLES, deadline=None)
@given(TREES | DOCUMENTS)
def test_json_of_any_shape(tree: Any) -> None:
    reads_or_refuses(json.dumps(tree), "f.json")


@settings(max_examples=EXAMPLES, deadline=None)
@given(DOCUMENTS)
def test_toml_of_any_shape(tree: Any) -> None:
    reads_or_refuses("\n".join(_toml(tree)), "f.toml")


def _toml(tree: dict[str, Any]) -> list[str]:
    return [f"{_text(name)} = {_inline(value)}" for name, value in tree.items()]


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(name)} = {_inline(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return "nan" if math.isnan(value) else "inf" if math.isinf(value) else repr(value)
    return "''" if value is None else _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


SPECS = st.builds(
    SliceSpec,
    artifact=st.builds("{}:{}:{}".format, WORD, WORD, WORD),
    instances=st.integers(1, 1_000_000),
    settings=st.builds(
        SliceSettings,
        environment=st.dictionaries(
            st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,9}\Z"),
            st.text(max_size=9).filter(lambda text: text != HIDDEN),
            max_size=3,
        ),
        memory_mib=st.none() | st.integers(16, 1_048_576),
        cpus=st.none() | st.floats(0.05, 1024),
        concurrency=st.integers(1, 100_000),
    ),
    strategy=st.builds(
        Strategy,
        type=st.sampled_from(StrategyKind),
        max_surge=st.integers(1, 9),
        max_unavailable=st.integers(0, 9),
        gate=st.builds(Gate, max_error_rate=st.floats(0, 1), max_latency_ms=st.none() | st.floats(0.1, 1e6)),
        bake=st.floats(0, 604_800),
        keep=st.floats(0, 604_800),
    ),
    node_labels=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    callers=st.sampled_from(Callers),
    routes=st.dictionaries(st.builds("GET /{}/{{id:int}}?page".format, st.uuids()), st.just("order"), max_size=2),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(SPECS, min_size=1, max_size=4, unique_by=lambda one: one.base), st.just("") | st.just("shop"))
def test_what_is_written_is_read_back(slices: list[SliceSpec], name: str) -> None:
    found = blueprint(*slices)
    document = write_blueprint(name, found)
    assert read_blueprint(json.dumps(document)) == (name, found, ())
    assert read_blueprint("\n".join(_toml(document)), "f.toml") == (name, found, ())
