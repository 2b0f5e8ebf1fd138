"""Peers: the way to a machine, on whichever node it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hostler.ports.machines import Channel, Door


class Peers(Protocol):
    """The port: machines of this process's nodes, and through their agents those of all others."""

    def channel(self, node: str, vm: str, door: Door) -> Channel:
        """Through a door of a machine that stands on a node, to be entered; as `Machines.channel`.

        NotFound on entering: the node is none, or has no such machine, or it is off. Unavailable: the node cannot be
        reached, or the door not at present. Refused: there is no way to machines of that node.
        """
