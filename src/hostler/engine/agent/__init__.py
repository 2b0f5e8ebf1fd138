"""The agent of one node: makes true what the leader commands, and tells what there is.

    plan      what an agent is told about its node, and what it tells of itself
    decide    pure: the next single step for one machine, and the handle that tells of it
    session   the node's registration and heartbeat; holds fenced machines while the store knows that the node lives
    report    handles, written under the command and the session that they speak of
    worker    one machine: look, decide, do one step, look again
    journey   machines that depart and arrive, as a worker sees them
    handover  the transaction that makes a machine another node's, and the way there
    offering  what the node has to offer, kept up to date in its record
    agenda    who is to be worked on, now or later
    agent     all of it, for a whole node

Not here: where a machine belongs (the leader decides that), and how machines are made (a driver does).
"""
