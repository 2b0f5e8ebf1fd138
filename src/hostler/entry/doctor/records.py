"""Findings of `hostler doctor` about the records in the store: deployments, the inventory, labs, retained machines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hostler.engine.controllers.retention import keeps_disk
from hostler.engine.inventory.check import rack_faults
from hostler.engine.inventory.export import inventory_from, natural
from hostler.engine.inventory.plan import rack_of
from hostler.engine.labs.catalogue import catalogue_problems
from hostler.entry.cli.options import redacted
from hostler.entry.data_dir import DataFolder
from hostler.entry.labs import own_catalogue
from hostler.errors import HostlerError, Invalid, NotFound, Unavailable
from hostler.keys.families import BLUEPRINT, MEMBER, RACK, RETAINED, SLICE, VM, WORKLOAD, ZONE
from hostler.keys.lab import LAB_CATALOGUE
from hostler.kit.plural import counted
from hostler.model.deployment import base_of
from hostler.model.lab import utc_time
from hostler.model.rollout import AlertState, Phase
from hostler.model.vm import OnNodeLoss
from hostler.ports.machine_driver import Finding, Level
from hostler.wiring import open_inbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from hostler.engine.inventory.check import Fault
    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.engine.view import View
    from hostler.keys.key import Key
    from hostler.model.inventory import Hardware
    from hostler.ports.store import Store
    from hostler.settings import Settings


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
    misnamed = [key for family in (BLUEPRINT, SLICE) async for key in _misnamed_keys(store, family)]
    found = [
        *_record_findings(
            _unreadable(view), "apply the blueprint again; else inspect it: hostler store get KEY", Level.FAIL
        ),
        *_record_findings(
            (f"{key}: not a valid name; no controller watches it" for key in misnamed),
            "apply it under a name of lower-case letters, digits and -, then: hostler store delete KEY",
        ),
        *_record_findings(_slices_without_node(view), "the leader unloads them; check again in a minute"),
        *_record_findings(_doubled_names(view), "the leader removes one of them; check again in a minute"),
        *_record_findings([line async for line in _crowded_nodes(view)], _SPREAD),
        *_record_findings(
            _firing(view), "see what was measured: hostler blueprint status NAME; its thresholds are its alerts"
        ),
        *_record_findings(_given_up(view), "fix and apply it again, or roll back: hostler blueprint rollback NAME"),
    ]
    if found or not (view.blueprints.entries or view.slices.entries):
        return found
    blueprints = len(view.blueprints.entries)
    count = sum(len(entry.value.each()) for entry in view.slices.entries.values())
    return [Finding("deployments", Level.OK, f"{counted(blueprints, 'blueprint')}, {counted(count, 'instance')}")]


def _record_findings(lines: Iterable[str], advice: str, level: Level = Level.WARN) -> Iterator[Finding]:
    told = list(lines)
    for line in told[:MOST]:
        yield Finding("deployments", level, line, advice)
    if len(told) > MOST:
        yield Finding("deployments", level, f"{len(told) - MOST} more of this kind", advice)


async def _misnamed_keys(store: Store, family: Key[Any]) -> AsyncIterator[str]:
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


def _slices_without_node(view: View) -> Iterator[str]:
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


def _doubled_names(view: View) -> Iterator[str]:
    nodes: dict[tuple[str, int], list[str]] = {}
    for entry in view.slices.entries.values():
        for number in entry.value.each():
            nodes.setdefault((entry.parts["artifact"], number), []).append(entry.parts["node"])
    for (artifact, number), some in sorted(nodes.items()):
        if len(some) > 1:
            yield f"{artifact}#{number} is on {' and '.join(sorted(some))}: instance numbers must be unique"


async def _crowded_nodes(view: View) -> AsyncIterator[str]:
    await view.fleet.load()
    for entry in view.blueprints.entries.values():
        for spec in entry.value.slices:
            found = view.fleet.crowded_nodes(spec.base, spec.node_labels or {})
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


"""Lines per kind of finding."""
_FILE = "correct the file and load it again: hostler inventory show -o yaml, hostler inventory load FILE"


def inventory(view: View) -> list[Finding]:
    """Return the findings; empty without an inventory."""
    mirrors = view.inventory.mirrors.values()
    records: dict[str, Hardware] = {key: entry.value for mirror in mirrors for key, entry in mirror.entries.items()}
    if not records:
        return []
    whole = inventory_from(records)
    found: list[Finding] = []
    for lines, advice in (
        (_unlisted_nodes(view), "add its blade to the inventory, or stop its agent and remove it: hostler node remove"),
        (_hardware_without_parent(records), _FILE),
        (_wrong(whole), _FILE),
    ):
        told = list(lines)
        found += [Finding("inventory", Level.WARN, line, advice) for line in told[:MOST]]
        if len(told) > MOST:
            found.append(Finding("inventory", Level.WARN, f"{len(told) - MOST} more of this kind", advice))
    racks, blades = len(whole.racks), sum(len(full.blades) for full in whole.racks)
    return found or [Finding("inventory", Level.OK, f"{counted(racks, 'rack')}, {counted(blades, 'blade')}")]


def _unlisted_nodes(view: View) -> Iterator[str]:
    for node in sorted(view.inventory.unlisted(), key=natural):
        yield f"node {node} is not in the inventory, but its rack is: no machines are placed on it"


def _hardware_without_parent(records: dict[str, Hardware]) -> Iterator[str]:
    """Yield records whose rack or zone has no record."""
    racks = {rack for key in records if (rack := rack_of(key)) and RACK.fill(rack=rack) not in records}
    for rack in sorted(racks, key=natural):
        yield f"rack {rack} has no record, but other records refer to it"
    for full in inventory_from(records).racks:
        top = full.rack
        if top.zone and ZONE.fill(region=top.region, zone=top.zone) not in records:
            yield f"rack {top.name} is in zone {top.region}/{top.zone}, which has no record"


def _wrong(whole: Inventory) -> Iterator[str]:
    for full in whole.racks:
        for fault in rack_faults(full):
            yield f"rack {full.rack.name}: {_path(fault)}: {fault.what}"


def _path(fault: Fault) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.path).removeprefix(".")


WITHIN = 5.0


async def labs(settings: Settings) -> list[Finding]:
    """Return the findings; empty without any lab settings."""
    found = [] if settings.labs is None else [_catalogue(settings)]
    # The Redis URL may have been given on the command line of the control plane only.
    redis = settings.redis or DataFolder(settings.data).read(DataFolder(settings.data).redis_file)
    if redis is not None:
        found.append(await _redis(redis))
    return found


async def lab_problems(store: Store, settings: Settings) -> list[Finding]:
    """Return problems of the lab catalogue with the existing nodes."""
    try:
        catalogue = own_catalogue(settings)
    except (Invalid, NotFound):
        return []  # `labs` reports it
    if catalogue is None:
        entry = await LAB_CATALOGUE.get(store, name="default")
        if entry is None:
            return []
        catalogue = entry.value
    records = [entry.value for entry in (await MEMBER.list(store, strict=False)).entries]
    found = []
    for problem in catalogue_problems(catalogue, records):
        what, _, advice = problem.partition("; ")
        found.append(Finding("labs", Level.WARN, what, advice))
    return found


def _catalogue(settings: Settings) -> Finding:
    try:
        catalogue = own_catalogue(settings)
    except (Invalid, NotFound) as error:
        what, _, advice = str(error).partition("; ")
        return Finding("labs", Level.FAIL, what, advice or "correct it: no process starts with it")
    known = None if catalogue is None else catalogue.labs
    many = "every id is a lab" if known is None else counted(len(known), "lab")
    return Finding("labs", Level.OK, f"{settings.labs}: {many}")


async def _redis(url: str) -> Finding:
    """Check Redis by listing its workers, which changes nothing."""
    name = redacted(url)
    try:
        async with asyncio.timeout(WITHIN), open_inbox(url) as inbox:
            workers = len(await inbox.workers())
    except (Unavailable, TimeoutError) as error:
        why = str(error).partition("; ")[0].rpartition(": ")[2] or f"no answer within {WITHIN:g} s"
        return Finding(
            "redis",
            Level.FAIL,
            f"{name}: {why}",
            "start it; running labs continue, and requests are taken once it answers",
        )
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return Finding("redis", Level.FAIL, f"{name}: {what.rpartition(': ')[2]}", advice or "correct the URL")
    if not workers:
        return Finding("redis", Level.WARN, f"{name} answers, but no worker takes requests", "hostler up --redis URL")
    return Finding("redis", Level.OK, f"{name} answers; {counted(workers, 'worker')} of labs")


MOST_NAMED = 5
"""Names that are listed."""


async def retained_machines(store: Store, settings: Settings) -> list[Finding]:
    """Return the findings of the whole cluster."""
    return [*await _kept_machines(store, settings), *await _old_fences(store)]


async def _kept_machines(store: Store, settings: Settings) -> list[Finding]:
    entries = sorted((await RETAINED.list(store, strict=False)).entries, key=lambda entry: entry.value.retained_at)
    if not entries:
        return []
    named = [
        f"{entry.value.vm_name or entry.value.vm} on {entry.parts['node']}"
        f" until {utc_time(entry.value.kept_since + settings.retention)[:10]}"
        for entry in entries
    ]
    what = f"{counted(len(entries), 'machine')} retained: {few(named)}"
    found = [Finding("retained", Level.WARN, what, "hostler vm retained list; restore what is needed")]
    members = {entry.parts["node"]: entry.value for entry in (await MEMBER.list(store, strict=False)).entries}
    lost = [
        f"{entry.value.vm_name or entry.value.vm} of {entry.parts['node']}"
        for entry in entries
        if not keeps_disk(members.get(entry.parts["node"]), entry.value)
    ]
    if lost:
        what = f"no node has the disks of {few(lost)}: the nodes were removed, or use another data folder"
        advice = (
            "start their agents with the data folders of these disks, or delete the records: hostler vm retained delete"
        )
        found.append(Finding("retained", Level.WARN, what, advice))
    return found


async def _old_fences(store: Store) -> list[Finding]:
    """Report VMs and workloads from before `fence` meant that machines return with their disks."""
    names = [
        f"{entry.value.org}/{entry.value.project}/{entry.value.name}"
        for entry in (await VM.list(store, strict=False)).entries
        if entry.value.on_node_loss is OnNodeLoss.FENCE and entry.value.recreates and not entry.value.instance
    ]
    workloads = [
        f"workload {entry.value.name}"
        for entry in (await WORKLOAD.list(store, strict=False)).entries
        if entry.value.loss is not entry.value.on_node_loss
    ]
    advice = []
    if names:
        advice += ["hostler vm update NAME --on-node-loss fence keeps the disk; --on-node-loss recreate confirms it"]
    if workloads:
        advice += ["apply the workload with on_node_loss: fence, which keeps the disks, or recreate, which confirms it"]
    if not advice:
        return []
    old = few([*names, *workloads])
    what = f"on_node_loss=fence of an earlier release: {old} get new disks when their nodes are lost"
    return [Finding("on_node_loss", Level.WARN, what, "; ".join(advice))]


def few(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f", and {len(names) - MOST} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
