"""One artifact repository for all hosts of a control plane: each host has a folder, and the store lists what exists.

    /hostler/v1/artifacts/{artifact}     checksum, size, module; written by the replica that took the file
    a host's folder                      the files published there; on a replica also copies of all others

A file that is missing on a host is fetched from a replica that has it, with a ticket for that one file (`PeerTickets`),
and is accepted if it has the checksum in the store. A replica copies every file that it lacks, so that no host holds
the only copy.
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
from hostler.keys.families import ARTIFACT, REPLICA
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.model.rollout import ArtifactRecord
from hostler.ports.slices import ArtifactInfo
from hostler.ports.store import watching
from hostler.wiring import artifacts_in_order, artifacts_of_replica, open_artifacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.tickets import PeerTickets
    from hostler.kit.clock import Clock
    from hostler.model.replica import ReplicaRecord
    from hostler.ports.slices import Artifacts
    from hostler.ports.store import Store
    from hostler.settings import Settings

COPY_AGAIN = (1.0, 60.0)
"""First and longest delay in seconds before a replica retries a failed copy."""


class SharedArtifacts:
    """Implements `hostler.ports.slices.Artifacts` over the folder of this host (`own`) and those of all replicas.

    `url`: where this process serves its own files, as its record says; None: an agent, which publishes nothing.
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
        """Return the metadata of an artifact.

        This publishes an artifact that a user copied into the folder of this host by hand.
        """
        entry = await ARTIFACT.get(self._store, artifact=artifact)
        if entry is not None:
            return _info(entry.value)
        try:
            found = await self.own.find(artifact)
        except NotFound:
            raise NotFound(f"artifact {artifact}: not published; publish it with hostler slice push") from None
        return found if self._url is None else await self._register(found)

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        """Return all published artifacts and those in the folder of this host."""
        own = {info.artifact: info for info in await self.own.list(base)}
        listing = await ARTIFACT.list(self._store, strict=False)
        known = {entry.value.artifact: _info(entry.value) for entry in listing.entries}
        return artifacts_in_order((own | known).values(), base)

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        """Put the file of an artifact into `to`: from the folder of this host, else from a replica that has it."""
        info = await self.find(artifact)
        if await self._is_here(info):
            with suppress(Refused, NotFound):  # the file is damaged or missing; a replica may have a good copy
                return await self.own.fetch(artifact, to)
        return await self._fetch_elsewhere(info, to)

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        """Store an artifact in the folder of this host, then record it in the store.

        Conflict: this host or any other has another file under that name.
        """
        entry = await ARTIFACT.get(self._store, artifact=info.artifact)
        if entry is not None:
            _check_same(_info(entry.value), info)
        return await self._register(await self.own.publish(info, source))

    async def keep_copies(self) -> None:
        """Publish what is in the folder of this host, and copy into it what only others have, until cancelled."""
        backoff = Backoff(*COPY_AGAIN)
        while True:
            try:
                async with watching(self._store, ARTIFACT.prefix(), previous=False) as changes:
                    while await self._copy():
                        await self._clock.sleep(backoff.next())
                    backoff.reset()
                    await anext(aiter(changes))
            except (HostlerError, StopAsyncIteration):  # the store is unreachable
                await self._clock.sleep(backoff.next())

    # Internal

    async def _copy(self) -> int:
        """Make one pass. Return the number of artifacts still missing here."""
        own = {info.artifact: info.sha256 for info in await self.own.list()}
        listing = await ARTIFACT.list(self._store, strict=False)
        known = {entry.value.artifact: _info(entry.value) for entry in listing.entries}
        for artifact in own.keys() - known.keys():
            with suppress(Conflict):
                await self._register(await self.own.find(artifact))
        missing = 0
        for info in known.values():
            if info.artifact in own:  # a different file under that name is kept: it belongs to the owner of this host
                continue
            try:
                with tempfile.TemporaryDirectory(prefix="hostler-artifact-") as folder:
                    await self._fetch_elsewhere(info, Path(folder))
                    await self.own.publish(info, Path(folder) / info.file)
                self._log.info("artifact.copied", artifact=info.artifact, sha256=info.sha256)
            except (HostlerError, OSError) as error:  # OSError: no space for a temporary folder
                missing += 1
                self._log.info("artifact.not_copied", artifact=info.artifact, why=str(error))
        return missing

    async def _is_here(self, info: ArtifactInfo) -> bool:
        try:
            return (await self.own.find(info.artifact)).sha256 == info.sha256
        except (NotFound, Refused):
            return False

    async def _register(self, info: ArtifactInfo) -> ArtifactInfo:
        """Record an artifact as published. Return the record of the store. Conflict: it describes another file."""
        record = ArtifactRecord(**msgspec.structs.asdict(info))
        absent, written = ARTIFACT.absent(artifact=info.artifact), ARTIFACT.put(record, artifact=info.artifact)
        if (await self._store.txn([absent], [written])).succeeded:
            return info
        entry = await ARTIFACT.get(self._store, artifact=info.artifact)
        if entry is None:
            raise Unavailable(f"artifact {info.artifact}: its record was deleted just now; publish it again")
        return _check_same(_info(entry.value), info)

    async def _fetch_elsewhere(self, info: ArtifactInfo, to: Path) -> ArtifactInfo:
        """Ask the replicas one after the other. Unavailable: one of them did not answer. NotFound: none has it."""
        listing = await REPLICA.list(self._store, strict=False)
        here = self._url() if self._url is not None else ""
        replicas = [entry.value for entry in listing.entries if not here or entry.value.url != here]
        random.shuffle(replicas)  # spreads the load; not security-relevant
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
        what = f"artifact {info.artifact}: its file is not on this host, and no replica provided it"
        told = f"{what} ({'; '.join(tried) or 'no replica runs'})"
        advice = "start the replica that has the file, or publish the same file again with hostler slice push"
        raise (NotFound if answered and replicas else Unavailable)(f"{told}; {advice}")

    async def _fetch_from(self, replica: ReplicaRecord, info: ArtifactInfo, to: Path) -> ArtifactInfo:
        if not replica.url:
            raise Unavailable("its record has no address for others; start it with --address HOST:PORT")
        try:
            url, pin = read_pinned(replica.url)
        except ValueError:
            raise Unavailable("its record has no certificate digest; restart it") from None
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
    """Return the repository of the settings: shared through the store, or an HTTP index, which is shared already."""
    own = open_artifacts(settings, clock=clock)
    return own if "://" in settings.artifacts else SharedArtifacts(store, own, tickets, clock=clock, url=url)


def _info(record: ArtifactRecord) -> ArtifactInfo:
    return ArtifactInfo(**{name: getattr(record, name) for name in ArtifactInfo.__struct_fields__})


def _check_same(there: ArtifactInfo, info: ArtifactInfo) -> ArtifactInfo:
    if there.sha256 != info.sha256:
        raise Conflict(
            f"artifact {info.artifact}: another file is published under that name ({there.sha256[:12]}…, not"
            f" {info.sha256[:12]}…); publish this one as another version"
        )
    return there
