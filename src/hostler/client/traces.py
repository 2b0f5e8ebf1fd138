"""`client.traces`: the decision log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.trace_api import TracePage, TraceView, WhyView

if TYPE_CHECKING:
    from hostler.client.pages import Pages
    from hostler.client.transport import HttpTransport


class Traces:
    """Decisions and their reasons."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    def list(
        self, object_: str | None = None, *, limit: int | None = None, after: str | None = None
    ) -> Pages[TracePage, TraceView]:
        """List the decisions, newest first, of all objects or of one: `await` a page, or `async for` over all.

        Objects are `vm/ORG/PROJECT/NAME`, `node/NAME`, `rack/NAME`, `lab/USER`, `workload/NAME`, `blueprint/NAME`,
        `slice/GROUP:NAME`, or an id.
        """
        return self._wire.pages(TracePage, "traces", limit=limit, after=after, query={"object": object_})

    async def why(
        self, object_: str, *, org: str | None = None, project: str | None = None, limit: int | None = None
    ) -> WhyView:
        """Explain the state of an object. `org` and `project`: where to look for a machine first."""
        query = {"object": object_, "org": org, "project": project, "limit": limit}
        return await self._wire.read(WhyView, "why", query=query)
