"""Channels to machines on other nodes, wherever their agents run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hostler.ports.machines import Channel, ChannelKind


class NodeChannels(Protocol):
    """The part of `Machines` that other nodes can reach: its `channel`."""

    def channel(self, vm: str, kind: ChannelKind) -> Channel:
        """Return a channel, to be entered; for `ChannelKind.SLICE_LOG`, `vm` is an artifact."""


class Peers(Protocol):
    """The `NodeChannels` of all nodes."""

    def channel(self, node: str, vm: str, kind: ChannelKind) -> Channel:
        """Return a channel into a machine of that node, to be entered.

        On entering as `Machines.channel`; Unavailable also: the node, or its agent, cannot be reached at present.
        """
