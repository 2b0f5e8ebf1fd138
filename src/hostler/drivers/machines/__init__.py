"""Drivers of the machines port: each driver runs the virtual machines of a node.

    simulated   machines that are records in a file that outlives the agent: for tests, simulation and evaluation
    qemu        QEMU processes on the node itself
    hetzner     servers rented from Hetzner Cloud

Not here: specs, commands, leases, placement or the store. A driver knows which machines exist on its node and how to
change them one step at a time. The agent decides which machines should exist.
"""
