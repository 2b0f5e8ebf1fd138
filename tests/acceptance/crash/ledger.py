"""What a killed writer was told, and what must therefore be in the store that it left."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from harness import pace
from writing_process import GROUP_SIZE, GROUPS, PUTTERS, now

from hostler.ports.store import Event, KeyValue

if TYPE_CHECKING:
    from pathlib import Path

    from hostler import Store

SLACK = 0.02
"""Between two looks at a clock in two processes."""
LATE = 1.0
"""Seconds after its end in which a lease is gone by itself, at the machine's own pace."""


class Ledger:
    """Carries over the rounds of one store: what was acknowledged in all of them."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self._last: dict[str, tuple[int, int]] = {}  # key → number, revision
        self._toggle: dict[str, Any] = {}
        self._leases: dict[str, dict[str, Any]] = {}
        self._revision = 0
        self._compacted = 0

    def read(self, journal: Path, killed_at: float) -> None:
        """Take over what a writer noted."""
        self._toggle = {}
        *lines, _unfinished = journal.read_bytes().split(b"\n")
        for line in lines:
            self.take(json.loads(line))
        for lease in self._leases.values():
            if lease.pop("keeping", None) is not None:  # it may have been kept alive up to its last moment
                lease["latest"] = max(lease["latest"], killed_at + lease["ttl"])

    def take(self, note: dict[str, Any]) -> None:
        """One note."""
        what = note["what"]
        self._revision = max(self._revision, note.get("revision", 0) if what != "compacting" else 0)
        if what in ("put", "group"):
            self.acknowledged += 1
            self._last[note.get("key") or note["prefix"]] = (note["number"], note["revision"])
        elif what == "toggled":
            self.acknowledged += 1
            self._toggle = note
        elif what == "compacted":
            self._compacted = max(self._compacted, note["revision"])
        elif what in ("granted", "kept"):
            lease = self._leases.setdefault(note["key"], {"leased": False, "ttl": note["ttl"]})
            lease.pop("keeping", None)
            lease["earliest"], lease["latest"] = note["asked"] + note["ttl"], note["told"] + note["ttl"]
        elif what in ("leased", "keeping"):
            self._leases[note["key"]][what] = True
        elif what in ("lapsed", "revoking", "revoked"):
            # After this nobody knows when exactly it ended, only that it must not stand for longer than it could.
            lease = self._leases[note["key"]]
            lease["leased"] = False
            lease.pop("keeping", None)
            if what == "revoked":
                lease["latest"] = 0.0

    async def check(self, store: Store) -> None:
        """AssertionError: something acknowledged is lost, or something is torn."""
        looked_at = now()
        page = await store.range("")
        items = {kv.key: kv for kv in page.items}
        done_at = now()
        assert page.revision >= self._revision, f"the store is at {page.revision}, {self._revision} was acknowledged"
        assert "/impossible" not in items
        self._check_puts(items)
        self._check_groups(items)
        self._check_toggle(items.get("/toggle"))
        self._check_leases(items, looked_at, done_at)
        status = await store.status()
        assert status.compact_revision >= self._compacted
        await check_log(store, items, page.revision, status.compact_revision)

    def _check_puts(self, items: dict[str, KeyValue]) -> None:
        for task in range(PUTTERS):
            key = f"/put/{task}"
            self._check_number(key, items.get(key), *self._last.get(key, (0, 0)))

    def _check_number(self, key: str, kv: KeyValue | None, number: int, revision: int) -> None:
        if kv is None:
            assert number == 0, f"{key}: gone, {number} was acknowledged"
            return
        found = int(kv.value)
        assert found in (number, number + 1), f"{key}: is {found}, acknowledged was {number}"
        assert kv.version == found, f"{key}: version {kv.version} after {found} puts"
        if found == number:
            assert kv.mod_revision == revision, f"{key}: at revision {kv.mod_revision}, acknowledged was {revision}"
        else:
            assert kv.mod_revision > revision
        self._last[key if key.startswith("/put/") else key.rpartition("/")[0] + "/"] = (found, kv.mod_revision)

    def _check_groups(self, items: dict[str, KeyValue]) -> None:
        for group in range(GROUPS):
            prefix = f"/group/{group}/"
            members = [items.get(f"{prefix}{n}") for n in range(GROUP_SIZE)]
            states = {(kv.value, kv.mod_revision, kv.create_revision, kv.version) if kv else None for kv in members}
            assert len(states) == 1, f"{prefix}: torn: {members}"
            self._check_number(f"{prefix}0", members[0], *self._last.get(prefix, (0, 0)))

    def _check_toggle(self, kv: KeyValue | None) -> None:
        if kv is not None:
            assert kv.version == 1
            assert kv.create_revision == kv.mod_revision
            if self._toggle.get("there"):
                assert kv.mod_revision == self._toggle["revision"], "put twice without its deletion"

    def _check_leases(self, items: dict[str, KeyValue], looked_at: float, done_at: float) -> None:
        for key, lease in self._leases.items():
            if lease["leased"] and done_at < lease["earliest"]:
                assert key in items, f"{key}: gone {lease['earliest'] - looked_at:.3f} s too early"
            if looked_at > lease["latest"] + 1.0:
                assert key not in items, f"{key}: still there {looked_at - lease['latest']:.3f} s after its end"
        known = self._leases.keys()
        for key in items:
            if key.startswith("/lease/"):
                assert key in known, f"{key}: a lease that nobody was granted"

    def short_leases(self) -> dict[str, dict[str, Any]]:
        """Those that end within a second of their last grant."""
        return {key: lease for key, lease in self._leases.items() if lease["ttl"] <= 1}

    def end_of_short_leases(self) -> float:
        """When the last of them must have ended."""
        return max(lease["latest"] for lease in self.short_leases().values())

    async def await_expiry(self, store: Store) -> int:
        """Wait for every short lease to end by itself, on time, seen by a watch; how many did."""
        async with store.watch("/lease/") as watch:
            there = {kv.key for kv in (await store.range("/lease/")).items}
            pending = {key: lease for key, lease in self.short_leases().items() if key in there}
            count = len(pending)
            while pending:
                async with asyncio.timeout(
                    max(lease["latest"] for lease in pending.values()) - now() + pace.patience(LATE + 1)
                ):
                    event = await anext(watch)
                lease = pending.pop(event.kv.key, None)
                if lease is not None and event.type == "delete":
                    assert now() >= lease["earliest"] - SLACK, f"{event.kv.key}: ended early"
                    late = now() - lease["latest"]
                    pace.check(
                        late, LATE, since=time.monotonic() - late, what=f"{event.kv.key}: after its end, a lease"
                    )
        return count


async def check_log(store: Store, items: dict[str, KeyValue], revision: int, compacted: int) -> None:
    """The log since the last compaction has no gap, no torn transaction, and ends in what is there now."""
    start = max(compacted, 1) + 1
    expected = start
    state: dict[str, KeyValue] = {}
    if start > revision:
        return
    together: list[Event] = []
    async with asyncio.timeout(pace.patience(20)), store.watch("", start_revision=start) as watch:
        async for event in watch:
            at = event.kv.mod_revision
            if together and at != together[0].kv.mod_revision:
                check_transaction(together)
                together = []
            if at > revision:
                break  # leases that ended while we looked
            assert at in (expected - 1, expected), f"the log has {expected - 1}, then {at}"
            assert at == expected or together, f"the events of revision {at} are not together"
            expected = at + 1
            previous = state.get(event.kv.key, event.previous)
            version = previous.version if previous is not None else 0
            assert event.kv.version == (version + 1 if event.type == "put" else 0), f"{event} after {previous}"
            state[event.kv.key] = event.kv
            together.append(event)
            if at == revision and complete(together):
                check_transaction(together)
                break
    assert expected == revision + 1, f"the log ends at {expected - 1}, the store is at {revision}"
    for key, kv in state.items():
        if kv.mod_revision <= revision and not key.startswith("/lease/"):
            assert items.get(key) == (kv if kv.version else None), f"{key}: log and store differ"


def complete(events: list[Event]) -> bool:
    return not events[0].kv.key.startswith("/group/") or len(events) == GROUP_SIZE


def check_transaction(events: list[Event]) -> None:
    if events[0].kv.key.startswith("/group/"):
        assert len(events) == GROUP_SIZE, f"torn transaction: {events}"
        assert len({event.kv.value for event in events}) == 1, f"torn transaction: {events}"
    else:
        assert len(events) == 1, f"two transactions in one revision: {events}"
