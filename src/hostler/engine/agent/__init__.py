"""The agent of one node: carries out the leader's commands and reports the observed state.

    config             configuration and state of an agent
    decide             pure: the next step for one machine, and the handle that reports on it
    session            registration and heartbeat of the node; extends the fencing deadline while the store confirms it
    node_registration  the node record that the agent writes, with the capacity and images of the node
    status_reporter    handles, written under the command and session that they refer to
    worker             one machine: observe, decide, take one step, repeat
    migration          the transaction that gives a machine to another node, and the transfer before it
    retained           machines that are out of service and kept
    agent              composition of all of these for one node

Placement (the leader decides it) and the creation of machines (a driver does it) do not belong in this package.
"""
