"""Waiting for what is made of many parts, a workload or a blueprint, and telling how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hostler.entry.cli.failure import NotYet
from hostler.entry.cli.value import span
from hostler.entry.cli.vm.wait import Telling
from hostler.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

V = TypeVar("V")


async def settled(
    kind: str,
    name: str,
    wait: Callable[..., Awaitable[V | None]],
    described: Callable[[V], str],
    *,
    gone: bool,
    within: float,
) -> V | None:
    """Until all is as wished, or it is gone (None), told on the way. NotYet: not in time, or somebody deleted it.

    `wait` is the client's.
    """
    with Telling(name) as telling:
        last = ""

        def changed(view: V) -> None:
            nonlocal last
            last = described(view)
            telling.tell(last)

        try:
            return await wait(name, settled=not gone, gone=gone, within=within, on_change=changed)
        except NotFound:
            raise NotYet(f"{kind} {name}: somebody deleted it meanwhile; nothing is left of it") from None
        except Unavailable:
            raise NotYet(
                f"{kind} {name}: not there after {span(within)} ({last}); it goes on: hostler {kind} status {name}"
            ) from None
