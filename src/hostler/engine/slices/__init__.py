"""The slices of one node: the leader's commands made true, and told.

    decide     pure: the next single step of one instance
    known      what the keeper remembers of an instance; all of it can be lost
    sight      what runs, as the driver lists it
    ledger     the node's slice keys and endpoints: what stands there, and writes of many instances at once
    worker     one instance: look, decide, do one step, look again
    keeper     all of it, for a whole node; run by its agent
    printed    what an instance printed, asked of its node from elsewhere

What the store says is the wish; what the driver lists is the world. A state is written before its step is begun, and
the step is done again by whoever finds it begun. Endpoints come with ACTIVE and go with DEACTIVATING, in the same
transaction, and hang on the lease of the node's session.

Not here: where an instance belongs (the leader decides that), and how processes are made (a driver does).
"""
