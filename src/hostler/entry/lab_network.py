"""Whether labs can be asked for through Redis: who asks there logs in at port 22 of an IPv6 address.

Guests of QEMU have one on a bridge only. Where they have none that door stays closed, and says why; all else works.
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
    """What follows from the settings for the network of guests, and for the door."""

    network: str
    """The setting `network`, as it shall be."""
    why: str = ""
    """Why guests have no address of their own; empty: they have, or it does not matter."""
    advice: str = ""


class Door(msgspec.Struct, frozen=True):
    """What the nodes mean for the door to Redis."""

    refusal: str = ""
    """Why it stays closed, and what to do; empty: it opens."""
    warning: str = ""
    """What will not work though it opens."""


def lab_network(settings: Settings) -> LabNetwork:
    """With Redis, guests of QEMU are on Hostler's own bridge unless another network is named. A bridge is tried out.

    It takes some milliseconds, and our own bridge stays.
    """
    network, origin = settings.network, settings.origins["network"]
    if settings.redis is None or settings.machines != "qemu":
        return LabNetwork(network)
    named = network.startswith("bridge")
    if not named and origin.layer != "default":
        return LabNetwork(network, f"network = {network} ({origin}) gives guests no IPv6 address", _SET)
    why, _, advice = bridge_refusal(settings).partition("; ")
    if why:
        return LabNetwork(network, why, advice or "see to it and start again")
    return LabNetwork(network if named else "bridge")


def door_by_nodes(members: Iterable[NodeRecord], *, own: Mapping[str, LabNetwork] | None = None) -> Door:
    """Closed only if no node that serves has guests at port 22. A lab on one that has not ends with that reason.

    Nodes are judged by what they say of themselves; `own` ones, which may not have said it yet, by how they will be.
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
        return Door()
    why, advice = without[min(without, key=lambda node: (node not in own, node))]
    if len(without) == len(serving):
        return Door(
            refusal=f"labs are not taken from Redis: {why}; {advice}. HTTP and the CLI take them through forwarded"
            " ports"
        )
    names = ", ".join(sorted(without)[:MOST]) + (", …" if len(without) > MOST else "")
    return Door(warning=f"warning: labs from Redis fail on {names}: {why}; {advice}")


async def door_in(store: Store, *, own: Mapping[str, LabNetwork] | None = None) -> Door:
    """The same, by the nodes in the store."""
    nodes = await MEMBER.list(store, strict=False)
    return door_by_nodes((entry.value for entry in nodes.entries), own=own)


MOST = 5
_SET = "set network = bridge, or bridge:NAME"
