"""The embedded store: one SQLite file, durable, shared by the processes of one machine.

    schema.py   the tables, and what must be true of a file before it is trusted
    opening.py  the open file: its lock and its connections
    reader.py   reading: keys now and then, ranges, history
    writer.py   writing: a batch of requests in one SQLite transaction
    store.py    the store port on top: deadlines, group commit, watches, leases, upkeep
    bare.py     the same work without any of it, for the benchmark

Every version of a key is a row of `log`, which points at the version before it; `live` points at the newest. So a write
appends one row and moves one pointer, history is a walk along the pointers, and compaction costs what was changed.
"""

from .store import SqliteStore

__all__ = ["SqliteStore"]
