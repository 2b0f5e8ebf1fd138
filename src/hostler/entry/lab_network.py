"""Check whether lab requests from Redis can be served: these users log in at port 22 of an IPv6 address.

Whether guests have one depends on their machine driver. Without one, requests from Redis are not taken and the
reason is reported; everything else works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Invalid
from hostler.keys.node import MEMBER
from hostler.model.node import Lifecycle
from hostler.ports.machine_driver import GuestNetwork
from hostler.wiring import machine_driver

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostler.model.node import NodeRecord
    from hostler.ports.store import Store
    from hostler.settings import Settings

_LEFT = (Lifecycle.DECOMMISSIONED, Lifecycle.SHUTTING_DOWN)


class LabEntry(msgspec.Struct, frozen=True):
    """Whether lab requests are taken from Redis, given the nodes."""

    refusal: str = ""
    """Why requests are not taken, and what to do; empty: they are taken."""
    warning: str = ""
    """What will not work although requests are taken."""


def lab_network(settings: Settings) -> GuestNetwork:
    """Return the guest network for the settings, and whether lab guests are reachable on it."""
    choose = machine_driver(settings.machines).guest_network
    return GuestNetwork() if choose is None else choose(settings)


def _refusal(member: NodeRecord) -> tuple[str, str]:
    """Return why guests of a node are not reachable, and advice. A driver that is not installed here is not judged."""
    try:
        judge = machine_driver(member.driver).guest_network_refusal
    except Invalid:
        return "", ""
    return ("", "") if judge is None else judge(member.facts)


def door_by_nodes(members: Iterable[NodeRecord], *, own: Mapping[str, GuestNetwork] | None = None) -> LabEntry:
    """Decide whether lab requests are taken from Redis: refused only if no serving node has guests at port 22.

    A lab on a node without such guests fails with that reason. Nodes are judged by their records; `own` nodes, which
    may not have registered yet, by their future network.
    """
    own = own or {}
    without = {node: (found.why, found.advice) for node, found in own.items() if found.why}
    serving = set(own)
    for member in members:
        if member.node in own or member.lifecycle in _LEFT:
            continue
        serving.add(member.node)
        why, advice = _refusal(member)
        if why:
            without[member.node] = f"node {member.node}: {why}", f"{advice}, or decommission that node"
    if not without:
        return LabEntry()
    why, advice = without[min(without, key=lambda node: (node not in own, node))]
    if len(without) == len(serving):
        return LabEntry(
            refusal=f"labs are not taken from Redis: {why}; {advice}. HTTP and the CLI still work, with forwarded ports"
        )
    names = ", ".join(sorted(without)[:MOST]) + (", …" if len(without) > MOST else "")
    return LabEntry(warning=f"warning: labs from Redis fail on {names}: {why}; {advice}")


async def door_in(store: Store, *, own: Mapping[str, GuestNetwork] | None = None) -> LabEntry:
    """Decide by the nodes in the store, as `door_by_nodes` does."""
    nodes = await MEMBER.list(store, strict=False)
    return door_by_nodes((entry.value for entry in nodes.entries), own=own)


MOST = 5
