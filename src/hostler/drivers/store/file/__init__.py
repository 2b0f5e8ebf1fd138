"""The store in one JSON file that a person can read: for small installations, and for looking at.

    format.py   what the file looks like
    parse.py    how it is read, and what can be wrong with it
    disk.py     how it is locked, read and replaced
    state.py    what it means: a copy for readers, a draft for the next save
    store.py    the store: readers on the event loop, one thread that writes

Readers see the newest saved state, of whichever process: each read compares the file at the path with the one last
loaded. Every save writes the whole file, so the cost of a write grows with the store; writers that come together share
a save.

A file that is deleted, or replaced by an older or another one, while the store is open stops the store (`Unavailable`,
`Damaged`) until it is put back or every process is restarted: revisions must never go back under their readers.
"""

from .state import Bounds
from .store import FileStore

__all__ = ["Bounds", "FileStore"]
