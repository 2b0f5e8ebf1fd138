"""Blueprint files, JSON or TOML, and what is wrong with a blueprint. Pure. The format: docs/deployments.md.

    name = "shop"                              # optional: without it the file's own name counts

    [[slices]]
    artifact = "org.example:cart:1.0.0"
    instances = 3
    needs = ["org.example:prices"]

`read_blueprint(text, file)` reads a file, ours or Aether's (`aether`). `faults(blueprint)` returns what is wrong with a
blueprint in itself. `linked(name, blueprint, others)` returns what is wrong with it in relation to other blueprints.
Each fault has its place.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from hostler.engine.deployments import aether
from hostler.errors import Invalid
from hostler.model.access import HIDDEN
from hostler.model.blueprint_api import MAX_SLICES
from hostler.model.deployment import (
    AlertMetric,
    Approval,
    Atomicity,
    Blueprint,
    Callers,
    OnErrors,
    SliceSpec,
    StrategyKind,
)
from hostler.model.http_route import parse_route
from hostler.model.name import fold
from hostler.model.record import SAYS, Record
from hostler.model.rollout import BLUEPRINT_NAME
from hostler.settings.toml import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LARGEST_FILE = 1024 * 1024
LARGEST_SENT = 128 * 1024
"""Maximum characters of a file that a server reads; the command line accepts up to `LARGEST_FILE`."""
LARGEST = 200 * 1024
"""Maximum bytes of a stored blueprint: one transaction contains it twice, and its response once more."""
DEEPEST = 32
MOST_STAGES = 20
MOST_ALERTS, MOST_ALERTS_OF_SLICE = 50, 10
"""Maximum alerts of a blueprint, and of one slice."""
_UNKNOWN = "hostler:unknown"
SAYS[BLUEPRINT_NAME] = "of at most 63 lower-case letters, digits and . _ -, beginning with a letter or digit"


class Fault(NamedTuple):
    """An error in a blueprint. `place`: for example `slices[2].artifact`; empty: the whole file."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}" if self.place else self.what


class Read(NamedTuple):
    """Contents of a blueprint file."""

    name: str
    """Empty: the file does not contain a name."""
    blueprint: Blueprint
    warnings: tuple[Fault, ...] = ()
    """For a file of Aether's: what is not supported here, and was left out."""


class _Document(Record, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern=BLUEPRINT_NAME)] = ""
    slices: tuple[SliceSpec, ...]


class _Wrong(Exception):
    """An error after which a file cannot be read further."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.fault = Fault(place, what)


def check_name(name: str) -> str:
    """Return the name of a blueprint as its key has it. Invalid: not a valid name."""
    folded = fold(name)
    if re.search(BLUEPRINT_NAME, folded) is None:
        raise Invalid(f"blueprint {name[:80]!r}: its name must be {SAYS[BLUEPRINT_NAME]}")
    return folded


def read_blueprint(text: str | bytes, file: str = "blueprint") -> Read:
    """Read a file. Invalid: the message has one line for each error, with its place."""
    try:
        document, warnings = _document(text, file)
    except _Wrong as wrong:
        raise Invalid(f"{file}: {wrong.fault}") from None
    blueprint = Blueprint(slices=document.slices)
    check(blueprint, file)
    return Read(document.name, blueprint, warnings)


def looked_through(text: str, file: str = "") -> tuple[Read | None, list[Fault]]:
    """Return the contents of a file, and all its errors; None: it cannot be parsed."""
    try:
        document, warnings = _document(text, file)
    except _Wrong as wrong:
        return None, [wrong.fault]
    blueprint = Blueprint(slices=document.slices)
    return Read(document.name, blueprint, warnings), faults(blueprint)


def check(blueprint: Blueprint, file: str = "blueprint") -> None:
    """Check a blueprint in itself. Invalid: something is wrong."""
    found = faults(blueprint)
    if found:
        raise Invalid("\n".join(f"{file}: {fault}" for fault in found))


def write_blueprint(name: str, blueprint: Blueprint) -> dict[str, Any]:
    """Return the blueprint as a JSON file could contain it: reading that gives the same blueprint."""
    plain: dict[str, Any] = msgspec.json.decode(blueprint.encode())
    return {"name": name, **plain} if name else plain


# Reading


def _document(text: str | bytes, file: str) -> tuple[_Document, tuple[Fault, ...]]:
    """Parse a file in our own form or in one of Aether's; also return warnings about what was left out."""
    if len(text) > LARGEST_FILE:
        raise _Wrong(f"it has more than {LARGEST_FILE} bytes; write several blueprints")
    if isinstance(text, bytes):
        text = _decoded(text)
    try:
        if not file.lower().endswith(".json") and aether.is_lines(text):
            tree, warnings = aether.translate_lines(text)
        else:
            tree, warnings = _tree(text, file), ()
            if aether.is_aether(tree):
                tree, warnings = aether.translate(tree)
    except aether.Wrong as wrong:
        raise _Wrong(wrong.what, wrong.place) from None
    return _convert(tree), tuple(Fault(place, what) for place, what in warnings)


def _tree(text: str, file: str) -> Any:
    if file.lower().endswith(".json") or (not file.lower().endswith(".toml") and text.lstrip()[:1] in ("{", "")):
        tree = _json(text)
    else:
        try:
            tree = parse_toml(file, text)
        except Invalid as error:
            raise _Wrong(str(error).removeprefix(f"{file}: ")) from None
    _check_tree(tree)
    return tree


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Wrong(f"line {line}: is not UTF-8") from None


def _json(text: str) -> Any:
    if not text.strip():
        raise _Wrong("it is empty; write slices")
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise _Wrong(f"not JSON: {error.msg} (at line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise _Wrong("it is nested too deeply; reduce the nesting") from None
    except ValueError:  # Python does not parse numbers with thousands of digits
        raise _Wrong("a number in it has too many digits; write a smaller one") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _Wrong(f"field {twice[:80]!r} is given twice in one object; give it once")
    return found


def _no_constant(name: str) -> Any:
    raise _Wrong(f"{name} is not a JSON number; write a number")


def _check_tree(tree: Any) -> None:
    """Reject values that no record of ours can contain, anywhere in the tree."""
    left: list[tuple[Any, str, int]] = [(tree, "", 0)]
    while left:
        value, place, depth = left.pop()
        if depth > DEEPEST:
            raise _Wrong("it is nested too deeply; reduce the nesting", place[:200])
        if isinstance(value, float) and not math.isfinite(value):
            raise _Wrong("must be a finite number", place)
        if isinstance(value, int) and abs(value) > 2**63 - 1:
            raise _Wrong("the number is too large; write a smaller one", place)
        if isinstance(value, str) and not _can_be_written(value):
            raise _Wrong("contains half of a surrogate pair, which is not a character", place)
        if isinstance(value, dict):
            for name, inside in value.items():
                if name == _UNKNOWN or not _can_be_written(name):
                    raise _Wrong(f"unknown field {name!r}", place)
                left.append((inside, f"{place}.{name[:200]}" if place else name[:200], depth + 1))
        elif isinstance(value, list):
            left += ((inside, f"{place}[{number}]", depth + 1) for number, inside in enumerate(value))


def _can_be_written(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _convert(tree: Any) -> _Document:
    try:
        return msgspec.convert(tree, _Document)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
    for pattern, meaning in SAYS.items():
        what = what.replace(f"matching regex {pattern!r}", meaning)
    what = what.replace("`", "").replace("Object contains unknown field", "unknown field")
    what = what.replace("Object missing required field", "lacks the field")
    path = path.replace("`", "").removeprefix("key in ")
    place = path.removeprefix("$").removeprefix(".")
    shown = _shown(tree, place)
    if what.startswith("Invalid enum value"):
        what = f"must be one of {', '.join(_CHOICES.get(place.rpartition('.')[2], ()))}"
    raise _Wrong(f"{what[:1].lower()}{what[1:]}{shown}", place)


_CHOICES = {
    "type": tuple(StrategyKind),
    "approval": tuple(Approval),
    "atomicity": tuple(Atomicity),
    "callers": tuple(Callers),
    "metric": tuple(AlertMetric),
    "on_errors": tuple(OnErrors),
}
"""The values of fields with few choices."""


def _shown(tree: Any, place: str) -> str:
    """Return the value at the place, if it is short, to add it to a message about the expected value."""
    value = tree
    for field, number in re.findall(r"([A-Za-z_]+)|\[(\d+)\]", place):
        try:
            value = value[field] if field else value[int(number)]
        except (KeyError, IndexError, TypeError):
            return ""
    if not isinstance(value, str | int | float) or not place:
        return ""
    said = repr(value)
    return f", not {said if len(said) <= 60 else said[:60] + '…'}"


# Validation


def faults(blueprint: Blueprint) -> list[Fault]:
    """Return all errors that can be found in the blueprint itself."""
    found = list(_faults(blueprint))
    if not found:
        size = len(blueprint.encode())
        if size > LARGEST:
            found.append(Fault("", f"it takes {size} bytes, at most {LARGEST} are stored; write several blueprints"))
    if not found:
        circle = _circle(_graph([("", blueprint)]), [spec.base for spec in blueprint.slices])
        if circle:
            found.append(_of_circle(blueprint, circle))
    return found


def _faults(blueprint: Blueprint) -> Iterator[Fault]:
    if not blueprint.slices:
        yield Fault("slices", "must contain at least one; to remove all slices, delete the blueprint")
    if len(blueprint.slices) > MAX_SLICES:
        yield Fault("slices", f"has {len(blueprint.slices)}, at most {MAX_SLICES}; write several blueprints")
        return
    first: dict[str, int] = {}
    for number, spec in enumerate(blueprint.slices):
        place = f"slices[{number}]"
        earlier = first.setdefault(spec.base, number)
        if earlier != number:
            yield Fault(
                f"{place}.artifact", f"{spec.base} is slices[{earlier}] already; a slice has one version, name it once"
            )
        yield from _of_slice(place, spec)
    alerts = sum(len(spec.alerts) for spec in blueprint.slices)
    if alerts > MOST_ALERTS:
        yield Fault("slices", f"they have {alerts} alerts, at most {MOST_ALERTS} in a blueprint; write several")
    yield from _of_routes(blueprint)


def _of_routes(blueprint: Blueprint) -> Iterator[Fault]:
    """Return errors of routes that cannot be parsed, or that have the verb and path of another route."""
    taken: dict[tuple[Any, ...], str] = {}
    for number, spec in enumerate(blueprint.slices):
        for text in spec.routes:
            place = f"slices[{number}].routes.{text[:200]}"
            try:
                pattern = parse_route(text)
            except Invalid as error:
                yield Fault(place, str(error))
                continue
            earlier = taken.setdefault((pattern.verb, pattern.shape), place)
            if earlier != place:
                yield Fault(place, f"same path as {earlier}; a path of a blueprint calls one method")


def _of_slice(place: str, spec: SliceSpec) -> Iterator[Fault]:
    scale = spec.autoscale
    least = spec.instances if scale is None else min(spec.instances, scale.min)
    if scale is not None and scale.min > scale.max:
        yield Fault(f"{place}.autoscale.min", f"{scale.min} is more than max, {scale.max}")
    elif scale is not None and not scale.min <= spec.instances <= scale.max:
        yield Fault(
            f"{place}.instances",
            f"{spec.instances} is not within autoscale's {scale.min} to {scale.max}, and is the initial number",
        )
    if spec.min_available > least:
        what = "instances" if scale is None else "autoscale.min"
        yield Fault(
            f"{place}.min_available", f"{spec.min_available} is more than {what}, {least}; nothing could be replaced"
        )
    for name, value in spec.settings.environment.items():
        if value == HIDDEN:
            yield Fault(
                f"{place}.settings.environment.{name}",
                f"{HIDDEN} replaces a value that was not shown; write the value itself",
            )
    yield from _of_strategy(f"{place}.strategy", spec)
    yield from _of_alerts(place, spec)
    if spec.min_available == least and not spec.strategy.max_surge and spec.strategy.max_unavailable:
        yield Fault(
            f"{place}.strategy.max_surge",
            f"0, while min_available requires all {least}: no instance could be replaced; set 1, or require fewer",
        )
    seen: set[str] = set()
    for at, base in enumerate(spec.needs):
        if base == spec.base:
            yield Fault(f"{place}.needs[{at}]", f"{base} cannot need itself")
        if base in seen:
            yield Fault(f"{place}.needs[{at}]", f"{base} is named twice; name it once")
        seen.add(base)


def _of_alerts(place: str, spec: SliceSpec) -> Iterator[Fault]:
    if len(spec.alerts) > MOST_ALERTS_OF_SLICE:
        yield Fault(f"{place}.alerts", f"has {len(spec.alerts)}, at most {MOST_ALERTS_OF_SLICE}")
        return
    names: dict[str, int] = {}
    for at, rule in enumerate(spec.alerts):
        here = f"{place}.alerts[{at}]"
        first = names.setdefault(rule.name, at)
        if first != at:
            yield Fault(f"{here}.name", f"{rule.name!r} is already the name of alerts[{first}]; each needs its own")
        if (rule.above is None) is (rule.below is None):
            yield Fault(here, "needs one threshold, above or below")
            continue
        limit = rule.above if rule.above is not None else rule.below
        if rule.metric is AlertMetric.ERROR_RATE and limit is not None and limit > 1:
            yield Fault(here, f"an error rate is from 0 to 1, and cannot be above {limit:g}")
        if rule.clear is not None and rule.above is not None and rule.clear > rule.above:
            yield Fault(
                f"{here}.clear", f"{rule.clear:g} is more than above, {rule.above:g}: it would fire again at once"
            )
        if rule.clear is not None and rule.below is not None and rule.clear < rule.below:
            yield Fault(
                f"{here}.clear", f"{rule.clear:g} is less than below, {rule.below:g}: it would fire again at once"
            )


def _of_strategy(place: str, spec: SliceSpec) -> Iterator[Fault]:
    strategy = spec.strategy
    if not strategy.max_surge and not strategy.max_unavailable:
        yield Fault(place, "max_surge and max_unavailable are both 0: no instance could be replaced; set one to 1")
    if strategy.stages and strategy.type is not StrategyKind.CANARY:
        yield Fault(f"{place}.stages", f"are for a canary, and this is {strategy.type.value}; remove them")
    if len(strategy.stages) > MOST_STAGES:
        yield Fault(f"{place}.stages", f"has {len(strategy.stages)}, at most {MOST_STAGES}")
    for at in range(1, len(strategy.stages)):
        before, weight = strategy.stages[at - 1].weight, strategy.stages[at].weight
        if weight <= before:
            yield Fault(f"{place}.stages[{at}].weight", f"{weight} is not above {before}, that of the previous stage")


# Dependencies


def outside(blueprint: Blueprint) -> dict[str, str]:
    """Return the slices of other blueprints that it needs, each with the first place that names it."""
    own = {spec.base for spec in blueprint.slices}
    found: dict[str, str] = {}
    for number, spec in enumerate(blueprint.slices):
        for at, base in enumerate(spec.needs):
            if base not in own:
                found.setdefault(base, f"slices[{number}].needs[{at}]")
    return found


def link_faults(name: str, blueprint: Blueprint, others: Mapping[str, Blueprint]) -> list[Fault]:
    """Return errors in relation to other blueprints: needs that no blueprint contains, and cycles through others."""
    home = {spec.base: other for other in sorted(others) for spec in others[other].slices}
    found = [
        Fault(place, f"{base}: no blueprint has such a slice; add it here, or apply the blueprint that has it first")
        for base, place in outside(blueprint).items()
        if base not in home
    ]
    if found:
        return found
    graph = _graph([(name, blueprint), *((other, others[other]) for other in sorted(others) if other != name)])
    circle = _circle(graph, [spec.base for spec in blueprint.slices])
    return [_of_circle(blueprint, circle)] if circle else []


def needed_blueprints(blueprint: Blueprint, others: Mapping[str, Blueprint]) -> list[str]:
    """Return the names of the other blueprints that it depends on, directly or indirectly, in order."""
    home = {spec.base: other for other in sorted(others) for spec in others[other].slices}
    graph = _graph([(other, others[other]) for other in sorted(others)])
    left, seen = list(outside(blueprint)), set[str]()
    while left:
        base = left.pop()
        if base not in seen:
            seen.add(base)
            left += graph.get(base, ())
    return sorted({home[base] for base in seen if base in home})


def dependents(bases: Sequence[str], others: Mapping[str, Blueprint]) -> list[tuple[str, str, str]]:
    """Return (base, blueprint, slice) for each slice of other blueprints that needs one of these."""
    wanted = frozenset(bases)
    return [
        (base, other, spec.base)
        for other in sorted(others)
        for spec in others[other].slices
        for base in spec.needs
        if base in wanted
    ]


def _graph(blueprints: Sequence[tuple[str, Blueprint]]) -> dict[str, tuple[str, ...]]:
    graph: dict[str, tuple[str, ...]] = {}
    for _, blueprint in blueprints:
        for spec in blueprint.slices:
            graph.setdefault(spec.base, spec.needs)
    return graph


def _circle(graph: Mapping[str, Sequence[str]], starts: Sequence[str]) -> list[str]:
    """Return a cycle that is reachable from one of these, with its first slice at both ends; empty: there is none."""
    done: set[str] = set()
    for start in starts:
        path: list[str] = []
        on_path: set[str] = set()
        left: list[tuple[str, bool]] = [(start, False)]
        while left:
            base, leaving = left.pop()
            if leaving:
                path.pop()
                on_path.discard(base)
                done.add(base)
                continue
            if base in on_path:
                return [*path[path.index(base) :], base]
            if base in done:
                continue
            path.append(base)
            on_path.add(base)
            left.append((base, True))
            left += ((need, False) for need in reversed(graph.get(base, ())))
    return []


def _of_circle(blueprint: Blueprint, circle: Sequence[str]) -> Fault:
    on_it = set(circle)
    for number, spec in enumerate(blueprint.slices):
        for at, base in enumerate(spec.needs):
            if spec.base in on_it and base in on_it:
                return Fault(f"slices[{number}].needs[{at}]", _round(circle))
    return Fault("slices", _round(circle))


def _round(circle: Sequence[str]) -> str:
    return f"circular dependency: {' → '.join(circle)}; none of them could start"
