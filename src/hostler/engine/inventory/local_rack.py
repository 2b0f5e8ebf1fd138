"""The rack of `hostler up`, which needs no inventory file.

    rack local: pdu1, tor1, blades 1 to N; the capacity of each comes from its agent

It is created if there is no inventory, or only such racks, and gets a blade for each further node. Once a user loads an
inventory, this module does not change it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from hostler.engine.inventory.check import MOST_BLADES
from hostler.engine.inventory.export import natural
from hostler.engine.inventory.inventory_file import FullRack, default_ports
from hostler.engine.inventory.plan import batches, plan
from hostler.keys.families import BLADE, PDU, RACK, TOR
from hostler.model.inventory import Blade, Capacity, Pdu, Port, Rack, Tor
from hostler.model.name import fold
from hostler.ports.store import ModRevision, Put, Version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.keys.entry import Entry
    from hostler.model.inventory import Hardware
    from hostler.ports.store import Comparison, Store

OWN = "where hostler up runs"
"""The location of such a rack; distinguishes it from one that a user loaded."""
SPARE = 2
"""Ports in addition to those of the blades: the pdu's for the tor, and a spare one."""
AT_ONCE = 96


async def make_own_rack(store: Store, rack: str, blades: Sequence[str]) -> int:
    """Add the rack and these blades to the inventory, unless a user loaded one; return the number of records written.

    It stops if another process writes concurrently: the next start continues.
    """
    racks = (await RACK.list(store, strict=False)).entries
    if any(entry.value.location != OWN for entry in racks) or len(blades) > MOST_BLADES:
        return 0
    standing = await _standing(store, rack)
    steps = plan(*_grown({key: entry.value for key, entry in standing.items()}, rack, blades))
    written = 0
    for batch in batches(steps, AT_ONCE):
        when = [unchanged(step.key, standing.get(step.key)) for step in batch]
        then = [Put(step.key, step.record.encode()) for step in batch]
        if not (await store.txn(when, then)).succeeded:
            break
        written += len(batch)
    return written


async def _standing(store: Store, rack: str) -> dict[str, Entry[Any]]:
    found: list[Entry[Any] | None] = [
        await RACK.get(store, rack=rack),
        await PDU.get(store, rack=rack),
        await TOR.get(store, rack=rack),
        *(await BLADE.list(store, rack=rack)).entries,
    ]
    return {entry.key: entry for entry in found if entry is not None}


def _grown(
    old: dict[str, Hardware], rack: str, blades: Sequence[str]
) -> tuple[dict[str, Hardware], dict[str, Hardware]]:
    """Return the current and the desired records: equal if no blade is missing."""
    known = [record.name for record in old.values() if isinstance(record, Blade)]
    listed = {fold(name) for name in known}
    missing = sorted((name for name in blades if fold(name) not in listed), key=natural)
    if not missing:
        return old, old
    if RACK.fill(rack=rack) not in old:
        return old, {**old, **_fresh(rack, missing)}
    new = dict(old)
    for name in missing:
        new[BLADE.fill(rack=rack, blade=name)] = _blade(name)
    for key in (PDU.fill(rack=rack), TOR.fill(rack=rack)):
        feed = old.get(key)
        if isinstance(feed, Pdu | Tor):
            new[key] = structs.replace(feed, ports=_wired(feed.ports, missing))
    return old, new


def _fresh(rack: str, blades: Sequence[str]) -> dict[str, Hardware]:
    ports = len(blades) + SPARE
    full = FullRack(
        rack=Rack(name=rack, location=OWN),
        pdus=(Pdu(name="pdu1", ports=default_ports(ports, [*blades, "tor1"])),),
        tors=(Tor(name="tor1", ports=default_ports(ports, blades)),),
        blades=tuple(_blade(name) for name in blades),
    )
    return dict(full.records())


def _blade(name: str) -> Blade:
    return Blade(name=name, capacity=Capacity(cpus=0, memory_mib=0))


def _wired(ports: dict[int, Port], items: Sequence[str]) -> dict[int, Port]:
    """Return the ports with these items on the first free ones, and on new ones."""
    free = [number for number, port in sorted(ports.items()) if not port.wired]
    first = max(ports, default=0) + 1
    numbers = [*free, *range(first, first + len(items))][: len(items)]
    return {**ports, **{number: Port(wired=True, item=item) for number, item in zip(numbers, items)}}


def unchanged(key: str, entry: Entry[Any] | None) -> Comparison:
    """Return the comparison that the record is as it was read, or still absent."""
    return Version(key) == 0 if entry is None else ModRevision(key) == entry.mod_revision
