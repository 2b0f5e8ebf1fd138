"""Transactions of the controller's steps: what each compares and writes. Pure; the writer adds guard and log entry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.state_machine import changed_record
from hostler.engine.runtime.guarded_writer import Txn
from hostler.keys.families import (
    ALERT,
    ALIVE,
    BLUEPRINT,
    DEPLOYMENT,
    ENDPOINT,
    RETRIES,
    SLICE,
    SLICE_DECISION,
    SLICE_OWNER,
)
from hostler.model.rollout import Retries
from hostler.ports.store import PIECE_BYTES, Delete, DeletePrefix, ModRevision, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hostler.engine.deployments.decide import Spot
    from hostler.keys.entry import Entry
    from hostler.model.deployment import Blueprint, SliceInstance, SliceRecord, SliceSettings
    from hostler.model.rollout import Deployment, SliceDecision, SliceOwner
    from hostler.ports.store import Comparison, Operation

BATCH = 100
"""Slice keys in one transaction."""
WRITES = 110
"""Operations in one transaction, without its decision log entry and a record or two that belong to it."""
GIVE_UP = 5
"""Consecutive failures after which a deployment in progress is given up."""
FIRST_PAUSE, LAST_PAUSE = 1.0, 300.0
REMEMBERED = 100
"""Nodes whose failures are remembered."""
_SLICES = SLICE.prefix()


class DesiredSlice(msgspec.Struct, frozen=True):
    """The records that specify a slice: its owner and its blueprint."""

    owner: Entry[SliceOwner] | None = None
    blueprint: Entry[Blueprint] | None = None
    name: str = ""
    """Name of the blueprint."""
    number: int = 0

    def unchanged(self, base: str) -> list[Comparison]:
        """Return comparisons that hold if the records are as they were read."""
        when = [SLICE_OWNER.absent(base=base) if self.owner is None else SLICE_OWNER.unchanged(self.owner)]
        if self.blueprint is not None:
            when.append(BLUEPRINT.unchanged(self.blueprint))
        elif self.name:
            when.append(BLUEPRINT.absent(blueprint=self.name))
        return when


class Written(msgspec.Struct, frozen=True):
    """The new value of a slice key."""

    key: str
    entry: Entry[SliceRecord] | None
    value: bytes | None

    @property
    def when(self) -> Comparison:
        """The comparison that holds if the key is as it was read."""
        return ModRevision(self.key) == (0 if self.entry is None else self.entry.mod_revision)

    @property
    def then(self) -> Operation:
        """The operation that writes or deletes the key."""
        return Delete(self.key) if self.value is None else Put(self.key, self.value)


def slice_key(spot: Spot) -> str:
    """Return the key of an artifact on a node; both are spelled as in keys."""
    return f"{_SLICES}{spot[0]}/{spot[1]}"


def slice_change(
    spot: Spot,
    entry: Entry[SliceRecord] | None,
    changes: Mapping[int, SliceInstance],
    *,
    at: float,
    settings: Mapping[int, SliceSettings],
) -> Written:
    """Return one slice key after these changes. Invalid: a change is not a legal transition."""
    record = changed_record(None if entry is None else entry.value, changes, at=at, settings=settings)
    return Written(slice_key(spot), entry, None if record is None else SLICE.encode(record))


def batches(written: Iterable[Written], most: int) -> Iterator[list[Written]]:
    """Group the keys so that each group fits into one transaction."""
    batch: list[Written] = []
    size = 0
    for one in written:
        bytes_ = len(one.value or b"") + len(one.key)
        if batch and (len(batch) >= most or size + bytes_ > PIECE_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += bytes_
    if batch:
        yield batch


def together(when: Sequence[Comparison], batch: Sequence[Written]) -> Txn:
    """Return one transaction for all of them."""
    return Txn([*when, *(one.when for one in batch)], [one.then for one in batch])


def write_deployment(
    base: str, desired: DesiredSlice, old: Entry[Deployment] | None, new: Deployment, retries: Iterable[Entry[Retries]]
) -> Txn:
    """Write the deployment. A new revision deletes the failure counts (`retries`): its version is tried afresh."""
    txn = Txn(desired.unchanged(base), [DEPLOYMENT.put(new, base=base)])
    txn.when.append(DEPLOYMENT.absent(base=base) if old is None else DEPLOYMENT.unchanged(old))
    if old is not None:
        txn.then += [Delete(entry.key) for entry in retries]
    return txn


def forget_slice(base: str, desired: DesiredSlice, old: Entry[Deployment] | None) -> Txn:
    """Delete the records of a slice that no blueprint names and that has no instances."""
    txn = Txn(desired.unchanged(base), [])
    txn.when.append(DEPLOYMENT.absent(base=base) if old is None else DEPLOYMENT.unchanged(old))
    if old is not None:
        txn.then.append(Delete(old.key))
    if desired.owner is not None:
        txn.then.append(Delete(desired.owner.key))
    if txn.then:
        txn.then += [DeletePrefix(of_base(family.prefix(), base)) for family in (RETRIES, SLICE_DECISION)]
        txn.then.append(DeletePrefix(ALERT.prefix(base=base)))
    return txn


def of_base(prefix: str, base: str) -> str:
    """Return the common prefix of the keys of all versions."""
    return f"{prefix}{base}:"


def count_failures(
    artifact: str, old: Entry[Retries] | None, where: Sequence[tuple[str, str]], *, under_way: bool, at: float
) -> Txn:
    """Count failures, and set the pause before new instances are loaded."""
    before = Retries() if old is None else old.value
    # A failure before the end of the pause belongs to instances loaded before it: all of them count as one try.
    is_next = at >= before.not_before
    failures = before.failures + (1 if is_next else 0)
    nodes = dict(before.nodes) if at - before.at < LAST_PAUSE else {}
    for node, _ in where:
        nodes[node] = nodes.get(node, 0) + 1
    record = Retries(
        failures=failures,
        total=before.total + len(where),
        not_before=at + pause(failures) if is_next else before.not_before,
        nodes=dict(list(nodes.items())[-REMEMBERED:]),
        given_up=before.given_up or (under_way and failures >= GIVE_UP),
        why=f"{where[-1][0]}: {where[-1][1] or 'instance failed'}",
        at=at,
    )
    return Txn([_same(artifact, old)], [RETRIES.put(record, artifact=artifact)])


def pause(failures: int) -> float:
    """Return the seconds before the next try, after this number of consecutive failures."""
    return min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 30))


def reset_failures(artifact: str, old: Entry[Retries]) -> Txn:
    """Reset the consecutive failures, because an instance became active after them."""
    record = msgspec.structs.replace(old.value, failures=0, not_before=0.0)
    return Txn([RETRIES.unchanged(old)], [RETRIES.put(record, artifact=artifact)])


def of_now(artifact: str, old: Entry[Retries], at: float) -> Txn:
    """Correct failures counted by a leader whose clock was ahead: they count as of now, and the pause starts now."""
    record = msgspec.structs.replace(old.value, at=at, not_before=at + pause(old.value.failures))
    return Txn([RETRIES.unchanged(old)], [RETRIES.put(record, artifact=artifact)])


def placement_decision(decision: SliceDecision, artifact: str) -> Operation:
    """Write the last placement decision with its reasons."""
    return SLICE_DECISION.put(decision, artifact=artifact)


def withdraw(written: Sequence[Written], changes: Mapping[str, Iterable[int]]) -> list[Operation]:
    """Delete the endpoints of these instances, given by slice key."""
    return [
        ENDPOINT.delete(artifact=one.key.rpartition("/")[2], method=method, instance=number)
        for one in written
        if one.entry is not None
        for number in changes[one.key]
        for method in one.entry.value.methods
    ]


def bury_node(node: str, entries: Iterable[Entry[SliceRecord]], most: int) -> Iterator[Txn]:
    """Remove all slices of a dead node, each with its endpoints first. Each transaction has at most `most` writes."""
    txn = Txn([ALIVE.absent(node=node)], [])
    for entry in entries:
        artifact = entry.key.rpartition("/")[2]
        goes: list[Operation] = [
            ENDPOINT.delete(artifact=artifact, method=method, instance=number)
            for number in entry.value.each()
            for method in entry.value.methods
        ]
        goes.append(Delete(entry.key))
        if txn.then and len(txn.then) + len(goes) > most:
            yield txn
            txn = Txn([ALIVE.absent(node=node)], [])
        txn.when.append(SLICE.unchanged(entry))
        while len(goes) > most:
            txn.then, goes = goes[:most], goes[most:]
            yield txn
            txn = Txn([ALIVE.absent(node=node), SLICE.unchanged(entry)], [])
        txn.then += goes
    if txn.then:
        yield txn


def buried_unread(node: str, artifacts: Sequence[str], most: int) -> Iterator[Txn]:
    """Remove the unreadable slice records of a dead node. Their endpoints expired with its lease."""
    for first in range(0, len(artifacts), most):
        keys = [slice_key((node, artifact)) for artifact in artifacts[first : first + most]]
        yield Txn([ALIVE.absent(node=node)], [Delete(key) for key in keys])


def _same(artifact: str, old: Entry[Retries] | None) -> Comparison:
    return RETRIES.absent(artifact=artifact) if old is None else RETRIES.unchanged(old)
