"""Workloads: a number of machines of one shape, made, kept, replaced and removed by their number.

    machine     pure: the machine that stands for an instance, and what of it is changed in place
    roll        all instances of one workload, sorted by what they are; kept up one by one
    decide      pure: from the wish and the roll to what is to be made, removed, replaced and changed
    sight       keeps the rolls up by the mirrors
    steps       pure: what each step compares, and what it writes
    controller  on the leader: does what was decided, a batch at a time (writing, targets)
    document    workload files, as people write them
    wish        pure: what each request makes of the wish
    shown       pure: what callers are told
    service     what HTTP and the command line call

An instance is an index record, a target and a machine, which come in one transaction and go in one. The machine is an
ordinary machine: it is placed, taken and forgotten by the controllers of machines, which write its target as they do.
What is seen of it is its actual, and is written by the agent that sees it. So target and actual never share a writer.

Not here: where a machine fits (placement), and what a node does (its agent).
"""
