"""`client.workloads`: a number of machines of one shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from hostler.client.wait import check_wait, polled
from hostler.model.workload_api import (
    InstancePage,
    InstanceView,
    WorkloadApply,
    WorkloadPage,
    WorkloadScale,
    WorkloadView,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.client.pages import Pages
    from hostler.client.transport import Wire


class Workloads:
    """Writes take `key`, an Idempotency-Key of one's own, and `if_match`, the revision that was read."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def apply(
        self, workload: WorkloadApply, *, if_match: int | None = None, key: str | None = None
    ) -> WorkloadView:
        """Wish for it, or change it to this; one that is so already stays as it is."""
        return await self._wire.write(
            "PUT", WorkloadView, "workloads", workload.name, body=workload, if_match=if_match, key=key
        )

    async def get(self, name: str, *, stale: bool = False) -> WorkloadView:
        """A workload, and how far it is. NotFound: there is none."""
        return await self._wire.read(WorkloadView, "workloads", name, stale=stale)

    def list(
        self, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[WorkloadPage, WorkloadView]:
        """All that one sees: `await` a page of `limit`, or `async for` over every workload."""
        return self._wire.pages(WorkloadPage, "workloads", limit=limit, after=after, stale=stale)

    def instances(
        self, name: str, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[InstancePage, InstanceView]:
        """The same for the instances of one, in order of their numbers."""
        return self._wire.pages(InstancePage, "workloads", name, "instances", limit=limit, after=after, stale=stale)

    async def scale(
        self,
        name: str,
        instances: int | None = None,
        *,
        enabled: bool | None = None,
        if_match: int | None = None,
        key: str | None = None,
    ) -> WorkloadView:
        """Change how many instances there shall be, or switch them on or off."""
        body = WorkloadScale(
            instances=UNSET if instances is None else instances, enabled=UNSET if enabled is None else enabled
        )
        return await self._wire.write("PATCH", WorkloadView, "workloads", name, body=body, if_match=if_match, key=key)

    async def delete(self, name: str, *, if_match: int | None = None, key: str | None = None) -> WorkloadView:
        """Delete it, and its machines."""
        return await self._wire.write("DELETE", WorkloadView, "workloads", name, if_match=if_match, key=key)

    async def wait(
        self,
        name: str,
        *,
        settled: bool = False,
        gone: bool = False,
        within: float = 600.0,
        on_change: Callable[[WorkloadView], None] | None = None,
    ) -> WorkloadView | None:
        """Until all that is wished for has been done, or until it is `gone` (then None).

        `on_change` sees it as it was found first, and after each change. NotFound: it went while something else was
        waited for. Unavailable: `within` seconds were not enough.
        """
        check_wait(settled=settled, gone=gone)
        return await polled(
            f"workload {name}", lambda: self.get(name), lambda view: view.settled, gone, within, on_change
        )
