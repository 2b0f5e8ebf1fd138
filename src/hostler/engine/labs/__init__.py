"""Labs: a machine for every student, for a while.

    wish        pure: what each request, and each thing that is seen, makes of a user's record
    line        who waits, in which order, and how many labs of each kind there are
    service     what HTTP and the command line call
    worker      present at the door's queues, and heir of workers that are not any more
    shift       takes requests from the queues, writes them down, acknowledges them
    controller  on the leader: gives labs their machines, and takes them away in time (admission, decide, sight, steps;
                fit: could any node have it, ground: is its node silent, offer: which labs there are)
    pool        on the leader: machines that are ready ahead (shape, shelf, stock, transfer)
    projector   on the leader: shows at the door what the store says

One record of the store says all that is true of a user's lab, and every write of it compares what was read. The lab's
machine is an ordinary machine, which the controllers and agents take care of.

Not here: how the door is made (a port), and how a machine is made and placed.
"""
