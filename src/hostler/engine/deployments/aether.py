"""Translates Aether's blueprint files into ours. Pure. The mapping of fields: docs/deployments.md.

Three forms are read: the current one (`id`, `[[slices]]` with `minAvailable`, `[deployment]`, `[security]`), the one
before it (`[slices.NAME]`), and the older line language (`# Blueprint: name:version`, `g:a:v = N`, `[routing:http]`).
Fields without an equivalent produce a warning with their place. What Aether refuses is refused.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from hostler.kit.plural import counted
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OWN_FIELDS = frozenset(
    {"needs", "settings", "strategy", "min_available", "node_labels", "autoscale", "callers", "routes"}
)
"""Fields of a slice that only our own form has: a file with one of them is not Aether's."""
USUAL_STAGES = ((1, 5), (5, 5), (25, 10), (50, 10), (100, 0))
"""Default stages of a canary: per cent of the calls, and minutes."""
MAX_ERROR_RATE, MAX_LATENCY_MS, DRAIN_TIMEOUT_MS = 0.01, 500, 300_000
_LONGEST_HOLD = 604_800
LONGEST_LINE = 2000
"""Maximum characters of a line in the line language: the time to parse a line grows faster than its length."""
_HEAD = re.compile(r"#\s*Blueprint:\s*(\S+)\s*$", re.IGNORECASE)
_SECTION = re.compile(r"\[([^\[\]]+)\]$")
_COUNT = re.compile(r"([^\s=\"':]+:[^\s=\"':]+:[^\s=\"':]+)\s*=\s*(.+)$")
_ROUTE = re.compile(r"([A-Za-z]+)\s*:\s*(/\S*)\s*=>\s*([^\s()]+):([A-Za-z_]\w*)\s*(?:\(([^()]*)\))?$")
_NAME_IN_PATH = re.compile(r"\{([^{}:]+)(?::[^{}]*)?\}")
_IN_SLICE = {
    "timeout_ms": "each caller sets its own timeout (`within`)",
    "memory_mb": "use settings.memory_mib in Hostler's own form",
    "load_balancing": "the router prefers a local instance, otherwise the less loaded of two",
    "affinity_key": "the router prefers a local instance, otherwise the less loaded of two",
    "placement": "use node_labels in Hostler's own form",
}
"""Fields of a slice in Aether's documentation, each with its replacement here."""


class Wrong(Exception):
    """The file breaks a rule that Aether has, too."""

    def __init__(self, place: str, what: str) -> None:
        super().__init__(what)
        self.place, self.what = place, what


class Translated(NamedTuple):
    """The file in our own form, as a tree, and (place, what) of everything that was left out."""

    tree: dict[str, Any]
    warnings: tuple[tuple[str, str], ...]


def is_lines(text: str) -> bool:
    """Return whether a text is written in the line language, which is not TOML."""
    for line in text.splitlines():
        said = line.strip()
        if len(said) > LONGEST_LINE:
            return False
        if _HEAD.match(said) or said == "[routing:http]":
            return True
        if said and not said.startswith("#") and not _SECTION.match(said):
            return _COUNT.match(said) is not None
    return False


def is_aether(tree: Any) -> bool:
    """Return whether a file is Aether's: it has one of Aether's fields, and none that only our form has."""
    if not isinstance(tree, dict) or "name" in tree:
        return False
    slices = tree.get("slices")
    if isinstance(slices, dict):
        return all(isinstance(one, dict) and not OWN_FIELDS & one.keys() for one in slices.values())
    each = [one for one in slices if isinstance(one, dict)] if isinstance(slices, list) else []
    if any(OWN_FIELDS & one.keys() for one in each):
        return False
    return bool(tree.keys() & {"id", "deployment", "security"}) or any("minAvailable" in one for one in each)


def translate(tree: Mapping[str, Any]) -> Translated:
    """Translate either of the two TOML forms. Wrong: Aether would refuse it, too."""
    warnings: list[tuple[str, str]] = []

    def warn(place: str, what: str) -> None:
        warnings.append((place, what))

    made: dict[str, Any] = {}
    if "id" in tree:
        made["name"] = _name(tree["id"], warn)
    else:
        warn("", "it has no id; the blueprint is named after its file, or by --name")
    strategy = _strategy(tree["deployment"], warn) if "deployment" in tree else None
    slices = []
    for place, one in _slices(tree.get("slices")):
        spec = _slice(place, one, warn)
        if strategy is not None:
            spec["strategy"] = strategy
        slices.append(spec)
    made["slices"] = slices
    if "security" in tree:
        _security(tree["security"], warn)
    for name in tree.keys() - {"id", "slices", "deployment", "security"}:
        what = "revisions are numbered here" if name == "version" else "not supported here"
        warn(name, f"{what}; ignored")
    return Translated(made, tuple(sorted(warnings)))


def _name(id_: Any, warn: Callable[[str, str], None]) -> str:
    parts = id_.split(":") if isinstance(id_, str) else []
    if len(parts) not in (2, 3) or not all(parts):
        raise Wrong("id", f"must be group:artifact:version, or name:version, not {str(id_)[:80]!r}")
    name = fold(parts[-2])
    warn("id", f"the blueprint is named {name}; its version {parts[-1]} is ignored, revisions are numbered here")
    return name


def _slices(slices: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(slices, dict):
        yield from ((f"slices.{name}", one) for name, one in slices.items())
    elif isinstance(slices, list):
        yield from ((f"slices[{number}]", one) for number, one in enumerate(slices))
    elif slices is not None:
        raise Wrong("slices", "must be tables: [[slices]]")


def _slice(place: str, one: Any, warn: Callable[[str, str], None]) -> dict[str, Any]:
    if not isinstance(one, dict):
        raise Wrong(place, "must be a table")
    if not isinstance(one.get("artifact"), str):
        raise Wrong(f"{place}.artifact", "is missing; write group:artifact:version")
    instances = one.get("instances", 1)
    if not _is_whole(instances):
        warn(f"{place}.instances", f"{str(instances)[:80]!r} is not a whole number; using 1, as Aether does")
        instances = 1
    if instances < 1:
        raise Wrong(f"{place}.instances", f"must be at least 1, not {instances}")
    least = one.get("minAvailable", math.ceil(instances / 2))
    if not _is_whole(least) or not 1 <= least <= instances:
        raise Wrong(f"{place}.minAvailable", f"must be 1 to {instances}, not {str(least)[:80]}")
    for name in one.keys() - {"artifact", "instances", "minAvailable"}:
        warn(f"{place}.{name}", f"ignored; {_IN_SLICE.get(name, 'not supported here')}")
    return {"artifact": one["artifact"], "instances": instances, "min_available": least}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Strategies


def _strategy(said: Any, warn: Callable[[str, str], None]) -> dict[str, Any] | None:
    if not isinstance(said, dict) or "strategy" not in said:
        warn("deployment", "it has no strategy, so all of it is ignored, as Aether does; upgrades are rolling")
        return None
    kind = str(said["strategy"]).lower().replace("_", "-")
    if kind not in ("rolling", "canary", "blue-green"):
        warn("deployment.strategy", f"{str(said['strategy'])[:80]!r} is not a strategy; using rolling, as Aether does")
        kind = "rolling"
    used = {"strategy"}
    made: dict[str, Any] = {"type": kind}
    if kind == "canary":
        used |= {"max_error_rate", "max_latency_ms", "canary"}
        made["gate"] = {
            "max_error_rate": _number(said, "max_error_rate", MAX_ERROR_RATE, most=1.0),
            "max_latency_ms": _number(said, "max_latency_ms", MAX_LATENCY_MS) or None,
        }
        made["stages"] = list(_stages(said.get("canary"), warn))
    elif kind == "blue-green":
        used |= {"drain_timeout_ms"}
        made["keep"] = min(_LONGEST_HOLD, _number(said, "drain_timeout_ms", DRAIN_TIMEOUT_MS) / 1000)
    for name in said.keys() - used:
        warn(f"deployment.{name}", f"not supported here for {kind}; ignored")
    return made


def _number(said: Mapping[str, Any], name: str, usual: float, *, most: float = math.inf) -> float:
    value = said.get(name, usual)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        limit = f"from 0 to {most:g}" if most < math.inf else "of at least 0"
        raise Wrong(f"deployment.{name}", f"must be a number {limit}, not {str(value)[:80]!r}")
    return value


def _stages(canary: Any, warn: Callable[[str, str], None]) -> Iterator[dict[str, Any]]:
    given = canary.get("stages") if isinstance(canary, dict) else None
    at = "deployment.canary.stages"
    if given is None:
        given = [{"traffic_percent": weight, "observation_minutes": minutes} for weight, minutes in USUAL_STAGES]
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise Wrong(at, "must be tables: [[deployment.canary.stages]]")
    before = 0
    for number, one in enumerate(given):
        place = f"{at}[{number}]"
        weight, minutes = one.get("traffic_percent", 5), one.get("observation_minutes", 5)
        if not _is_whole(weight) or not before < weight <= 100:
            raise Wrong(
                f"{place}.traffic_percent", f"must be a whole number from {before + 1} to 100, not {_told(weight)}"
            )
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 <= minutes * 60 <= _LONGEST_HOLD:
            raise Wrong(
                f"{place}.observation_minutes", f"must be 0 to {_LONGEST_HOLD // 60} minutes, not {_told(minutes)}"
            )
        for name in one.keys() - {"traffic_percent", "observation_minutes"}:
            warn(f"{place}.{name}", "not supported here; ignored")
        before = weight
        if weight < 100:
            yield {"weight": weight, "hold": float(minutes * 60)}
        elif minutes:
            warn(place, "after the last stage all calls go to the new version; this stage is not observed")


def _told(value: Any) -> str:
    return repr(value)[:80]


# Permissions


def _security(said: Any, warn: Callable[[str, str], None]) -> None:
    callers = "set the field callers (operators, everybody) of a slice in Hostler's own form"
    overrides = said.get("overrides") if isinstance(said, dict) else None
    if isinstance(overrides, dict) and overrides:
        for route, level in overrides.items():
            warn(f"security.overrides.{route}", f"{str(level)[:80]!r} is ignored, only operators may call; {callers}")
    else:
        warn("security", f"ignored, only operators may call; {callers}")


# The line language


def translate_lines(text: str) -> Translated:
    """Translate a file in the line language. Wrong: a line does not belong to it."""
    warnings: list[tuple[str, str]] = []

    def warn(place: str, what: str) -> None:
        warnings.append((place, what))

    made: dict[str, Any] = {}
    slices: dict[str, dict[str, Any]] = {}
    routes: list[tuple[str, re.Match[str]]] = []
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        said, place = line.strip(), f"line {number}"
        if len(said) > LONGEST_LINE:
            raise Wrong(place, f"it has {len(said)} characters, at most {LONGEST_LINE}; shorten it")
        if head := _HEAD.match(said):
            made["name"] = _name(head[1], lambda _, what, place=place: warn(place, what))  # type: ignore[misc]
        elif not said or said.startswith("#"):
            continue
        elif found := _SECTION.match(said):
            section = found[1].strip().lower()
            if section not in ("slices", "routing:http"):
                warn(place, f"section [{section}] is not supported here; ignored")
        elif section == "slices":
            _count(place, said, slices, warn)
        elif section == "routing:http":
            route = _ROUTE.match(said)
            if route is None:
                raise Wrong(place, f"must be METHOD:/path => slice:method(names), not {said[:80]!r}")
            routes.append((place, route))
        elif not section:
            raise Wrong(place, f"must be inside a section: {said[:80]!r}")
    if "name" not in made:
        warn("", "it has no line '# Blueprint: name:version'; the blueprint is named after its file, or by --name")
    for place, route in routes:
        _map_route(place, route, slices, warn)
    made["slices"] = list(slices.values())
    return Translated(made, tuple(warnings))


def _count(place: str, said: str, slices: dict[str, dict[str, Any]], warn: Callable[[str, str], None]) -> None:
    found = _COUNT.match(said)
    if found is None:
        raise Wrong(place, f"must be group:artifact:version = number, not {said[:80]!r}")
    count = found[2].partition("#")[0].strip()
    if re.fullmatch(r"-?[0-9]{10,}", count):
        raise Wrong(place, f"{count[:20]} instances are too many; write a smaller number")
    one = {"artifact": found[1], "instances": int(count) if re.fullmatch(r"-?[0-9]{1,9}", count) else count}
    if found[1] in slices:
        raise Wrong(place, f"{found[1]} is listed already; list it once")
    slices[found[1]] = _slice(place, one, warn)


def _map_route(
    place: str, found: re.Match[str], slices: Mapping[str, dict[str, Any]], warn: Callable[[str, str], None]
) -> None:
    verb, path, target, method, names = found.groups()
    owners = [
        spec
        for artifact, spec in slices.items()
        if target in (artifact, artifact.rpartition(":")[0], artifact.split(":")[1])
    ]
    if len(owners) != 1:
        raise Wrong(
            place, f"{target} matches {counted(len(owners), 'slice')} of this file, not one; write group:artifact"
        )
    in_path = _NAME_IN_PATH.findall(path)
    listed = [name.strip() for name in (names or "").split(",") if name.strip()]
    unused = [name for name in in_path if listed and name not in listed]
    if unused:
        warn(place, f"{', '.join(unused)} of the path is passed to {method}, too: arguments are passed by name here")
    if verb.upper() in ("GET", "DELETE") and (asked := [name for name in listed if name not in in_path]):
        path = f"{path}?{'&'.join(asked)}"
    routes = owners[0].setdefault("routes", {})
    key = f"{verb.upper()} {path}"
    if key in routes:
        raise Wrong(place, f"{key} is mapped already; map it once")
    routes[key] = method
