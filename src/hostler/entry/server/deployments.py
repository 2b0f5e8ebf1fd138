"""Routes of blueprints, of their slices and endpoints, and of the artifacts of slices."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from hostler.engine.slices import logs
from hostler.engine.tickets import ARTIFACTS as PEERS
from hostler.entry.server.body import Disconnected
from hostler.entry.server.problem import MEDIA_TYPE, TIMEOUT, TOO_LARGE, Refusal
from hostler.entry.server.protocol import cut
from hostler.entry.server.response import COMMON
from hostler.entry.server.route import Answer, Asked, routes_of, write_answer
from hostler.errors import Invalid, Unavailable
from hostler.model.blueprint_api import (
    BlueprintDocument,
    BlueprintFile,
    BlueprintRollback,
    RolloutPromotion,
    RolloutSelection,
    RolloutVerb,
)
from hostler.model.deployment import Artifact, Blueprint
from hostler.model.resources.deployments import ArtifactApi, BlueprintApi
from hostler.model.slice_api import ArtifactPage, ArtifactView, BlueprintCalls, SliceLog
from hostler.wiring import describe_artifact

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.engine.deployments.service import BlueprintService
    from hostler.entry.server.route import Handler, Raw
    from hostler.ports.slices import ArtifactInfo


def _service(asked: Asked) -> BlueprintService:
    return asked.services.blueprints


def _requested_blueprint(asked: Asked) -> Blueprint:
    body: BlueprintDocument = asked.body
    return Blueprint(slices=body.slices)


async def calls(asked: Asked) -> Answer:
    service, name = _service(asked), asked.parts["blueprint"]
    status = await service.status(asked.caller, name, stale=True)
    bases = [one.base for one in status.slices]
    if asked.services.watch is None:
        now = asked.services.clock.wall()
        return Answer(BlueprintCalls(name=status.name, now=now, kept=0, slices=()))
    since = float(asked.query["since"] or 0)
    return Answer(await asked.services.watch.calls(status.name, bases, after=since))


async def read(asked: Asked) -> Answer:
    body: BlueprintFile = asked.body
    return Answer(await _service(asked).read(asked.caller, body.text, body.file))


async def revision(asked: Asked) -> Answer:
    number = asked.parts["number"]
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise Invalid(f"number {number[:80]!r}: must be a whole number; take one from the blueprint's history")
    return Answer(await _service(asked).revision(asked.caller, asked.parts["blueprint"], int(number)))


async def plan(asked: Asked) -> Answer:
    return Answer(await _service(asked).plan(asked.caller, asked.parts["blueprint"], _requested_blueprint(asked)))


async def apply(asked: Asked) -> Answer:
    name = asked.parts["blueprint"]
    done = await _service(asked).apply(asked.request, name, _requested_blueprint(asked))
    return write_answer(done, location=f"/v1/blueprints/{done.value.name}" if done.status == 201 else None)


async def roll_back(asked: Asked) -> Answer:
    body: BlueprintRollback | None = asked.body
    to = 0 if body is None else body.to
    done = await _service(asked).rollback(asked.request, asked.parts["blueprint"], to)
    return write_answer(done, location=f"/v1/blueprints/{done.value.name}" if done.status == 201 else None)


def _order(verb: RolloutVerb) -> Handler:
    async def order(asked: Asked) -> Answer:
        body: RolloutSelection = asked.body or RolloutPromotion()
        far = {"everything": body.all, "force": body.force} if isinstance(body, RolloutPromotion) else {}
        return write_answer(await _service(asked).order(asked.request, asked.parts["blueprint"], verb, body, **far))

    return order


async def log(asked: Asked) -> Answer:
    query = asked.query
    node, artifact, instance = await _service(asked).log_place(
        asked.caller, asked.parts["artifact"], node=query["node"], instance=query["instance"]
    )
    after = query["after"] or ""
    found = await logs.ask(asked.services.peers, node, artifact, instance, after)
    return Answer(
        SliceLog(
            node=node,
            artifact=artifact,
            instance=found.instance,
            text=logs.told(found, None if after else query["lines"]),
            after=found.after,
            skipped=found.skipped,
        )
    )


BLUEPRINT_ROUTES = routes_of(
    BlueprintApi,
    "blueprints",
    calls=calls,
    read=read,
    revision=revision,
    plan=plan,
    apply=apply,
    rollback=roll_back,
    log=log,
    **{verb.value: _order(verb) for verb in RolloutVerb},
)


LARGEST = 64 * 1024 * 1024
CHUNK = 1024 * 1024
COMING, GOING = 4, 32
"""Concurrent uploads and downloads per process; each needs its size on disk. Further requests wait.

One account gets at most half of them, so that it cannot block the others.
"""
WAIT_WITHIN = 60.0
ALL_WITHIN = 600.0
SLOWEST, GRACE = 128 * 1024, 15.0
"""Minimum transfer rate in bytes per second, enforced after a grace period in seconds."""


async def list_artifacts(asked: Asked) -> Answer:
    found = await asked.services.artifacts.list()
    names = [info.artifact for info in found]
    start = 0
    if asked.after is not None:
        if asked.after not in names:
            raise Invalid(f"query after = {asked.after[:80]!r}: artifact not found; start again without it")
        start = names.index(asked.after) + 1
    page = found[start : start + asked.limit]
    more = start + asked.limit < len(found)
    return Answer(ArtifactPage(items=tuple(map(_view, page)), after=page[-1].artifact if more else None))


async def show(asked: Asked) -> Answer:
    return Answer(_view(await asked.services.artifacts.find(asked.parts["artifact"])))


async def send_file(asked: Asked) -> None:
    """Send the file of an artifact.

    Another process of the control plane gets the file only from this replica's own folder, because it asks each replica
    itself.
    """
    raw, artifacts = asked.raw, asked.services.artifacts
    if raw.peer and asked.services.own_artifacts is not None:
        artifacts = asked.services.own_artifacts
    async with _under_way(GOING, asked.caller.name) as folder:
        info = await artifacts.fetch(asked.parts["artifact"], folder)
        headers = [
            *COMMON,
            (b"x-request-id", raw.id.encode()),
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % info.size),
        ]
        with (folder / info.file).open("rb") as file:
            await raw.send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                async with asyncio.timeout(GRACE) as limit:
                    pace = _Pace(limit)
                    while raw.scope["method"] != "HEAD" and (chunk := await asyncio.to_thread(file.read, CHUNK)):
                        await raw.send({"type": "http.response.body", "body": chunk, "more_body": True})
                        pace.went(len(chunk))
                    await raw.send({"type": "http.response.body", "body": b""})
            except (TimeoutError, OSError):  # the answer has begun, so it can no longer be an error
                cut(raw.send)


async def publish(asked: Asked) -> Answer:
    artifact, name = str(Artifact.parse(asked.parts["artifact"])), asked.query["name"]
    if name is None:
        raise Invalid("query name: missing; give the file name, such as name=greeting-1.0.0-py3-none-any.whl")
    kind = asked.raw.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/octet-stream":
        said = kind[:80].decode("latin-1") or "nothing"
        raise Refusal(
            MEDIA_TYPE, f"body: its Content-Type is {said!r}; send the file with Content-Type: application/octet-stream"
        )
    async with _under_way(COMING, asked.caller.name) as folder:
        path = folder / "file"
        await _receive_file(asked, path)
        info = await asyncio.to_thread(describe_artifact, path, artifact, file=name)
        info = msgspec.structs.replace(info, published_at=asked.services.clock.wall())
        there = await asked.services.artifacts.publish(info, path)
    return Answer(_view(there), status=201 if there == info else 200)


def _view(info: ArtifactInfo) -> ArtifactView:
    return ArtifactView(**msgspec.structs.asdict(info))


class _Pace:
    """Keeps a transfer alive while it is fast enough."""

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit, self._began, self._bytes = limit, asyncio.get_running_loop().time(), 0

    def went(self, size: int) -> None:
        """Count the bytes of one chunk."""
        self._bytes += size
        self._limit.reschedule(self._began + min(GRACE + self._bytes / SLOWEST, ALL_WITHIN))


_Slots: TypeAlias = "WeakValueDictionary[tuple[int, str], asyncio.Semaphore]"
_SLOTS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Slots] = WeakKeyDictionary()


def _slot(most: int, account: str = "") -> asyncio.Semaphore:
    """Return the semaphore of an account, or of all; it exists while a request holds it or waits for it."""
    slots = _SLOTS.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return slots.setdefault((most, account), asyncio.Semaphore(most))


@asynccontextmanager
async def _under_way(most: int, account: str) -> AsyncIterator[Path]:
    """Yield a folder for one file, once a slot is free. Unavailable: no slot became free in time."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(WAIT_WITHIN):
                await stack.enter_async_context(_slot((most + 1) // 2, account))
                await stack.enter_async_context(_slot(most))
        except TimeoutError:
            raise Unavailable(f"artifacts: {most} transfers are in progress; try again") from None
        folder = await asyncio.to_thread(tempfile.TemporaryDirectory, prefix="hostler-artifact-")
        try:
            yield Path(folder.name)
        finally:
            await asyncio.shield(asyncio.to_thread(folder.cleanup))


async def _receive_file(asked: Asked, path: Path) -> None:
    """Write the body to a file. Refusal: it is too large or too slow."""
    raw = asked.raw
    too_large = Refusal(TOO_LARGE, f"body: larger than {LARGEST} bytes; leave out what the slice does not need")
    length = raw.headers.get(b"content-length")
    if length is not None and int(length) > LARGEST:
        raise too_large
    size = 0
    try:
        async with asyncio.timeout(GRACE) as limit:
            pace = _Pace(limit)
            with path.open("wb") as file:
                async for chunk in _chunks(raw, asked.plan.body_within):
                    size += len(chunk)
                    if size > LARGEST:
                        raise too_large
                    await asyncio.to_thread(file.write, chunk)
                    pace.went(len(chunk))
    except TimeoutError:
        raise Refusal(TIMEOUT, f"body: too slow after {size} bytes; send it again") from None
    if not size:
        raise Invalid("body: empty; send the file")


async def _chunks(raw: Raw, within: float) -> AsyncIterator[bytes]:
    """Yield the body in large chunks. TimeoutError: no data arrives."""
    held = bytearray()
    while True:
        async with asyncio.timeout(within):
            message = await raw.receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        held += message.get("body", b"")
        last = not message.get("more_body", False)
        raw.taken = last
        if len(held) >= CHUNK or (last and held):
            yield bytes(held)
            held.clear()
        if last:
            return


ARTIFACT_ROUTES = routes_of(
    ArtifactApi, "artifacts", {"file": {"peers": PEERS}}, list=list_artifacts, get=show, file=send_file, publish=publish
)
