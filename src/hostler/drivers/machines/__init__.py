"""Drivers of the machines port: each makes the virtual machines of a node.

    simulated   machines that are records in a place which outlives the agent: for tests, simulation and trying out
    qemu        processes on the node itself
    hetzner     servers that are rented at Hetzner Cloud

Not here: wishes, commands, leases, placement or the store. A driver knows what there is on its node and how to change
it one step at a time; what there should be is the agent's affair.
"""
