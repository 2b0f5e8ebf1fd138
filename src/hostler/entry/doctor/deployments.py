"""Checks of deployments: records that are unreadable or belong to nothing, and failed rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.keys.deployment import BLUEPRINT, SLICE
from hostler.kit.plural import counted
from hostler.model.deployment import base_of
from hostler.model.rollout import AlertState, Phase
from hostler.ports.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from hostler.engine.view import View
    from hostler.keys.key import Key
    from hostler.ports.store import Store

MOST = 20
"""Lines per kind of finding."""
_PAGE = 1_000
_SPREAD = (
    "instances move one at a time, 30 s apart, unless slice_rebalance is never; if they do not, see why: hostler"
    " blueprint status NAME"
)
_GIVEN_UP = (Phase.BACKING_OUT, Phase.FAILED)


async def deployments(store: Store, view: View) -> list[Finding]:
    """Return the findings; empty without blueprints and slices. The caller has refreshed the view."""
    misnamed = [key for family in (BLUEPRINT, SLICE) async for key in _misnamed(store, family)]
    found = [
        *_told(_unreadable(view), "apply the blueprint again; else inspect it: hostler store get KEY", Level.FAIL),
        *_told(
            (f"{key}: not a valid name; no controller watches it" for key in misnamed),
            "apply it under a name of lower-case letters, digits and -, then: hostler store delete KEY",
        ),
        *_told(_homeless(view), "the leader unloads them; check again in a minute"),
        *_told(_doubled(view), "the leader removes one of them; check again in a minute"),
        *_told([line async for line in _crowded(view)], _SPREAD),
        *_told(_firing(view), "see what was measured: hostler blueprint status NAME; its thresholds are its alerts"),
        *_told(_given_up(view), "fix and apply it again, or roll back: hostler blueprint rollback NAME"),
    ]
    if found or not (view.blueprints.entries or view.slices.entries):
        return found
    blueprints = len(view.blueprints.entries)
    count = sum(len(entry.value.each()) for entry in view.slices.entries.values())
    return [Finding("deployments", Level.OK, f"{counted(blueprints, 'blueprint')}, {counted(count, 'instance')}")]


def _told(lines: Iterable[str], advice: str, level: Level = Level.WARN) -> Iterator[Finding]:
    told = list(lines)
    for line in told[:MOST]:
        yield Finding("deployments", level, line, advice)
    if len(told) > MOST:
        yield Finding("deployments", level, f"{len(told) - MOST} more of this kind", advice)


async def _misnamed(store: Store, family: Key[Any]) -> AsyncIterator[str]:
    after = None
    while True:
        page = await store.range(family.prefix(), after=after, limit=_PAGE, keys_only=True)
        for kv in page.items:
            if family.match(kv.key) is None:
                yield kv.key
        if not page.more:
            return
        after = page.items[-1].key


def _unreadable(view: View) -> Iterator[str]:
    for mirror in (view.blueprints, view.owners, view.deployments, view.retries, view.alerts, view.slices):
        for key in mirror.unreadable:
            yield f"{key} cannot be read; its object is not changed"


def _homeless(view: View) -> Iterator[str]:
    named = {spec.base for entry in view.blueprints.entries.values() for spec in entry.value.slices}
    # The content of an unreadable blueprint is unknown, so its owned slices count as named.
    damaged = {one.parts["blueprint"] for one in view.blueprints.unreadable.values()}
    named |= {one.parts["base"] for one in view.owners.entries.values() if one.value.blueprint in damaged}
    counts: dict[str, int] = {}
    for entry in view.slices.entries.values():
        artifact = entry.parts["artifact"]
        if base_of(artifact) not in named:
            counts[artifact] = counts.get(artifact, 0) + len(entry.value.each())
    for artifact in sorted(counts):
        yield f"{artifact}: in no blueprint, but has instances: {counts[artifact]}"


def _doubled(view: View) -> Iterator[str]:
    nodes: dict[tuple[str, int], list[str]] = {}
    for entry in view.slices.entries.values():
        for number in entry.value.each():
            nodes.setdefault((entry.parts["artifact"], number), []).append(entry.parts["node"])
    for (artifact, number), some in sorted(nodes.items()):
        if len(some) > 1:
            yield f"{artifact}#{number} is on {' and '.join(sorted(some))}: instance numbers must be unique"


async def _crowded(view: View) -> AsyncIterator[str]:
    await view.fleet.load()
    for entry in view.blueprints.entries.values():
        for spec in entry.value.slices:
            found = view.fleet.crowded(spec.base, spec.node_labels or {})
            if found is not None:
                node, other = found
                yield f"{spec.artifact}: all of its instances are on node {node}, none on {other}"


def _firing(view: View) -> Iterator[str]:
    for key in sorted(view.alerts.entries):
        alert = view.alerts.entries[key].value
        if alert.state is AlertState.FIRING:
            yield f"blueprint {alert.blueprint}: {alert.why}"


def _given_up(view: View) -> Iterator[str]:
    for entry in view.deployments.entries.values():
        one = entry.value
        if one.phase in _GIVEN_UP:
            serves = f"; {one.previous} serves" if one.previous and one.previous != one.artifact else ""
            why = one.why or f"{one.artifact} was given up"
            yield f"{entry.parts['base']} of blueprint {one.blueprint}: {why}{serves}"
