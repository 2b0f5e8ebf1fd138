"""Drivers of the machines port: each makes virtual machines on the node it runs on.

    simulated   machines that are records in a place which outlives the agent: for tests, simulation and trying out

Not here: wishes, commands, leases, placement or the store. A driver knows what there is on its node and how to change
it one step at a time; what there should be is the agent's affair.
"""
