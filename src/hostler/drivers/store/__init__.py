"""Drivers of the store port.

    memory   the reference: everything in this process, for tests and simulation      memory.py on mvcc.py
    sqlite   one file, several processes, durable: the embedded default               sqlite/
    file     one JSON file that a person can read                                     file/ on mvcc.py
    etcd     the distributed engine                                                   etcd/
    faulty   wraps any of them and injects faults, for tests and simulation           faulty.py

The three local drivers share `local_store` (verbs that are one transaction), `watch_hub` (delivers changes to
watches) and `committer` (group commit: many writers, one fsync).
"""
