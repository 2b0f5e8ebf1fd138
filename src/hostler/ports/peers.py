"""Peers: the doors of machines that stand on other nodes, wherever their agents run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hostler.ports.machines import Channel, Door


class Doors(Protocol):
    """What others reach of a node: of `Machines`, its `channel`."""

    def channel(self, vm: str, door: Door) -> Channel:
        """Through a door, to be entered; for `Door.SLICE_LOG`, `vm` is an artifact."""


class Peers(Protocol):
    """The port. What `Doors` are for one node, for all of them."""

    def channel(self, node: str, vm: str, door: Door) -> Channel:
        """Through a door of a machine of that node, to be entered.

        On entering as `Machines.channel`; Unavailable also: the node, or its agent, cannot be reached at present.
        """
