"""The slices of one node: the agent's part that carries out the leader's commands and reports status.

    decide           pure: the next single step of one instance
    running_cache    the running instances, as listed by the driver
    status_writer    reads and writes the node's slice keys and endpoints; batches writes of several instances
    worker           reconciles one instance: read, decide, take one step, repeat
    slice_agent      runs all of the above for one node, as part of its agent
    logs             fetches the output of an instance from its node

The store holds the desired state; the driver lists the observed state. A state is written before its step begins, and a
step that was interrupted is repeated. Endpoints are created in the transaction that writes ACTIVE and deleted in
the transaction that writes DEACTIVATING. They are attached to the lease of the node's session.

Not here: the choice of a node for an instance (the leader decides), and creating processes (a driver does).
"""
