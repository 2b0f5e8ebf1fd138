"""Waiting for a workload or blueprint to reach its spec, with progress output."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hostler.entry.cli.failure import NotYet
from hostler.entry.cli.value import span
from hostler.entry.cli.vm.wait import PhaseProgress
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
    """Wait until the object matches its spec, or with `gone` until it is deleted (None), and print the progress.

    `wait` is the method of the client. NotYet: not in time, or the object was deleted.
    """
    with PhaseProgress(name) as telling:
        last = ""

        def changed(view: V) -> None:
            nonlocal last
            last = described(view)
            telling.tell(last)

        try:
            return await wait(name, settled=not gone, gone=gone, within=within, on_change=changed)
        except NotFound:
            raise NotYet(f"{kind} {name}: deleted while waiting; nothing is left of it") from None
        except Unavailable:
            raise NotYet(
                f"{kind} {name}: not ready after {span(within)} ({last}); work continues: hostler {kind} status {name}"
            ) from None
