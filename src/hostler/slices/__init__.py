"""What slices are written with.

A slice is a module. What can be called is marked, everything else is the slice's own:

    from hostler.slices import method

    @method(idempotent=True)
    async def greet(name: str, times: int = 1) -> str:
        return f"hello {name} " * times

Functions may be coroutines, plain (they run in a thread) or generators of either kind (their results are streamed).
Arguments are checked against their annotations. Optional functions of the module, plain or coroutines: `start()` before
the first call, `stop()` after the last one, `healthy()` now and then.

declaring  the mark
signature  arguments from JSON, by the annotations of a function
current    where a method runs, and how much time it has
outgoing   calls of other slices, through the node's agent
module     a module, read as a slice
calls      calls that are under way
serving    connections that bring calls
life       loaded, active, ended
worker     the process of one instance

Not here: anything of the cluster. A worker knows its agent and its callers; it has no store.
"""

from __future__ import annotations

from hostler.ports.calls import CallFailed, Fault
from hostler.slices.call_context import Context, context
from hostler.slices.client import call, stream, wait
from hostler.slices.decorators import method

__all__ = ["CallFailed", "Context", "Fault", "call", "context", "method", "stream", "wait"]
