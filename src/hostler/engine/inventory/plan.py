"""Plan of a load: records before and after, in an order that never leaves a record without its parent.

Additions and changes go from above to below, then removals from below to above: a blade is never in a missing rack, nor
a rack in a missing zone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, structs

from hostler.engine.inventory.export import mebibytes, natural
from hostler.keys.families import IN_RACKS, RACK, REGION, ZONE
from hostler.model.inventory import Blade, Capacity, Hardware, Pdu, Port, Rack, Region, Tor, Zone
from hostler.model.name import fold
from hostler.ports.store import PIECE_BYTES, Delete, Put, operation_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.ports.store import Operation

_KINDS: dict[type[Hardware], str] = {
    Region: "region",
    Zone: "zone",
    Rack: "rack",
    Pdu: "pdu",
    Tor: "tor",
    Blade: "blade",
}
_RANKS = {kind: rank for rank, kind in enumerate(_KINDS)}
_STANDING = ("enabled", "condition")


class Step(Struct, frozen=True):
    """One record: added (nothing before), changed, or removed (nothing after)."""

    key: str
    before: Hardware | None
    after: Hardware | None

    @property
    def record(self) -> Hardware:
        """Return the record as it will be or, if removed, as it was."""
        record = self.after if self.after is not None else self.before
        if record is None:
            raise ValueError(f"{self.key}: neither before nor after")
        return record

    def operation(self) -> Operation:
        """Return the operation that does it."""
        return Delete(self.key) if self.after is None else Put(self.key, self.after.encode())

    @property
    def kind(self) -> str:
        """Return `region`, `zone`, `rack`, `pdu`, `tor` or `blade`."""
        return _KINDS[type(self.record)]

    @property
    def rack(self) -> str:
        """Return the folded name of its rack; empty: it is above racks."""
        return rack_of(self.key)

    @property
    def node(self) -> str:
        """Return the node of a blade; empty: it is not a blade."""
        return f"{self.rack}-{fold(self.record.name)}" if self.kind == "blade" else ""

    @property
    def name(self) -> str:
        """Return the name for users: `r1/b3`, `eu/eu-1`."""
        record = self.record
        if isinstance(record, Zone):
            return f"{record.region}/{record.name}"
        return f"{self.rack}/{record.name}" if self.kind in ("pdu", "tor", "blade") else record.name

    def fields(self) -> tuple[tuple[str, str, str], ...]:
        """Return what changes: field, old, new."""
        if self.before is None or self.after is None:
            return ()
        old, new = _spread(self.before), _spread(self.after)
        names = sorted({*old, *new}, key=natural)
        return tuple((name, old.get(name, ""), new.get(name, "")) for name in names if old.get(name) != new.get(name))


def rack_of(key: str) -> str:
    """Return the folded name of the rack of a key; empty: it is above racks."""
    parts = RACK.match(key) or IN_RACKS.match(key) or {}
    return parts.get("rack", "")


def desired_records(inventory: Inventory, old: Mapping[str, Hardware]) -> dict[str, Hardware]:
    """Return the desired records. If the file does not give `enabled` or `condition`, the stored value is kept.

    A load must not put hardware on duty that an operator has taken out for repair. Fields that a later release wrote
    are kept, too.
    """
    new = inventory.records()
    for key, record in new.items():
        before = old.get(key)
        if before is None or type(before) is not type(record) or fold(before.name) != fold(record.name):
            continue
        address = fold(f"{_KINDS[type(record)]} {Step(key, None, record).name}")
        kept: dict[str, Any] = {
            field: getattr(before, field) for field in _STANDING if (address, field) not in inventory.said
        }
        if before.unknown is not UNSET:
            kept["unknown"] = before.unknown
        new[key] = structs.replace(record, **kept)
    return new


def plan(old: Mapping[str, Hardware], new: Mapping[str, Hardware]) -> tuple[Step, ...]:
    """Return the steps from `old` to `new`, both by key; none if they are equal."""
    puts = [Step(key, old.get(key), record) for key, record in new.items() if old.get(key) != record]
    gone = [Step(key, record, None) for key, record in old.items() if key not in new]
    return (*sorted(puts, key=_order), *sorted(gone, key=_order, reverse=True))


def records_after(old: Mapping[str, Hardware], steps: Sequence[Step]) -> dict[str, Hardware]:
    """Return `old` after these steps."""
    new = dict(old)
    for step in steps:
        if step.after is None:
            del new[step.key]
        else:
            new[step.key] = step.after
    return new


def batches(steps: Sequence[Step], most: int) -> Iterator[tuple[Step, ...]]:
    """Yield the steps in order, in batches of at most `most` that fit into a request.

    Steps of one rack are kept together if they fit.
    """
    batch: list[Step] = []
    total = 0
    for group in _groups(steps):
        sizes = [operation_size(step.operation()) for step in group]
        if batch and (len(batch) + len(group) > most or total + sum(sizes) > PIECE_BYTES):
            yield tuple(batch)
            batch, total = [], 0
        for step, size in zip(group, sizes, strict=True):
            if batch and (len(batch) == most or total + size > PIECE_BYTES):
                yield tuple(batch)
                batch, total = [], 0
            batch.append(step)
            total += size
    if batch:
        yield tuple(batch)


def _groups(steps: Sequence[Step]) -> Iterator[list[Step]]:
    group: list[Step] = []
    for step in steps:
        if group and (step.rack, step.after is None) != (group[0].rack, group[0].after is None):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _order(step: Step) -> tuple[Any, ...]:
    """Return the sort key: from above to below."""
    rank = _RANKS[type(step.record)]
    if isinstance(step.record, Region | Zone):
        parts = REGION.match(step.key) or ZONE.parse(step.key)
        return (rank, *(natural(part) for part in parts.values()))
    parts = IN_RACKS.match(step.key) or {}
    return (_RANKS[Rack], natural(step.rack), rank, natural(parts.get("blade") or parts.get("n", "1")))


def _spread(record: Hardware) -> dict[str, str]:
    """Return the fields of a record as text; nested fields are flattened."""
    shown: dict[str, str] = {}
    for field in record.__struct_fields__:
        value = getattr(record, field)
        if field == "unknown":
            continue
        if isinstance(value, Capacity):
            shown |= {
                "cpus": str(value.cpus or ""),
                "memory": mebibytes(value.memory_mib),
                "disk": f"{value.disk_gib}GiB" if value.disk_gib else "",
                "network_mbps": str(value.network_mbps or ""),
            }
        elif field == "ports":
            shown |= {f"port {number}": _port(port) for number, port in value.items()}
        elif field == "labels":
            shown |= {f"label {name}": label for name, label in value.items()}
        else:
            shown[field] = str(value).lower() if isinstance(value, bool) else str(value)
    return shown


def _port(port: Port) -> str:
    return port.item or "unwired"
