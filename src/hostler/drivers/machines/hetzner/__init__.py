"""Machines that are servers rented from Hetzner Cloud (docs/hetzner.md).

descriptor   what the rest of Hostler knows of this driver, and its options
driver       the verbs; `create` and `power` (on, off, snapshots) implement them
context      objects that the verbs share; files on the node included
labels       the record of a machine, stored as labels of its server; `mapping` turns servers into machines
api          every API call, each in a thread; `api_types` the returned values, states and errors
poller       one API call for all callers that read or wait at the same time; it detects machines that changed by
             themselves
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.kit.lazy_import import importing

if TYPE_CHECKING:
    from hostler.drivers.machines.hetzner.descriptor import HetznerOptions, Pace
    from hostler.drivers.machines.hetzner.driver import HetznerMachines

# The descriptor of the driver is imported often, and the driver only where it is used.
__getattr__ = importing(
    __name__,
    {
        "HetznerMachines": "driver",
        "HetznerOptions": "descriptor",
        "Pace": "descriptor",
    },
)

__all__ = ["HetznerMachines", "HetznerOptions", "Pace"]
