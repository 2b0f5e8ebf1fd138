"""What the pdus tell the control plane about power, and do for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import NotFound, Uncertain
from hostler.sim.hardware import PowerOff
from hostler.sim.hardware.wiring import address_of

if TYPE_CHECKING:
    from hostler.sim.world.hardware import Hardware


class RackPower:
    """`ports.power.Power` over simulated racks. A blade that has no power already is certainly off."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    async def switch_off(self, node: str) -> bool:
        """Switch off every port that feeds the node's blade. False: no pdu does. Uncertain: one did not follow."""
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
            raise Uncertain(f"node {node}: what feeds it did not follow; it may still be on")
        return True
