"""What a load would do, as values: records before and after, in an order in which nothing ever hangs in the air.

What is added or changed goes from above to below, what is removed from below to above, and that comes last: a blade
never stands in a rack that is not there, nor a rack in such a zone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Struct, structs

from hostler.engine.inventory.export import mebibytes, natural
from hostler.keys.inventory import IN_RACKS, RACK, REGION, ZONE
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
        """What it is about, as it will be, or was."""
        record = self.after if self.after is not None else self.before
        if record is None:
            raise ValueError(f"{self.key}: neither before nor after")
        return record

    def operation(self) -> Operation:
        """That it is done."""
        return Delete(self.key) if self.after is None else Put(self.key, self.after.encode())

    @property
    def kind(self) -> str:
        """`region`, `zone`, `rack`, `pdu`, `tor` or `blade`."""
        return _KINDS[type(self.record)]

    @property
    def rack(self) -> str:
        """The folded rack that it is, or is in; empty: it stands above racks."""
        return rack_of(self.key)

    @property
    def node(self) -> str:
        """The node that a blade is; empty: it is none."""
        return f"{self.rack}-{fold(self.record.name)}" if self.kind == "blade" else ""

    @property
    def name(self) -> str:
        """As people call it: `r1/b3`, `eu/eu-1`."""
        record = self.record
        if isinstance(record, Zone):
            return f"{record.region}/{record.name}"
        return f"{self.rack}/{record.name}" if self.kind in ("pdu", "tor", "blade") else record.name

    def fields(self) -> tuple[tuple[str, str, str], ...]:
        """What changes: field, old, new."""
        if self.before is None or self.after is None:
            return ()
        old, new = _spread(self.before), _spread(self.after)
        names = sorted({*old, *new}, key=natural)
        return tuple((name, old.get(name, ""), new.get(name, "")) for name in names if old.get(name) != new.get(name))


def rack_of(key: str) -> str:
    """The folded name of the rack that a key is about; empty: it stands above racks."""
    parts = RACK.match(key) or IN_RACKS.match(key) or {}
    return parts.get("rack", "")


def settled(inventory: Inventory, old: Mapping[str, Hardware]) -> dict[str, Hardware]:
    """What the records shall be. Where the file does not say `enabled` or `condition`, what stands is kept: a load
    must not put on duty what somebody has taken out for repair. So is what a later release wrote."""
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
    """How to come from `old` to `new`, both by key; nothing where both are the same."""
    puts = [Step(key, old.get(key), record) for key, record in new.items() if old.get(key) != record]
    gone = [Step(key, record, None) for key, record in old.items() if key not in new]
    return (*sorted(puts, key=_order), *sorted(gone, key=_order, reverse=True))


def applied(old: Mapping[str, Hardware], steps: Sequence[Step]) -> dict[str, Hardware]:
    """What `old` is after these steps."""
    new = dict(old)
    for step in steps:
        if step.after is None:
            del new[step.key]
        else:
            new[step.key] = step.after
    return new


def batches(steps: Sequence[Step], most: int) -> Iterator[tuple[Step, ...]]:
    """The steps in their order, at most so many at once, and no more than fit into a request.

    What is of one rack is kept together where it fits.
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
    """From above to below."""
    rank = _RANKS[type(step.record)]
    if isinstance(step.record, Region | Zone):
        parts = REGION.match(step.key) or ZONE.parse(step.key)
        return (rank, *(natural(part) for part in parts.values()))
    parts = IN_RACKS.match(step.key) or {}
    return (_RANKS[Rack], natural(step.rack), rank, natural(parts.get("blade") or parts.get("n", "1")))


def _spread(record: Hardware) -> dict[str, str]:
    """The fields of a record as text, for people; what is nested is spread out."""
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
