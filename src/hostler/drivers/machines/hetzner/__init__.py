"""Machines that are rented at Hetzner Cloud (docs/hetzner.md).

driver      the verbs; what they do is in `making`, `choice` (which type, where) and `power` (on, off, snapshots)
site        what they share; `options` what can be chosen, `kept` what the node itself keeps
labels      what is known of a machine, as labels of its server; `status` what its state is
api         every call, in `threads`; `trouble` what it means when one fails, `value` what comes back
looking     one call for all who look or wait at the same time
watch       machines that changed by themselves; `readiness` how far they are on their way to their users
"""

from __future__ import annotations

from hostler.drivers.machines.hetzner.driver import HetznerMachines
from hostler.drivers.machines.hetzner.options import HetznerOptions, Pace

__all__ = ["HetznerMachines", "HetznerOptions", "Pace"]
