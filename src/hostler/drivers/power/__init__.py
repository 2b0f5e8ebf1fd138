"""Power switches of nodes.

command   an operator's own program, which knows the power strips or the management boards
board     management boards: ask for off, and believe only what is read back
redfish   a board that speaks Redfish
ipmi      a board that speaks IPMI, by ipmitool
by_node   which of them a node has
program   runs a program to its end

Not here: when a node is switched off. The leader's node controller decides that.
"""

from __future__ import annotations

from hostler.drivers.power.board import Board, BoardPower
from hostler.drivers.power.by_node import PowerByNode
from hostler.drivers.power.command import CommandPower
from hostler.drivers.power.ipmi import IpmiAddress, IpmiBoard
from hostler.drivers.power.redfish import RedfishAddress, RedfishBoard

__all__ = [
    "Board",
    "BoardPower",
    "CommandPower",
    "IpmiAddress",
    "IpmiBoard",
    "PowerByNode",
    "RedfishAddress",
    "RedfishBoard",
]
