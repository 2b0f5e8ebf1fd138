"""What the leader does: bring the world and the wishes together, one small guarded write at a time.

    decision   pure: from what is wished for and what there is to the next single step
    machines   places virtual machines, passes wishes on to nodes, takes machines from nodes, forgets what is gone
    nodes      takes nodes on duty, out of it, and has silent ones switched off
    janitor    what has expired
    compaction old history of a store that keeps it

Controllers get names, never events; missing an event does not matter. They meet only in the store. Every write carries
the leader's guard and the revisions that it was decided from.

Not here: what to do on a node (the agent decides that), and where a machine fits (placement).
"""
