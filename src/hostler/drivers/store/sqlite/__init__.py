"""The embedded store: one SQLite file, durable, shared by the processes of one host.

    schema.py   the tables, and the checks of a file before it is trusted
    opening.py  the open file: its lock and its connections
    reader.py   reading: keys now and in the past, ranges, history
    writer.py   writing: a batch of requests in one SQLite transaction
    store.py    the store port on top: deadlines, group commit, watches, leases, maintenance

Every version of a key is a row of `log`, which points at the previous version; `live` points at the newest. So a write
appends one row and moves one pointer, history is a walk along the pointers, and the cost of compaction is proportional
to the number of changes.
"""

from hostler.drivers.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
