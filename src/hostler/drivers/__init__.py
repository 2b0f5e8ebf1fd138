"""Implementations of the ports: one package per port, one driver per technology.

`privileges` has the rights of the processes that drivers start, for machines and slices.

A driver translates and decides nothing. It turns foreign exceptions into Hostler's errors, and knows neither the engine
nor the drivers of other ports. Only `hostler.sim` names drivers; all others find them by
name (`hostler.settings.driver`).
"""

from __future__ import annotations

BUILT_IN = {
    "hostler.machines": {
        "simulated": "hostler.drivers.machines.simulated.descriptor:DRIVER",
        "qemu": "hostler.drivers.machines.qemu.descriptor:DRIVER",
        "hetzner": "hostler.drivers.machines.hetzner.descriptor:DRIVER",
    },
    "hostler.stores": {
        "memory": "hostler.drivers.store.descriptors:MEMORY",
        "etcd": "hostler.drivers.store.descriptors:ETCD",
        "etcds": "hostler.drivers.store.descriptors:ETCDS",
        "sqlite": "hostler.drivers.store.descriptors:SQLITE",
        "file": "hostler.drivers.store.descriptors:FILE",
    },
    "hostler.ttl": {
        "redis": "hostler.drivers.ttl.descriptors:REDIS",
        "rediss": "hostler.drivers.ttl.descriptors:REDISS",
        "dynamodb": "hostler.drivers.ttl.descriptors:DYNAMODB",
        "cassandra": "hostler.drivers.ttl.descriptors:CASSANDRA",
    },
    "hostler.power": {
        "redfish": "hostler.drivers.power.descriptors:REDFISH",
        "redfish+http": "hostler.drivers.power.descriptors:REDFISH_HTTP",
        "ipmi": "hostler.drivers.power.descriptors:IPMI",
    },
}
"""The drivers of Hostler itself, by group. They are the entry points in `pyproject.toml` too.

This table counts, because the metadata of a checkout is as old as its last installation.
"""
