"""`client.traces`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.trace_api import TracePage, TraceView, WhyView

if TYPE_CHECKING:
    from hostler.client.pages import Pages
    from hostler.client.transport import Wire


class Traces:
    """What was decided, and why."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(
        self, object_: str | None = None, *, limit: int | None = None, after: str | None = None
    ) -> Pages[TracePage, TraceView]:
        """`await` a page, or `async for` over everything that happened, newest first; of one object, if one is named.

        Objects are `vm/ORG/PROJECT/NAME`, `node/NAME`, `rack/NAME`, `lab/USER`, `workload/NAME`, `blueprint/NAME`,
        `slice/GROUP:NAME`, or an id.
        """
        return self._wire.pages(TracePage, "traces", limit=limit, after=after, query={"object": object_})

    async def why(
        self, object_: str, *, org: str | None = None, project: str | None = None, limit: int | None = None
    ) -> WhyView:
        """How it came to be as it is. `org` and `project`: where a machine is looked for first."""
        query = {"object": object_, "org": org, "project": project, "limit": limit}
        return await self._wire.read(WhyView, "why", query=query)
