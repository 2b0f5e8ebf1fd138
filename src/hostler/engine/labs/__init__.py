"""Labs: a temporary VM for each student.

    state_machine    pure: how each request and each observation changes a user's record
    service          called by the HTTP API and the CLI; what an account may do with labs
    worker           consumes the request queues, and takes over the requests of dead workers
    queue_consumer   takes requests from the queues, writes them to the store, acknowledges them
    controller       on the leader: gives labs their VMs and removes them in time (admission, decide, lab_cache,
                     transactions; catalogue: the available labs, and whether any node could run their VMs)
    pool             on the leader: the warm pool (pool_cache, pool_decide, vm_reassignment)
    projector        on the leader: publishes the state of labs for the front end

One record of the store holds the complete state of a user's lab, and every write of it compares what was read. The VM
of a lab is an ordinary VM that the controllers and agents manage.

The drivers of the queues, and the creation and placement of VMs, do not belong in this package.
"""
