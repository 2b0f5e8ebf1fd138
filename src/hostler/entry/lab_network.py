"""Check whether lab requests from Redis can be served: these users log in at port 22 of an IPv6 address.

QEMU guests have an IPv6 address only on a bridge. Without one, requests from Redis are not taken and the reason is
reported; everything else works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.keys.node import MEMBER
from hostler.model.node import Lifecycle
from hostler.wiring import bridge_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostler.model.node import NodeRecord
    from hostler.ports.store import Store
    from hostler.settings import Settings

_LEFT = (Lifecycle.DECOMMISSIONED, Lifecycle.SHUTTING_DOWN)


class LabNetwork(msgspec.Struct, frozen=True):
    """The guest network that follows from the settings, and whether lab guests are reachable on it."""

    network: str
    """The value to use for the setting `network`."""
    why: str = ""
    """Why guests have no address of their own; empty: they have one, or do not need one."""
    advice: str = ""


class LabEntry(msgspec.Struct, frozen=True):
    """Whether lab requests are taken from Redis, given the nodes."""

    refusal: str = ""
    """Why requests are not taken, and what to do; empty: they are taken."""
    warning: str = ""
    """What will not work although requests are taken."""


def lab_network(settings: Settings) -> LabNetwork:
    """Return the guest network for the settings; a bridge is tested.

    With Redis, QEMU guests use Hostler's own bridge unless the settings name another network. The test takes a few
    milliseconds, and Hostler's own bridge is not removed afterwards.
    """
    network, origin = settings.network, settings.origins["network"]
    if settings.redis is None or settings.machines != "qemu":
        return LabNetwork(network)
    named = network.startswith("bridge")
    if not named and origin.layer != "default":
        return LabNetwork(network, f"network = {network} ({origin}) gives guests no IPv6 address", _SET)
    why, _, advice = bridge_refusal(settings).partition("; ")
    if why:
        return LabNetwork(network, why, advice or "fix this and restart")
    return LabNetwork(network if named else "bridge")


def door_by_nodes(members: Iterable[NodeRecord], *, own: Mapping[str, LabNetwork] | None = None) -> LabEntry:
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
        network = member.facts.get("network", "not known")
        if member.driver == "qemu" and not network.startswith("bridge "):
            why = network.removeprefix("none: ")
            what = why if why != network else f"its guests have no IPv6 address (network: {network.partition(';')[0]})"
            why = f"node {member.node}: {what.partition('; ')[0]}"
            without[member.node] = why, f"{_SET} there, or decommission that node"
    if not without:
        return LabEntry()
    why, advice = without[min(without, key=lambda node: (node not in own, node))]
    if len(without) == len(serving):
        return LabEntry(
            refusal=f"labs are not taken from Redis: {why}; {advice}. HTTP and the CLI still work, with forwarded ports"
        )
    names = ", ".join(sorted(without)[:MOST]) + (", …" if len(without) > MOST else "")
    return LabEntry(warning=f"warning: labs from Redis fail on {names}: {why}; {advice}")


async def door_in(store: Store, *, own: Mapping[str, LabNetwork] | None = None) -> LabEntry:
    """Decide by the nodes in the store, as `door_by_nodes` does."""
    nodes = await MEMBER.list(store, strict=False)
    return door_by_nodes((entry.value for entry in nodes.entries), own=own)


MOST = 5
_SET = "set network = bridge, or bridge:NAME"
