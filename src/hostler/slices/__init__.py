"""The library that slices are written with.

A slice is a module. Marked functions can be called; everything else is private to the slice:

    from hostler.slices import method

    @method(idempotent=True)
    async def greet(name: str, times: int = 1) -> str:
        return f"hello {name} " * times

Functions may be coroutines, plain (they run in a thread) or generators of either kind (their results are streamed).
Arguments are checked against their annotations. Optional functions of the module, plain or coroutines: `start()` before
the first call, `stop()` after the last one, `healthy()` periodically.

module       marked methods, their arguments by their annotations, a module that is read as a slice
client       calls of other slices, through the node's agent; the instance, the call and its deadline
calls        running calls
serving      connections that bring calls
framing      frames on a connection
lifecycle    loaded, active, ended
confinement  the namespaces of the process
worker       the process of one instance, and its log

This package knows nothing of the cluster. A worker knows its agent and its callers; it has no store.
"""

from __future__ import annotations

from hostler.ports.calls import CallFailed, Fault
from hostler.slices.client import Context, call, context, stream, wait
from hostler.slices.module import method

__all__ = ["CallFailed", "Context", "Fault", "call", "context", "method", "stream", "wait"]
