"""Import of CloudChamber's inventory file into the document of docs/inventory.md.

The values of the resulting document keep the lines of the file, so every error has its line, and
`inventory_file.inventory_of` checks it like any other. Contents without an equivalent in Hostler become a note: one
line per kind, with the number of occurrences and the first of them.

Keys are matched without regard to case, `"16"` is a number and `"true"` or `1` a flag, as in CloudChamber. Anchors,
aliases and `<<` are supported.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from hostler.engine.inventory import check
from hostler.kit.plural import counted
from hostler.kit.yaml import Location, Node, Piece
from hostler.model.inventory import Condition
from hostler.model.name import fold
from hostler.model.vm import ARCH, architecture

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STATES = {
    "out_of_service": Condition.NOT_IN_SERVICE,
    "in_service": Condition.OPERATIONAL,
    "commissioning": Condition.BURN_IN,
    "assumed_failed": Condition.OUT_FOR_REPAIR,
    "decommissioning": Condition.RETIRING,
    "decommissioned": Condition.RETIRED,
}
"""The condition for each CloudChamber state of a region or zone."""
CONDITIONS = {condition.value: condition for condition in Condition}

_TYPES = ("zonetypes", "racktypes", "pdutypes", "tortypes", "bladetypes")
_BARRED = re.compile(r"[\s:/]+")
_INDEX = 10_000_000


class Translation:
    """The translation of one file. `notes` are complete after `document`."""

    def __init__(self) -> None:
        self._notes: dict[str, list[Location]] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what was left out or changed, one line per kind."""
        lines = []
        for what, places in self._notes.items():
            line = f"line {places[0].line}, " if places[0].line else ""
            lines.append(f"{what} ({counted(len(places), 'place')}; first: {line}{places[0].path})")
        return tuple(lines)

    def document(self, top: Piece) -> Piece:
        """Return the document of docs/inventory.md. Errors of the file are added to the doubts of `top`."""
        fields = _fields(top, "details", "regions", "racks", *_TYPES)
        if "details" in fields:
            self._leave_texts(_fields(fields["details"], "name", "notes"))
        if "regions" not in fields and "racks" not in fields:
            top.missing("Regions")
        return _map(
            top,
            regions=_list(fields, "regions", self._region),
            racks=_list(fields, "racks", self._old_rack),
        )

    # Levels

    def _region(self, piece: Piece) -> Piece:
        fields = _fields(piece, "name", "details", "zones")
        details = _details(piece, fields, "state", "location", "notes")
        self._leave_texts(details, "location", "notes")
        return _map(
            piece,
            name=self._name(piece, fields),
            condition=_condition(fields.get("details", piece), details, "state", STATES),
            zones=_list(fields, "zones", self._zone),
        )

    def _zone(self, piece: Piece) -> Piece:
        fields = _fields(piece, "name", "details", "racks")
        details = _details(piece, fields, "enabled", "state", "location", "notes")
        self._leave_texts(details, "location", "notes")
        return _map(
            piece,
            name=self._name(piece, fields),
            enabled=_enabled(fields.get("details", piece), details),
            condition=_condition(fields.get("details", piece), details, "state", STATES),
            racks=_list(fields, "racks", self._rack),
        )

    def _rack(self, piece: Piece) -> Piece:
        fields = _fields(piece, "name", "details", "pdus", "tors", "blades")
        details = _details(piece, fields, "enabled", "condition", "location", "notes")
        self._leave_texts(details, "notes")
        items = _rack_items(fields)
        return _map(
            piece,
            name=self._name(piece, fields, rack=True),
            location=details.get("location"),
            **_standing(piece, fields, details),
            pdus=_list(fields, "pdus", lambda each: self._feed(each, "pdu", items)),
            tors=_list(fields, "tors", lambda each: self._feed(each, "tor", items)),
            blades=_list(fields, "blades", self._blade),
        )

    def _feed(self, piece: Piece, kind: str, items: frozenset[str]) -> Piece:
        fields = _fields(piece, "index", "details", "ports")
        details = _details(piece, fields, "enabled", "condition")
        wired: dict[int, Piece | None] = {}
        at_zero: Piece | None = None
        seen: set[str] = set()
        for port in fields["ports"].items() if "ports" in fields else ():
            inside = _fields(port, "index", "wired", "item")
            number = _whole(inside["index"], most=check.MOST_PORTS) if "index" in inside else 0
            if number in wired:
                port.doubt(f"there is a port {number} already; a {kind} has each index once")
            item = self._item(port, inside, kind, items, seen)
            wired[number] = item
            if number == 0:
                at_zero = item
        wired.pop(0, None)
        if at_zero is not None:
            last = max(wired, default=0) + 1
            wired[last] = at_zero
            self._note("port 0 became the last port of its pdu or tor: ports count from 1 here", at_zero.place)
        ports = {str(number): item.node if item is not None else Node(None) for number, item in wired.items()}
        shown = Piece(Node(ports, piece.node.line), piece.place.field("ports"), piece.doubts) if ports else None
        name = f"{kind}{_index(fields)}"
        return _map(piece, name=_value(piece, name), **_standing(piece, fields, details), ports=shown)

    def _item(
        self, port: Piece, fields: Mapping[str, Piece], kind: str, items: frozenset[str], seen: set[str]
    ) -> Piece | None:
        """Return the name of what a port is wired to; None: nothing that is supported here."""
        if "wired" not in fields or not _flag(fields["wired"]) or "item" not in fields:
            return None
        inside = _fields(fields["item"], "type", "id", "port")
        type_ = _choice(inside["type"], ("pdu", "tor", "blade", "unknown")) if "type" in inside else "unknown"
        name = f"{'b' if type_ == 'blade' else type_}{_whole(inside['id'], most=_INDEX) if 'id' in inside else 0}"
        if "port" in inside and _whole(inside["port"], most=_INDEX):
            self._note("Item.Port was left out: a cable names its component, not the port there", inside["port"].place)
        if type_ == kind:
            fields["item"].doubt(f"the port of a {kind} does not lead to a {kind}")
        elif kind == "tor" and type_ == "pdu":
            self._note("a tor's port to a pdu was left out: the pdu's port names this cable", port.place)
        elif type_ == "unknown" or name not in items:
            self._note("a cable to a component that is not in the rack was left out", port.place)
        elif name in seen:
            self._note("a second cable from a pdu or tor to the same component was left out", port.place)
        else:
            seen.add(name)
            return _value(port, name)
        return None

    def _blade(self, piece: Piece) -> Piece:
        fields = _fields(piece, "index", "details", "capacity", "bootinfo", "bootonpoweron")
        details = _details(piece, fields, "enabled", "condition")
        if "bootinfo" in fields:
            self._leave_boot(_fields(fields["bootinfo"], "source", "image", "version", "parameters"))
        if "bootonpoweron" in fields and not _flag(fields["bootonpoweron"]):
            self._note("BootOnPowerOn was left out: agents start with their host", fields["bootonpoweron"].place)
        if "capacity" not in fields:
            piece.missing("Capacity")
        inside = fields.get("capacity")
        sizes = ("cores", "memoryinmb", "diskingb", "networkbandwidthinmbps", "arch")
        capacity = {} if inside is None else self._capacity(inside, _fields(inside, *sizes))
        return _map(
            piece,
            name=_value(piece, f"b{_index(fields)}"),
            **_standing(piece, fields, details),
            **capacity,
        )

    def _capacity(self, piece: Piece, fields: Mapping[str, Piece]) -> dict[str, Piece | None]:
        def number(name: str, most: int, unit: str = "") -> Piece | None:
            if name not in fields:
                return None
            found = _whole(fields[name], least=1, most=most)
            return _value(fields[name], f"{found}{unit}" if unit else found)

        arch = fields["arch"].text(most=63).strip() if "arch" in fields else ""
        word = architecture(arch)
        return {
            "cpus": number("cores", check.CPUS),
            "memory": number("memoryinmb", check.MEMORY_MIB, "MiB"),
            "disk": number("diskingb", check.DISK_GIB, "GiB"),
            "network_mbps": number("networkbandwidthinmbps", check.NETWORK_MBPS),
            "labels": _map(piece, **{ARCH: _value(fields["arch"], word)}) if word else None,
        }

    def _old_rack(self, piece: Piece) -> Piece:
        """Return a rack of the earlier format: one pdu and one tor without ports, blades without details."""
        fields = _fields(piece, "name", "tor", "pdu", "blades")
        blades = fields["blades"].items() if "blades" in fields else []
        ports = min(len(blades) + 1, check.MOST_PORTS)
        return _map(
            piece,
            name=self._name(piece, fields, rack=True),
            pdus=_wrap(piece, [_map(piece, name=_value(piece, "pdu0"), ports=_value(piece, ports))]),
            tors=_wrap(piece, [_map(piece, name=_value(piece, "tor0"), ports=_value(piece, ports))]),
            blades=_list(fields, "blades", self._old_blade),
        )

    def _old_blade(self, piece: Piece) -> Piece:
        sizes = ("cores", "memoryinmb", "diskingb", "networkbandwidthinmbps", "arch")
        fields = _fields(piece, "index", *sizes)
        return _map(piece, name=_value(piece, f"b{_index(fields)}"), **self._capacity(piece, fields))

    # Contents without an equivalent

    def _note(self, what: str, place: Location) -> None:
        self._notes.setdefault(what, []).append(place)

    def _leave_texts(self, fields: Mapping[str, Piece], *names: str) -> None:
        for name in names or tuple(fields):
            if name in fields and fields[name].value not in ("", None):
                what = "Details.Location of a region or zone" if name == "location" else f"Details.{name.title()}"
                self._note(f"{what} was left out: the inventory has no field for it", fields[name].place)

    def _leave_boot(self, fields: Mapping[str, Piece]) -> None:
        said = [piece for piece in fields.values() if piece.value not in ("", None)]
        if said:
            self._note("BootInfo was left out: Hostler does not install hosts", said[0].place)

    def _name(self, piece: Piece, fields: Mapping[str, Piece], *, rack: bool = False) -> Piece | None:
        if "name" not in fields:
            piece.missing("Name")
            return _value(piece, check.NO_NAME)
        typed = fields["name"].text(least=1)
        name = _BARRED.sub("_", typed.replace("-", "_") if rack else typed)
        if name != typed:
            self._note(
                "characters of a name became '_': a name has no space, '/' or ':', and a rack's name has no '-'",
                fields["name"].place,
            )
        return _value(fields["name"], name)


# Parsing like CloudChamber


def _fields(piece: Piece, *known: str) -> dict[str, Piece]:
    """Return the fields of a map by lower-case name, including those that `<<` merges. Any other field is a doubt."""
    found: dict[str, Piece] = {}
    if not isinstance(piece.value, dict):
        piece.fields()  # it adds the doubt that this is not a map
        return found
    merged: list[Node] = []
    for name, node in piece.value.items():
        if name == "<<":
            merged = list(node.value) if isinstance(node.value, list) else [node]
            continue
        place = piece.place.field(name, node.key_line)
        if fold(name) not in known:
            piece.doubts.add(place, f"unknown field; known are {', '.join(known)}")
        elif fold(name) in found:
            piece.doubts.add(place, "occurs twice; case is ignored")
        elif node.value is not None:
            found[fold(name)] = Piece(node, place, piece.doubts)
    for node in merged:
        inherited = _fields(Piece(node, Location(piece.place.path, node.line), piece.doubts), *known)
        found = {**inherited, **found}
    return found


def _details(piece: Piece, fields: Mapping[str, Piece], *known: str) -> dict[str, Piece]:
    if "details" not in fields:
        piece.missing("Details")
        return {}
    return _fields(fields["details"], *known)


def _standing(piece: Piece, fields: Mapping[str, Piece], details: Mapping[str, Piece]) -> dict[str, Piece | None]:
    inside = fields.get("details", piece)
    return {
        "enabled": _enabled(inside, details),
        "condition": _condition(inside, details, "condition", CONDITIONS) if "details" in fields else None,
    }


def _enabled(piece: Piece, details: Mapping[str, Piece]) -> Piece:
    """Return the flag. CloudChamber treats a missing one as false."""
    if "enabled" not in details:
        return _value(piece, value=False)
    return _value(details["enabled"], _flag(details["enabled"]))


def _condition(piece: Piece, details: Mapping[str, Piece], field: str, words: Mapping[str, Condition]) -> Piece | None:
    if field not in details:
        if not isinstance(piece.value, dict) or piece.place.path not in piece.doubts:
            piece.missing(field.title())
        return None
    return _value(details[field], words[_choice(details[field], tuple(words))].value)


def _index(fields: Mapping[str, Piece]) -> int:
    return _whole(fields["index"], most=_INDEX) if "index" in fields else 0


def _rack_items(fields: Mapping[str, Piece]) -> frozenset[str]:
    """Return the names of the components of a rack."""
    found: set[str] = set()
    for field, prefix in (("pdus", "pdu"), ("tors", "tor"), ("blades", "b")):
        pieces = fields[field].items() if field in fields and isinstance(fields[field].value, list) else []
        for piece in pieces:
            found.add(f"{prefix}{_number_of(piece)}")
    return frozenset(found)


def _number_of(piece: Piece) -> str:
    """Return the index as written, without adding a doubt: the component's own parsing does that."""
    nodes = [piece.node]
    while nodes:
        node = nodes.pop(0)
        inside = node.value if isinstance(node.value, dict) else {}
        for name, value in inside.items():
            if fold(name) == "index":
                text = str(value.value)
                return (text.lstrip("0") or "0") if _is_digits(text) else text
        nodes += inside["<<"].value if "<<" in inside and isinstance(inside["<<"].value, list) else []
        nodes += [inside["<<"]] if "<<" in inside and isinstance(inside["<<"].value, dict) else []
    return "0"


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _whole(piece: Piece, *, least: int = 0, most: int) -> int:
    text = str(piece.value)
    if isinstance(piece.value, str) and _is_digits(text):
        number = int(text.lstrip("0")[:18] or 0)
        return Piece(Node(number, piece.node.line), piece.place, piece.doubts).whole(least=least, most=most)
    return piece.whole(least=least, most=most)


def _flag(piece: Piece) -> bool:
    word = str(piece.value).lower()
    return word in ("true", "1") if word in ("true", "false", "1", "0") else piece.flag()


def _choice(piece: Piece, options: Sequence[str]) -> str:
    word = str(piece.value).lower()
    return word if word in options else piece.choice(*options)


# Building the document


def _value(piece: Piece, value: Any) -> Piece:
    """Return a value at the position of `piece`."""
    node = Node(value, piece.place.line)
    return Piece(node, piece.place, piece.doubts)


def _map(piece: Piece, **fields: Piece | None) -> Piece:
    return _value(piece, {name: found.node for name, found in fields.items() if found is not None})


def _wrap(piece: Piece, items: Iterable[Piece]) -> Piece:
    return _value(piece, [item.node for item in items])


def _list(fields: Mapping[str, Piece], name: str, read: Any) -> Piece | None:
    if name not in fields:
        return None
    return _wrap(fields[name], [read(item) for item in fields[name].items()])
