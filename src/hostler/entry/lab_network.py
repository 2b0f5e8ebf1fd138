"""Whether labs can be asked for through Redis: who asks there logs in at port 22 of an IPv6 address.

Guests of QEMU have one on a bridge only. Where they have none that door stays closed, and says why; all else works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.model.node import Lifecycle
from hostler.wiring import bridge_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.model.node import NodeRecord
    from hostler.settings import Settings

_LEFT = (Lifecycle.DECOMMISSIONED, Lifecycle.SHUTTING_DOWN)


class LabNetwork(msgspec.Struct, frozen=True):
    """What follows from the settings for the network of guests, and for the door."""

    network: str
    """The setting `network`, as it shall be."""
    refusal: str = ""
    """Why the Redis door stays closed, and what to do; empty: it opens."""


def lab_network(settings: Settings) -> LabNetwork:
    """With Redis, guests of QEMU are on Hostler's own bridge unless another network is named. The bridge is tried out.

    It takes some milliseconds, and the bridge stays.
    """
    network, origin = settings.network, settings.origins["network"]
    if settings.redis is None or settings.machines != "qemu" or network.startswith("bridge:"):
        return LabNetwork(network)
    if network != "bridge" and origin.layer != "default":
        return LabNetwork(network, _closed(f"network = {network} ({origin}) gives guests no IPv6 address", _SET))
    why, _, advice = bridge_refusal(settings).partition("; ")
    if why:
        return LabNetwork(network, _closed(why, advice or "see to it and start again"))
    return LabNetwork("bridge")


def refusal_by_nodes(members: Iterable[NodeRecord]) -> str:
    """The same for a worker alone, which sees of the nodes what they say of themselves."""
    for member in sorted(members, key=lambda member: member.node):
        if member.driver != "qemu" or member.lifecycle in _LEFT:
            continue
        network = member.facts.get("network", "not known")
        if not network.startswith("bridge "):
            why = network.removeprefix("none: ")
            what = why if why != network else f"its guests have no IPv6 address (network: {network.partition(';')[0]})"
            return _closed(f"node {member.node}: {what.partition('; ')[0]}", f"{_SET} there, or decommission that node")
    return ""


_SET = "set network = bridge, or bridge:NAME"


def _closed(why: str, advice: str) -> str:
    return f"labs are not taken from Redis: {why}; {advice}. HTTP and the CLI take them through forwarded ports"
