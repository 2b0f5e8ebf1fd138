"""`client.workloads`: a number of identical machines."""

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
    from hostler.client.transport import HttpTransport


class Workloads:
    """Workloads. Writes take `key`, an Idempotency-Key, and `if_match`, the revision that was read."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def apply(
        self, workload: WorkloadApply, *, if_match: int | None = None, key: str | None = None
    ) -> WorkloadView:
        """Create the workload, or change it to this. Applying the same again changes nothing."""
        return await self._wire.write(
            "PUT", WorkloadView, "workloads", workload.name, body=workload, if_match=if_match, key=key
        )

    async def get(self, name: str, *, stale: bool = False) -> WorkloadView:
        """Return a workload with its progress. NotFound: there is none."""
        return await self._wire.read(WorkloadView, "workloads", name, stale=stale)

    def list(
        self, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[WorkloadPage, WorkloadView]:
        """List all visible workloads: `await` a page of `limit`, or `async for` over all."""
        return self._wire.pages(WorkloadPage, "workloads", limit=limit, after=after, stale=stale)

    def instances(
        self, name: str, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[InstancePage, InstanceView]:
        """List the instances of a workload in the order of their numbers: `await` a page, or `async for` over all."""
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
        """Change the number of instances, or switch them on or off."""
        body = WorkloadScale(
            instances=UNSET if instances is None else instances, enabled=UNSET if enabled is None else enabled
        )
        return await self._wire.write("PATCH", WorkloadView, "workloads", name, body=body, if_match=if_match, key=key)

    async def delete(self, name: str, *, if_match: int | None = None, key: str | None = None) -> WorkloadView:
        """Delete the workload and its machines."""
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
        """Wait until the workload matches its spec, or until it is `gone` (returns None).

        `on_change` gets the first state, and the state after each change. NotFound: it was deleted while waiting for
        something else. Unavailable: not reached within `within` seconds.
        """
        check_wait(settled=settled, gone=gone)
        return await polled(
            f"workload {name}", lambda: self.get(name), lambda view: view.settled, gone, within, on_change
        )
