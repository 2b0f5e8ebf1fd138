"""One repository for all machines of a control plane: each has a folder, and the store says what was published.

    /hostler/v1/artifacts/{artifact}     checksum, size, module; written by the replica that took the file
    a machine's folder                   files: those that were published there, and on a replica copies of all others

A file that is missing here is fetched from a replica that has it, with a ticket for that one file (`PeerTickets`), and
counts if it has the checksum that the store says. A replica copies what it misses, so that no machine has the only one.
"""

from __future__ import annotations

import random
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.tickets import ARTIFACTS, FILE
from hostler.entry.server.logs import logger
from hostler.entry.server.pin import read_pinned
from hostler.errors import Conflict, HostlerError, NotFound, Refused, Unavailable
from hostler.keys.deployment import ARTIFACT
from hostler.keys.replica import REPLICA
from hostler.kit.backoff import Backoff
from hostler.kit.clock import SystemClock
from hostler.model.rollout import ArtifactRecord
from hostler.ports.artifacts import ArtifactInfo
from hostler.ports.store import watching
from hostler.wiring import artifacts_in_order, artifacts_of_replica, open_artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.tickets import PeerTickets
    from hostler.kit.clock import Clock
    from hostler.model.replica import ReplicaRecord
    from hostler.ports.artifacts import Artifacts
    from hostler.ports.store import Store
    from hostler.settings import Settings

COPY_AGAIN = (1.0, 60.0)
"""Seconds, at first and at most, before a replica tries again to copy what it could not."""


class SharedArtifacts:
    """`hostler.ports.artifacts.Artifacts` over the folder of this machine (`own`) and those of all replicas.

    `url`: where this process serves its own, as its record says; None: it is an agent, which publishes nothing.
    """

    def __init__(
        self,
        store: Store,
        own: Artifacts,
        tickets: PeerTickets,
        *,
        clock: Clock | None = None,
        url: Callable[[], str] | None = None,
    ) -> None:
        self._store, self.own, self._tickets, self._url = store, own, tickets, url
        self._clock: Clock = clock or SystemClock()
        self._log = logger(part="artifacts")

    async def find(self, artifact: str) -> ArtifactInfo:
        """What is known of it. One that was put into the folder of this machine by hand is published by this."""
        entry = await ARTIFACT.get(self._store, artifact=artifact)
        if entry is not None:
            return _info(entry.value)
        try:
            found = await self.own.find(artifact)
        except NotFound:
            raise NotFound(f"artifact {artifact}: it is not published; publish it with hostler slice push") from None
        return found if self._url is None else await self._register(found)

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        """All that were published, and what is in the folder of this machine."""
        own = {info.artifact: info for info in await self.own.list(base)}
        listing = await ARTIFACT.list(self._store, strict=False)
        known = {entry.value.artifact: _info(entry.value) for entry in listing.entries}
        return artifacts_in_order((own | known).values(), base)

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        """Put its file into `to`: from the folder of this machine, else from a replica that has it."""
        info = await self.find(artifact)
        if await self._is_here(info):
            with suppress(Refused, NotFound):  # its file is damaged or gone; a replica may have a whole one
                return await self.own.fetch(artifact, to)
        return await self._fetch_elsewhere(info, to)

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        """Put one into the folder of this machine, then say so in the store. Conflict: also of any other machine."""
        entry = await ARTIFACT.get(self._store, artifact=info.artifact)
        if entry is not None:
            _check_same(_info(entry.value), info)
        return await self._register(await self.own.publish(info, source))

    async def keep_copies(self) -> None:
        """Publish what is in the folder of this machine, and copy into it what only others have; until cancelled."""
        backoff = Backoff(*COPY_AGAIN)
        while True:
            try:
                async with watching(self._store, ARTIFACT.prefix(), previous=False) as changes:
                    while await self._copy():
                        await self._clock.sleep(backoff.next())
                    backoff.reset()
                    await anext(aiter(changes))
            except (HostlerError, StopAsyncIteration):  # the store does not answer at present
                await self._clock.sleep(backoff.next())

    # Inside

    async def _copy(self) -> int:
        """One pass; how many artifacts are still missing here."""
        own = {info.artifact: info.sha256 for info in await self.own.list()}
        listing = await ARTIFACT.list(self._store, strict=False)
        known = {entry.value.artifact: _info(entry.value) for entry in listing.entries}
        for artifact in own.keys() - known.keys():
            with suppress(Conflict):
                await self._register(await self.own.find(artifact))
        missing = 0
        for info in known.values():
            if info.artifact in own:  # another file under that name stays: data of this machine's owner
                continue
            try:
                with tempfile.TemporaryDirectory(prefix="hostler-artifact-") as folder:
                    await self._fetch_elsewhere(info, Path(folder))
                    await self.own.publish(info, Path(folder) / info.file)
                self._log.info("artifact.copied", artifact=info.artifact, sha256=info.sha256)
            except (HostlerError, OSError) as error:  # OSError: no room for a temporary folder
                missing += 1
                self._log.info("artifact.not_copied", artifact=info.artifact, why=str(error))
        return missing

    async def _is_here(self, info: ArtifactInfo) -> bool:
        try:
            return (await self.own.find(info.artifact)).sha256 == info.sha256
        except (NotFound, Refused):
            return False

    async def _register(self, info: ArtifactInfo) -> ArtifactInfo:
        """Say in the store that it is published; what the store says of it. Conflict: that is another file."""
        record = ArtifactRecord(**msgspec.structs.asdict(info))
        absent, written = ARTIFACT.absent(artifact=info.artifact), ARTIFACT.put(record, artifact=info.artifact)
        if (await self._store.txn([absent], [written])).succeeded:
            return info
        entry = await ARTIFACT.get(self._store, artifact=info.artifact)
        if entry is None:
            raise Unavailable(f"artifact {info.artifact}: its record was deleted just now; publish it again")
        return _check_same(_info(entry.value), info)

    async def _fetch_elsewhere(self, info: ArtifactInfo, to: Path) -> ArtifactInfo:
        """Ask the replicas, one after the other. Unavailable: one of them did not answer. NotFound: none has it."""
        listing = await REPLICA.list(self._store, strict=False)
        here = self._url() if self._url is not None else ""
        replicas = [entry.value for entry in listing.entries if not here or entry.value.url != here]
        random.shuffle(replicas)  # spreads the work; guards nothing
        tried: list[str] = []
        answered = True
        for replica in replicas:
            try:
                return await self._fetch_from(replica, info, to)
            except NotFound:
                tried.append(f"{replica.address} does not have it")
            except HostlerError as error:
                answered = False
                tried.append(f"{replica.address}: {error}")
        what = f"artifact {info.artifact}: its file is not on this machine, and no replica gave it"
        told = f"{what} ({'; '.join(tried) or 'none runs'})"
        advice = "start the replica that it was published to, or publish the same file again with hostler slice push"
        raise (NotFound if answered and replicas else Unavailable)(f"{told}; {advice}")

    async def _fetch_from(self, replica: ReplicaRecord, info: ArtifactInfo, to: Path) -> ArtifactInfo:
        if not replica.url:
            raise Unavailable("its record does not say where others reach it; start it with --address HOST:PORT")
        try:
            url, pin = read_pinned(replica.url)
        except ValueError:
            raise Unavailable("its record does not say which certificate it has; start it again") from None
        ticket = await self._tickets.issue(ARTIFACTS, info.artifact, FILE)
        return await artifacts_of_replica(url, ticket=ticket, pin=pin).take(info, to)


def open_shared(
    store: Store,
    settings: Settings,
    tickets: PeerTickets,
    *,
    clock: Clock,
    url: Callable[[], str] | None = None,
) -> Artifacts:
    """The repository that the settings name: one for all machines, unless it is an index over HTTP, which is one."""
    own = open_artifacts(settings, clock=clock)
    return own if "://" in settings.artifacts else SharedArtifacts(store, own, tickets, clock=clock, url=url)


def _info(record: ArtifactRecord) -> ArtifactInfo:
    return ArtifactInfo(**{name: getattr(record, name) for name in ArtifactInfo.__struct_fields__})


def _check_same(there: ArtifactInfo, info: ArtifactInfo) -> ArtifactInfo:
    if there.sha256 != info.sha256:
        raise Conflict(
            f"artifact {info.artifact}: another file is published under that name ({there.sha256[:12]}…, and not"
            f" {info.sha256[:12]}…); publish this one as another version"
        )
    return there
