"""Kill -9 at every point of every verb, of real processes on a real store.

    points      what a process counts and where it dies: the hook around its store and inside its machines
    launcher    one warm process that forks replicas and agents; they run what `hostler replica` and `agent` run
    children    the launcher and its children, as a test sees them
    scene       one control plane on a folder of its own: what a user wishes for, and what must be there in the end

Not here: anything that the product knows of.
"""
