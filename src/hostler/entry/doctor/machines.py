"""Checks of machines: those of the installed drivers, and of the nodes that run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.keys.node import ALIVE, MEMBER
from hostler.model.node import HOST, HOST_SHARE, Lifecycle
from hostler.model.vm import MachineState
from hostler.ports.finding import Finding, Level
from hostler.settings.driver import GROUPS, installed
from hostler.wiring import machine_driver, machine_drivers

if TYPE_CHECKING:
    from hostler.engine.view import View
    from hostler.model.node import NodeRecord
    from hostler.ports.store import Store
    from hostler.settings import Settings


async def machines(settings: Settings) -> list[Finding]:
    """Run the checks of every installed machine driver, and report drivers that cannot be used."""
    found: list[Finding] = []
    here = machine_driver(settings.machines).on_this_host
    for kind, driver in machine_drivers():
        if driver.examine is not None and (here or kind == settings.machines):
            try:
                found += await driver.examine(settings, kind == settings.machines)
            except Exception as error:  # noqa: BLE001 - a defect in one driver must not hide the other findings
                what = f"the check of {kind} failed: {type(error).__name__}: {error}"
                found.append(Finding("drivers", Level.WARN, what, "report it to the author of that driver"))
    for group in GROUPS:
        found += [
            Finding("drivers", Level.WARN, f"{group}: {name} cannot be used: {why}", "repair its package, or remove it")
            for name, why in installed(group).broken.items()
        ]
    return found


async def refusals(store: Store) -> list[Finding]:
    """Report live nodes that do not accept machines."""
    alive = {entry.parts["node"] for entry in (await ALIVE.list(store, strict=False)).entries}
    return [
        Finding(
            "nodes",
            Level.WARN,
            f"{entry.value.node} accepts no machines: {entry.value.refuses}",
            "fix that on the node",
        )
        for entry in (await MEMBER.list(store, strict=False)).entries
        if entry.value.refuses and entry.parts["node"] in alive
    ]


async def shared_hosts(store: Store) -> list[Finding]:
    """Report every host on which one node offers the whole capacity and another a share.

    Placement counts machines on any of its nodes against the nodes that offer the whole host. A share is always
    offered.
    """
    hosts: dict[str, list[NodeRecord]] = {}
    for entry in (await MEMBER.list(store, strict=False)).entries:
        record = entry.value
        if record.facts.get(HOST) and record.lifecycle is not Lifecycle.DECOMMISSIONED:
            hosts.setdefault(record.facts[HOST], []).append(record)
    found = []
    for records in hosts.values():
        whole = sorted(record.node for record in records if not record.facts.get(HOST_SHARE))
        shares = sorted(record.node for record in records if record.facts.get(HOST_SHARE))
        if whole and shares:
            both = f"{', '.join(whole)} and {', '.join(shares)}"
            what = f"{both} are on one host: the former offer all of its capacity, the latter a share"
            advice = (
                f"set nodes = {len(records)} (HOSTLER_NODES) for each of these agents, or give them one data folder"
            )
            found.append(Finding("nodes", Level.WARN, what, advice))
    return found


def paused(view: View) -> list[Finding]:
    """Return a finding for every guest that is paused because its node has no free disk space."""
    advice = "free some space on its node, or enlarge it; the guest then resumes"
    found = []
    for entry in view.handles.entries.values():
        handle = entry.value
        if handle.paused and handle.state is MachineState.RUNNING:
            vm = view.vms.get(org=entry.parts["org"], project=entry.parts["project"], vm=entry.parts["vm"])
            name = f"{entry.parts['org']}/{entry.parts['project']}/{handle.id if vm is None else vm.value.name}"
            found.append(Finding("machines", Level.WARN, f"{name} on {handle.node} is paused: {handle.detail}", advice))
    return found
