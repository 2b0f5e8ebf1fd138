"""The store in one JSON file that a person can read: for small installations, and for inspection.

    format.py   the file format: written, parsed and validated
    disk.py     locks, reads and replaces the file
    state.py    the state in memory: a copy for readers, a draft for the next save
    store.py    the store: readers on the event loop, one thread that writes

Readers see the newest saved state of any process: each read compares the file at the path with the one last loaded.
Every save writes the whole file, so the cost of a write grows with the store; concurrent writers share a save.

If the file is deleted, or replaced by an older or another one, while the store is open, the store stops (`Unavailable`,
`Damaged`) until the file is restored or every process is restarted: revisions must never go back for readers.
"""

from hostler.drivers.store.file.state import Bounds
from hostler.drivers.store.file.store import FileStore

__all__ = ["Bounds", "FileStore"]
