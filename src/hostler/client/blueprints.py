"""`client.blueprints`: blueprints, their rollouts, and the instances of slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.client.wait import check_wait, polled
from hostler.model.blueprint_api import (
    BlueprintCalls,
    BlueprintDocument,
    BlueprintFile,
    BlueprintHistory,
    BlueprintPage,
    BlueprintPhase,
    BlueprintPlan,
    BlueprintRead,
    BlueprintRollback,
    BlueprintStatus,
    BlueprintView,
    EndpointPage,
    EndpointView,
    RevisionView,
    RolloutPromotion,
    RolloutSelection,
    RolloutVerb,
    SliceLog,
    SlicePage,
    SliceView,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.client.pages import Pages
    from hostler.client.transport import HttpTransport, Query
    from hostler.model.deployment import Blueprint


class Blueprints:
    """Blueprints. Writes take `key`, an Idempotency-Key, and `if_match`, the revision that was read."""

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def apply(
        self, name: str, blueprint: Blueprint, *, if_match: int | None = None, key: str | None = None
    ) -> BlueprintView:
        """Create or change the blueprint, completely or not at all. Applying the same again changes nothing."""
        body = BlueprintDocument(slices=blueprint.slices)
        return await self._wire.write("PUT", BlueprintView, "blueprints", name, body=body, if_match=if_match, key=key)

    async def plan(self, name: str, blueprint: Blueprint) -> BlueprintPlan:
        """Return what an apply would load, unload and move, and where. Nothing is written."""
        body = BlueprintDocument(slices=blueprint.slices)
        return await self._wire.write("POST", BlueprintPlan, "blueprints", name, "plan", body=body, repeat=False)

    async def read(self, text: str, file: str = "") -> BlueprintRead:
        """Parse a file in JSON or TOML; return its content and all its mistakes. Nothing is written."""
        body = BlueprintFile(text=text, file=file)
        return await self._wire.write("POST", BlueprintRead, "blueprint-files", body=body, repeat=False)

    async def calls(self, name: str, *, since: float | None = None) -> BlueprintCalls:
        """Return the call measurements of its slices for the last minutes, by version and second."""
        query: Query = {"since": None if since is None else f"{since:.3f}"}
        return await self._wire.read(BlueprintCalls, "blueprints", name, "calls", query=query)

    async def get(self, name: str, *, stale: bool = False) -> BlueprintView:
        """Return a blueprint. NotFound: there is none."""
        return await self._wire.read(BlueprintView, "blueprints", name, stale=stale)

    async def status(self, name: str, *, stale: bool = False) -> BlueprintStatus:
        """Return the progress, slice by slice. NotFound: there is no such blueprint, and nothing is left of it."""
        return await self._wire.read(BlueprintStatus, "blueprints", name, "status", stale=stale)

    def list(
        self, *, limit: int | None = None, after: str | None = None, stale: bool = False
    ) -> Pages[BlueprintPage, BlueprintView]:
        """List all blueprints: `await` a page of `limit`, or `async for` over all."""
        return self._wire.pages(BlueprintPage, "blueprints", limit=limit, after=after, stale=stale)

    def history(
        self, name: str, *, limit: int | None = None, after: str | None = None
    ) -> Pages[BlueprintHistory, RevisionView]:
        """List the revisions, newest first: `await` a page of `limit`, or `async for` over all."""
        return self._wire.pages(BlueprintHistory, "blueprints", name, "history", limit=limit, after=after)

    async def revision(self, name: str, number: int) -> RevisionView:
        """Return one revision with its content."""
        return await self._wire.read(RevisionView, "blueprints", name, "history", str(number))

    async def rollback(
        self, name: str, to: int = 0, *, if_match: int | None = None, key: str | None = None
    ) -> BlueprintView:
        """Roll back to the revision `to`; 0: the last that differs from the current one."""
        return await self._wire.write(
            *("POST", BlueprintView, "blueprints", name, "rollback"),
            body=BlueprintRollback(to=to),
            if_match=if_match,
            key=key,
        )

    async def promote(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002 - as the API calls it
        *,
        all: bool = False,  # noqa: A002
        force: bool = False,
        seen: Mapping[str, float] | None = None,
        key: str | None = None,
    ) -> BlueprintStatus:
        """Promote its rollouts, or that of one slice, to the next stage now, or with `all` to the end.

        The leader carries it out. It refuses while the measurements exceed the limits of the gate, unless `force`.
        `seen`: the `changed_at` of rollouts, by slice; Conflict if one has advanced since.
        """
        body = RolloutPromotion(slice=slice, seen=dict(seen or {}), all=all, force=force)
        return await self._order(name, RolloutVerb.PROMOTE, body, key)

    async def pause(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        key: str | None = None,
    ) -> BlueprintStatus:
        """Pause its rollouts, or that of one slice. Gates still apply."""
        return await self._order(name, RolloutVerb.PAUSE, RolloutSelection(slice=slice, seen=dict(seen or {})), key)

    async def resume(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        key: str | None = None,
    ) -> BlueprintStatus:
        """Resume paused rollouts."""
        return await self._order(name, RolloutVerb.RESUME, RolloutSelection(slice=slice, seen=dict(seen or {})), key)

    async def approve(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        key: str | None = None,
    ) -> BlueprintStatus:
        """Approve the current stage, if the strategy requires it."""
        return await self._order(name, RolloutVerb.APPROVE, RolloutSelection(slice=slice, seen=dict(seen or {})), key)

    async def abort(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        key: str | None = None,
    ) -> BlueprintStatus:
        """Abort the rollout: the previous version serves. The blueprint does not change."""
        return await self._order(name, RolloutVerb.ABORT, RolloutSelection(slice=slice, seen=dict(seen or {})), key)

    async def _order(self, name: str, verb: RolloutVerb, body: RolloutSelection, key: str | None) -> BlueprintStatus:
        return await self._wire.write("POST", BlueprintStatus, "blueprints", name, verb.value, body=body, key=key)

    async def delete(self, name: str, *, if_match: int | None = None, key: str | None = None) -> BlueprintView:
        """Delete the blueprint and its slices. Its history is kept."""
        return await self._wire.write("DELETE", BlueprintView, "blueprints", name, if_match=if_match, key=key)

    def slices(
        self,
        *,
        node: str | None = None,
        artifact: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Pages[SlicePage, SliceView]:
        """List the slices on the nodes; `artifact` is one, or `group:name` for all of its versions."""
        return self._wire.pages(
            SlicePage, "slices", limit=limit, after=after, query={"node": node, "artifact": artifact}
        )

    async def log(
        self,
        artifact: str,
        *,
        node: str | None = None,
        instance: int | None = None,
        lines: int | None = None,
        after: str | None = None,
    ) -> SliceLog:
        """Return the last `lines` of the output of an instance; `after`: the output after an earlier answer.

        `artifact` as above. Of several instances, an unhealthy one is chosen, else the first. NotFound: there is none.
        """
        query: Query = {"node": node, "instance": instance, "lines": lines, "after": after}
        return await self._wire.read(SliceLog, "slices", artifact, "log", query=query)

    def endpoints(
        self, *, artifact: str | None = None, limit: int | None = None, after: str | None = None
    ) -> Pages[EndpointPage, EndpointView]:
        """List the endpoints of methods; `artifact` as above."""
        return self._wire.pages(EndpointPage, "endpoints", limit=limit, after=after, query={"artifact": artifact})

    async def wait(
        self,
        name: str,
        *,
        settled: bool = False,
        gone: bool = False,
        within: float = 600.0,
        on_change: Callable[[BlueprintStatus], None] | None = None,
    ) -> BlueprintStatus | None:
        """Wait until the blueprint matches its spec or a version was given up, or until it is `gone` (returns None).

        `on_change` gets the first state, and the state after each change. NotFound: it was deleted while waiting for
        something else. Unavailable: not reached within `within` seconds.
        """
        check_wait(settled=settled, gone=gone)

        def done(status: BlueprintStatus) -> bool:
            return status.settled or status.phase is BlueprintPhase.FAILED

        return await polled(f"blueprint {name}", lambda: self.status(name), done, gone, within, on_change)
