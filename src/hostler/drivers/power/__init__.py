"""Power switches of nodes.

command   an operator's own program, which controls power strips or management boards
bmc       management boards: request power-off, and trust only the state that is read back
redfish   a board that speaks Redfish
ipmi      a board that speaks IPMI, through ipmitool
by_node   which of them a node has
program   runs a program to its end

Not here: when a node is switched off. The leader's node controller decides that.
"""

from __future__ import annotations

from hostler.drivers.power.bmc import Bmc, BmcPower, RedfishAddress, RedfishBmc
from hostler.drivers.power.by_node import PowerByNode
from hostler.drivers.power.program import CommandPower, IpmiAddress, IpmiBmc

__all__ = [
    "Bmc",
    "BmcPower",
    "CommandPower",
    "IpmiAddress",
    "IpmiBmc",
    "PowerByNode",
    "RedfishAddress",
    "RedfishBmc",
]
