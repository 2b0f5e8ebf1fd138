"""Controllers of the leader: they reconcile desired and observed state, one small guarded write at a time.

    decision            pure: from desired and observed state to the next single step
    machines            places machines, passes specs to nodes, takes machines from nodes, deletes finished records
    node_decision       pure: from the records of a node to its next step, and its transaction
    nodes               changes the lifecycle of nodes, and fences unreachable ones
    janitor             deletes what has expired
    garbage_collection  compacts the history of a store that does not do so itself; deletes old decisions

Controllers get names, never events; missing an event does not matter. They interact only through the store. Every write
carries the leader's guard and the revisions that it was decided from.

Not here: what to do on a node (the agent decides that), and where a machine fits (placement).
"""
