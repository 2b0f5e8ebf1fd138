"""`client.blueprints` and `client.artifacts`: blueprints, their rollouts, the instances of slices, and artifacts."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.client.resource import Resource
from hostler.client.wait import check_wait, poll
from hostler.errors import Invalid, Refused
from hostler.model.blueprint_api import (
    BlueprintDocument,
    BlueprintFile,
    BlueprintPhase,
    BlueprintRollback,
    RolloutPromotion,
    RolloutSelection,
)
from hostler.model.resources.deployments import ArtifactApi, BlueprintApi

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Unpack

    from hostler.client.resource import Keyed, Pages, Paging, StalePaging, WriteOptions
    from hostler.client.transport import Query
    from hostler.model.blueprint_api import (
        BlueprintHistory,
        BlueprintPage,
        BlueprintPlan,
        BlueprintRead,
        BlueprintStatus,
        BlueprintView,
        RevisionView,
    )
    from hostler.model.deployment import Blueprint
    from hostler.model.resources.operation import Operation
    from hostler.model.slice_api import (
        ArtifactPage,
        ArtifactView,
        BlueprintCalls,
        EndpointPage,
        EndpointView,
        SliceLog,
        SlicePage,
        SliceView,
    )

CHUNK = 1024 * 1024


class Blueprints(Resource):
    """Blueprints. Writes take `key`, an Idempotency-Key, and `if_match`, the revision that was read."""

    async def apply(self, name: str, blueprint: Blueprint, **options: Unpack[WriteOptions]) -> BlueprintView:
        """Create or change the blueprint, completely or not at all. Applying the same again changes nothing."""
        body = BlueprintDocument(slices=blueprint.slices)
        return await self._wire.call(BlueprintApi.apply, name, body=body, **options)

    async def plan(self, name: str, blueprint: Blueprint) -> BlueprintPlan:
        """Return what an apply would load, unload and move, and where. Nothing is written."""
        body = BlueprintDocument(slices=blueprint.slices)
        return await self._wire.call(BlueprintApi.plan, name, body=body)

    async def read(self, text: str, file: str = "") -> BlueprintRead:
        """Parse a file in JSON or TOML; return its content and all its mistakes. Nothing is written."""
        body = BlueprintFile(text=text, file=file)
        return await self._wire.call(BlueprintApi.read, body=body)

    async def calls(self, name: str, *, since: float | None = None) -> BlueprintCalls:
        """Return the call measurements of its slices for the last minutes, by version and second."""
        query: Query = {"since": None if since is None else f"{since:.3f}"}
        return await self._wire.call(BlueprintApi.calls, name, query=query)

    async def get(self, name: str, *, stale: bool = False) -> BlueprintView:
        """Return a blueprint. NotFound: there is none."""
        return await self._wire.call(BlueprintApi.get, name, stale=stale)

    async def status(self, name: str, *, stale: bool = False) -> BlueprintStatus:
        """Return the progress, slice by slice. NotFound: there is no such blueprint, and nothing is left of it."""
        return await self._wire.call(BlueprintApi.status, name, stale=stale)

    def list(self, **options: Unpack[StalePaging]) -> Pages[BlueprintPage, BlueprintView]:
        """List all blueprints: `await` a page of `limit`, or `async for` over all."""
        return self._wire.list(BlueprintApi.list, **options)

    def history(self, name: str, **options: Unpack[Paging]) -> Pages[BlueprintHistory, RevisionView]:
        """List the revisions, newest first: `await` a page of `limit`, or `async for` over all."""
        return self._wire.list(BlueprintApi.history, name, **options)

    async def revision(self, name: str, number: int) -> RevisionView:
        """Return one revision with its content."""
        return await self._wire.call(BlueprintApi.revision, name, str(number))

    async def rollback(self, name: str, to: int = 0, **options: Unpack[WriteOptions]) -> BlueprintView:
        """Roll back to the revision `to`; 0: the last that differs from the current one."""
        return await self._wire.call(BlueprintApi.rollback, name, body=BlueprintRollback(to=to), **options)

    async def promote(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002 - as the API calls it
        *,
        all: bool = False,  # noqa: A002
        force: bool = False,
        seen: Mapping[str, float] | None = None,
        **options: Unpack[Keyed],
    ) -> BlueprintStatus:
        """Promote its rollouts, or that of one slice, to the next stage now, or with `all` to the end.

        The leader carries it out. It refuses while the measurements exceed the limits of the gate, unless `force`.
        `seen`: the `changed_at` of rollouts, by slice; Conflict if one has advanced since.
        """
        body = RolloutPromotion(slice=slice, seen=dict(seen or {}), all=all, force=force)
        return await self._wire.call(BlueprintApi.promote, name, body=body, **options)

    async def pause(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        **options: Unpack[Keyed],
    ) -> BlueprintStatus:
        """Pause its rollouts, or that of one slice. Gates still apply."""
        return await self._order(BlueprintApi.pause, name, slice, seen, **options)

    async def resume(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        **options: Unpack[Keyed],
    ) -> BlueprintStatus:
        """Resume paused rollouts."""
        return await self._order(BlueprintApi.resume, name, slice, seen, **options)

    async def approve(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        **options: Unpack[Keyed],
    ) -> BlueprintStatus:
        """Approve the current stage, if the strategy requires it."""
        return await self._order(BlueprintApi.approve, name, slice, seen, **options)

    async def abort(
        self,
        name: str,
        slice: str | None = None,  # noqa: A002
        *,
        seen: Mapping[str, float] | None = None,
        **options: Unpack[Keyed],
    ) -> BlueprintStatus:
        """Abort the rollout: the previous version serves. The blueprint does not change."""
        return await self._order(BlueprintApi.abort, name, slice, seen, **options)

    async def _order(
        self,
        operation: Operation[BlueprintStatus],
        name: str,
        slice_: str | None,
        seen: Mapping[str, float] | None,
        **options: Unpack[Keyed],
    ) -> BlueprintStatus:
        body = RolloutSelection(slice=slice_, seen=dict(seen or {}))
        return await self._wire.call(operation, name, body=body, **options)

    async def delete(self, name: str, **options: Unpack[WriteOptions]) -> BlueprintView:
        """Delete the blueprint and its slices. Its history is kept."""
        return await self._wire.call(BlueprintApi.delete, name, **options)

    def slices(
        self,
        *,
        node: str | None = None,
        artifact: str | None = None,
        **options: Unpack[Paging],
    ) -> Pages[SlicePage, SliceView]:
        """List the slices on the nodes; `artifact` is one, or `group:name` for all of its versions."""
        return self._wire.list(BlueprintApi.slices, **options, query={"node": node, "artifact": artifact})

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
        return await self._wire.call(BlueprintApi.log, artifact, query=query)

    def endpoints(self, *, artifact: str | None = None, **options: Unpack[Paging]) -> Pages[EndpointPage, EndpointView]:
        """List the endpoints of methods; `artifact` as above."""
        return self._wire.list(BlueprintApi.endpoints, **options, query={"artifact": artifact})

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

        return await poll(f"blueprint {name}", lambda: self.status(name), done, gone, within, on_change)


class Artifacts(Resource):
    """The artifact repository of the control plane. A published artifact never changes."""

    async def get(self, artifact: str) -> ArtifactView:
        """Return the metadata of `group:name:version`. NotFound: it is not published."""
        return await self._wire.call(ArtifactApi.get, artifact)

    def list(self, **options: Unpack[Paging]) -> Pages[ArtifactPage, ArtifactView]:
        """List all artifacts: `await` a page of `limit`, or `async for` over all."""
        return self._wire.list(ArtifactApi.list, **options)

    async def publish(self, artifact: str, file: str | Path, *, name: str | None = None) -> ArtifactView:
        """Publish a wheel or a module. The same file again is allowed. Conflict: the name has a different file."""
        path = Path(file)
        if not await asyncio.to_thread(path.is_file):
            raise Invalid(f"{path}: no such file; check the path")
        return await self._wire.upload(ArtifactApi.publish, artifact, file=path, query={"name": name or path.name})

    async def fetch(self, artifact: str, to: str | Path) -> Path:
        """Download the file into the folder `to`: complete and verified, or not at all."""
        info = await self.get(artifact)
        if Path(info.file).name != info.file or info.file.startswith("."):
            raise Refused(f"artifact {artifact}: its file name {info.file!r} is not a plain name; publish it again")
        address = self._wire.address.to(*ArtifactApi.file.segments(artifact))
        folder, found, size = Path(to), hashlib.sha256(), 0
        fresh = folder / f".{info.file}.{secrets.token_hex(4)}"
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        try:
            with fresh.open("xb") as out:
                async with self._wire.stream(address, {}) as content:
                    async for chunk in content.iter_chunked(CHUNK):
                        size += len(chunk)
                        if size > info.size:
                            break
                        found.update(chunk)
                        await asyncio.to_thread(out.write, chunk)
            if size != info.size or found.hexdigest() != info.sha256:
                raise Refused(f"artifact {artifact}: the download is not what was published; fetch it again")
            fresh.replace(folder / info.file)
        finally:
            fresh.unlink(missing_ok=True)
        return folder / info.file
