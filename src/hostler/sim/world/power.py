"""Power switches of the control plane, over simulated pdus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import NotFound, Uncertain
from hostler.sim.hardware import PowerOff
from hostler.sim.hardware.wiring import address_of

if TYPE_CHECKING:
    from hostler.sim.world.hardware import Hardware


class RackPower:
    """`ports.power.Power` over simulated racks. A blade without power is certainly off."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    async def switch_off(self, node: str) -> bool:
        """Switch off every port that feeds the node's blade.

        False: no pdu feeds it. Uncertain: a port ignored the command.
        """
        blade, racks = address_of(node), self._hardware.racks
        try:
            if racks.blade(blade).powered:
                if not racks.wiring(blade).power_to(blade):
                    return False
                self._hardware.apply(PowerOff(blade), cause="fencing")
            still_on = racks.blade(blade).powered
        except NotFound:
            return False
        if still_on:
            raise Uncertain(f"node {node}: a pdu ignored the command; the node may still be on")
        return True
