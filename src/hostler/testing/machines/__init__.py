"""Conformance suite of the machines port: what a driver must do, one claim at a time.

    from hostler.testing import MachineSetup, check_machines

    async def test_my_driver_makes_machines(tmp_path):
        await check_machines(lambda: MyMachines(tmp_path), setup=MachineSetup(within=60, grace=10, late=2))

For a separate test of each claim, use `machine_claims()` as with the suite of stores. The driver creates real machines
according to the setup, a few at a time, and all are removed. Other machines at its place are not touched.
"""

from __future__ import annotations

from hostler.testing.machines.claim import MachineClaim, MachineSetup, MachineTrial, check_machines, machine_claims

__all__ = ["MachineClaim", "MachineSetup", "MachineTrial", "check_machines", "machine_claims"]
