"""Kill -9 of agents, of QEMU, and of both, at every step of what is done to real machines.

    table       the machines' processes, as the kernel knows them: who runs where, who is killed
    launcher    forks the replica and the agents (`crash_points.launcher`), whose machines are QEMU's here
    watching    looks all the time that no machine has two processes, and no guest runs in two places
    scene       one control plane on a folder of its own, and what must be there in the end
    story       a verb, killed at a step
    campaign    every step of a verb with one kind of kill, or with all

Not here: anything that the product knows of.
"""
