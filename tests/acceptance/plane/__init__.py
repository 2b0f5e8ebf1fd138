"""The control plane as it is run: replicas and agents as processes, on three members of etcd, while parts of it fail.

company         the processes, and who supervises them
traffic         clients that ask and change things all the time, and know what they have wished for
record          what the simulated machines themselves wrote down, and what was written into the store by whom
"""
