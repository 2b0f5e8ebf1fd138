"""D31: Aether's blueprint files are read, in all three forms; what has no meaning here is reported, not refused."""

from __future__ import annotations

import time

import pytest

from hostler.engine.deployments.blueprint_file import looked_through, read_blueprint
from hostler.errors import Invalid
from hostler.model.deployment import Gate, SliceSpec, Stage, Strategy, StrategyKind

CURRENT = """
id = "org.demo:shop:1.2.0"
version = "1.2.0"

[[slices]]
artifact = "org.demo:cart-service:1.2.0"
instances = 4
minAvailable = 3
memory_mb = 512

[[slices]]
artifact = "org.demo:prices:2.0.0"
instances = 5

[deployment]
strategy = "canary"
max_error_rate = 0.05
drain_timeout_ms = 1000
schema_required = false

[[deployment.canary.stages]]
traffic_percent = 10
observation_minutes = 2

[[deployment.canary.stages]]
traffic_percent = 100
observation_minutes = 3

[security]
override_policy = "full"
[security.overrides]
"GET /orders/*" = "public"

[resources]
x = 1
"""


def places(text: str, file: str = "") -> list[str]:
    found, faults = looked_through(text, file)
    assert found is not None
    assert not faults
    return [warning.place for warning in found.warnings]


def test_d31_the_current_form_becomes_a_blueprint_and_says_what_was_left_out() -> None:
    read = read_blueprint(CURRENT, "blueprint.toml")
    strategy = Strategy(
        type=StrategyKind.CANARY,
        stages=(Stage(weight=10, hold=120.0),),
        gate=Gate(max_error_rate=0.05, max_latency_ms=500),
    )
    assert read.name == "shop"
    assert read.blueprint.slices == (
        SliceSpec(artifact="org.demo:cart-service:1.2.0", instances=4, min_available=3, strategy=strategy),
        SliceSpec(artifact="org.demo:prices:2.0.0", instances=5, min_available=3, strategy=strategy),
    )
    assert {warning.place for warning in read.warnings} == {
        "id",
        "version",
        "slices[0].memory_mb",
        "deployment.drain_timeout_ms",
        "deployment.schema_required",
        "deployment.canary.stages[1]",
        "security.overrides.GET /orders/*",
        "resources",
    }
    assert "settings.memory_mib" in next(w.what for w in read.warnings if w.place == "slices[0].memory_mb")


def test_d31_defaults_are_those_of_aether() -> None:
    one = '[[slices]]\nartifact = "a.b:c:1.0.0"\n'
    read = read_blueprint(f'id = "a.b:app:1.0.0"\n{one}[deployment]\nstrategy = "canary"\n').blueprint.slices[0]
    assert (read.instances, read.min_available) == (1, 1)
    assert [(stage.weight, stage.hold) for stage in read.strategy.stages] == [(1, 300), (5, 300), (25, 600), (50, 600)]
    assert (read.strategy.gate.max_error_rate, read.strategy.gate.max_latency_ms) == (0.01, 500)
    for said, kind in {
        "blue_green": "blue-green",
        "blue-green": "blue-green",
        "rolling": "rolling",
        "big": "rolling",
    }.items():
        found = read_blueprint(f'id = "a.b:app:1.0.0"\n{one}[deployment]\nstrategy = "{said}"\n').blueprint.slices[0]
        assert found.strategy.type.value == kind
        assert kind != "blue-green" or found.strategy.keep == 300
    without = f'id = "a.b:app:1.0.0"\n{one}[deployment]\nmax_error_rate = 0.5\n'
    assert read_blueprint(without).blueprint.slices[0].strategy == Strategy()
    assert "deployment" in places(without)
    assert "slices[0].instances" in places(f'id = "a.b:app:1.0.0"\n{one}instances = "many"\n')


def test_d31_the_form_with_named_slices_is_read() -> None:
    read = read_blueprint(
        'id = "shop:1.0.0"\n[slices.cart]\nartifact = "org.demo:cart:1.0.0"\ninstances = 3\nplacement = "core-only"\n'
    )
    assert (read.name, read.blueprint.slices) == (
        "shop",
        (SliceSpec(artifact="org.demo:cart:1.0.0", instances=3, min_available=2),),
    )
    assert [warning.place for warning in read.warnings] == ["id", "slices.cart.placement"]


LINES = """# Blueprint: shop:1.0.0
# a comment
[slices]
org.demo:cart:1.0.0 = 3
org.demo:prices:2.0.0 = 1   # few

[routing:http]
GET:/orders/{id} => cart:order(id)
GET:/prices => org.demo:prices:list(page)
POST:/orders => cart:create(order)

[other]
what = ever
"""


def test_d31_the_line_language_is_read_with_its_routes() -> None:
    read = read_blueprint(LINES, "shop.blueprint")
    assert read.name == "shop"
    cart, prices = read.blueprint.slices
    assert (cart.artifact, cart.instances, prices.instances) == ("org.demo:cart:1.0.0", 3, 1)
    assert cart.routes == {"GET /orders/{id}": "order", "POST /orders": "create"}
    assert prices.routes == {"GET /prices?page": "list"}
    assert [warning.place for warning in read.warnings] == ["line 1", "line 12"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('id = "shop"\n[[slices]]\nartifact = "a.b:c:1"\n', "id"),
        ('id = "a:b:1"\n[[slices]]\ninstances = 1\n', "slices[0].artifact"),
        ('id = "a:b:1"\n[[slices]]\nartifact = "a.b:c:1"\ninstances = 0\n', "slices[0].instances"),
        ('id = "a:b:1"\n[[slices]]\nartifact = "a.b:c:1"\nminAvailable = 2\n', "slices[0].minAvailable"),
        ('id = "a:b:1"\n[[slices]]\nartifact = "nothing"\n', "slices[0].artifact"),
        ('id = "a:b:1"\n', "slices"),
        (
            'id = "a:b:1"\n[[slices]]\nartifact = "a.b:c:1"\n[deployment]\nstrategy = "canary"\n'
            "[[deployment.canary.stages]]\ntraffic_percent = 101\n",
            "deployment.canary.stages[0].traffic_percent",
        ),
        ("[slices]\na:b:1 = 1\n[routing:http]\nGET:/x => nobody:method()\n", "line 4"),
    ],
)
def test_d31_what_aether_refuses_is_refused_with_its_place(text: str, place: str) -> None:
    _, faults = looked_through(text)
    assert [fault.place for fault in faults] == [place]


@pytest.mark.parametrize("more", ['needs = ["a:b"]', "min_available = 1", 'callers = "everybody"'])
def test_d31_an_unknown_field_in_our_own_form_is_still_refused(more: str) -> None:
    with pytest.raises(Invalid, match="unknown field id"):
        read_blueprint(f'id = "a:b:1"\n[[slices]]\nartifact = "a.b:c:1"\ninstances = 1\n{more}\n')
    with pytest.raises(Invalid, match="unknown field id"):
        read_blueprint('name = "shop"\nid = "a:b:1"\n[[slices]]\nartifact = "a.b:c:1"\ninstances = 1\n')


HEAD = "# Blueprint: shop:1\n[slices]\ng:a:1.0.0 = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "[slices]\n" + ":" * 100_000,
        HEAD + ":" * 100_000,
        HEAD + "a:" * 50_000,
        HEAD + "[routing:http]\nGET:/" + "=>a:b" * 25_000 + "!",
        HEAD + "[routing:http]\nGET:/" + "=>:a" * 25_000 + "(",
        HEAD + "[routing:http]\n" + "GET:/=>:a(\n" * 3,
        "# Blueprint: " + "a " * 50_000 + "\n",
    ],
    ids=["no head", "colons", "parts", "arrows", "methods", "brackets", "head"],
)
def test_d31_a_hostile_line_is_refused_in_the_time_that_it_takes_to_read_it(text: str) -> None:
    before = time.process_time()
    with pytest.raises(Invalid):
        read_blueprint(text, "shop.blueprint")
    assert time.process_time() - before < 2.0  # with 700 colons it took a second, with twice as many eight


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (HEAD + "g:a:1.0.0 = 3\n", "line 4: g:a:1.0.0 is listed already; list it once"),
        (HEAD + "g:b:1.0.0 = 99999999999\n", "line 4: 99999999999 instances are too many"),
        (
            'id = "g:a:1"\n[deployment]\nstrategy = "canary"\n[[deployment.canary.stages]]\n'
            f"observation_minutes = [{'1,' * 50_000}]\n",
            "must be 0 to 10080 minutes, not [1, 1",
        ),
    ],
)
def test_d31_what_is_written_twice_or_is_too_much_is_refused_in_few_words(text: str, what: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_blueprint(text, "shop.toml")
    assert what in str(refused.value)
    assert len(str(refused.value)) < 300
