"""Machines that are servers rented from Hetzner Cloud (docs/hetzner.md).

descriptor   what the rest of Hostler knows of this driver
driver       the verbs; `create`, `server_type` (type and location) and `power` (on, off, snapshots) implement them
context      objects that the verbs share; `options` the settings, `local_state` the files on the node
labels       the record of a machine, stored as labels of its server; `status` maps server states to machine states
api          every API call, run in `threads`; `errors` translates failures, `api_types` are the returned values
poller       one API call for all callers that read or wait at the same time; `mapping` turns servers into machines
watch        detects machines that changed by themselves; `readiness` tracks their boot until users can log in
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.kit.lazy_import import importing

if TYPE_CHECKING:
    from hostler.drivers.machines.hetzner.driver import HetznerMachines
    from hostler.drivers.machines.hetzner.options import HetznerOptions, Pace

# The descriptor of the driver is imported often, and the driver only where it is used.
__getattr__ = importing(
    __name__,
    {
        "HetznerMachines": "driver",
        "HetznerOptions": "options",
        "Pace": "options",
    },
)

__all__ = ["HetznerMachines", "HetznerOptions", "Pace"]
