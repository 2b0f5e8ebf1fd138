"""A later release adds values to enums. This one reads every record that has one, shows it, and loses nothing of it."""

from __future__ import annotations

import copy
import enum
import inspect
import json
import pkgutil
import types
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import msgspec
import pytest
from later_value import later

import hostler.model
from hostler.errors import Invalid
from hostler.keys.families import KEYS
from hostler.model.image import Probe, Seeding
from hostler.model.node import Lifecycle
from hostler.model.record import OpenEnum, Record

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDEN = Path(__file__).parent / "golden"
LATER = "LATER_value-1"
STORED = sorted({key.record for key in KEYS if issubclass(key.record, Record)}, key=lambda record: record.__name__)
Found = tuple[type[Record], str]


def golden(record: type[Record]) -> dict[str, Any]:
    newest = max(GOLDEN.glob(f"*/{record.__name__}.json"))
    value: dict[str, Any] = json.loads(newest.read_bytes())
    return value


def unwrapped(type_: Any) -> Iterator[Any]:
    """Its parts, without what surrounds them: of `tuple[E, ...] | None` it is E."""
    inside = get_args(type_)
    if get_origin(type_) in (Union, types.UnionType, list, tuple, dict) or hasattr(type_, "__metadata__"):
        for each in inside if not hasattr(type_, "__metadata__") else inside[:1]:
            yield from unwrapped(each)
    else:
        yield type_


def fields_with_enums(record: type[Record], known: set[type[Record]] | None = None) -> set[Found]:
    """Every enum field of the record and of those inside it."""
    known = set() if known is None else known
    if record in known:
        return set()
    known.add(record)
    found: set[Found] = set()
    for field in msgspec.structs.fields(record):
        for inner in unwrapped(field.type):
            if isinstance(inner, type) and issubclass(inner, enum.Enum):
                found.add((record, field.encode_name))
            elif isinstance(inner, type) and issubclass(inner, Record):
                found |= fields_with_enums(inner, known)
    return found


def with_later_values(record: type[Record], value: Any) -> Iterator[tuple[Found, Any]]:
    """The JSON of the record with one enum field changed, for each such field at each depth."""
    for field in msgspec.structs.fields(record):
        name = field.encode_name
        for inner in unwrapped(field.type):
            if not isinstance(inner, type):
                continue
            if issubclass(inner, enum.Enum):
                yield (record, name), {**value, name: LATER}
            elif issubclass(inner, Record):
                for found, changed in with_later_values(inner, golden(inner)):
                    yield found, {**value, name: surrounded(field.type, changed)}


def surrounded(type_: Any, value: Any) -> Any:
    """The value as a field of this type has it."""
    if get_origin(type_) in (Union, types.UnionType):
        return surrounded(next(each for each in get_args(type_) if each not in (type(None), msgspec.UnsetType)), value)
    if get_origin(type_) in (list, tuple):
        return [surrounded(get_args(type_)[0], value)]
    if get_origin(type_) is dict:
        return {"1": surrounded(get_args(type_)[1], value)}
    return value


@pytest.mark.parametrize("record", STORED, ids=lambda record: record.__name__)
def test_every_unknown_value_survives_a_round_trip_and_is_shown(record: type[Record]) -> None:
    covered = set()
    for found, value in with_later_values(record, golden(record)):
        data = json.dumps(value).encode()
        read = record.decode(data)
        assert LATER in repr(read)
        written = json.loads(read.encode())
        assert json.dumps(written).count(LATER) == 1, found
        assert record.decode(read.encode()) == read
        assert read != record.decode(json.dumps(value).replace(LATER, "LATER_other").encode())
        kept = msgspec.structs.replace(read)
        assert copy.deepcopy(kept) == read
        with pytest.raises(Invalid, match=rf"(?i)invalid enum value '{LATER}'"):
            record.decode(data, strict=True)
        covered.add(found)
    assert covered == fields_with_enums(record)


def test_every_enum_of_a_record_is_open() -> None:
    closed = {Probe, Seeding}  # of files that an image comes with, not of the store: one that is unknown is refused
    for module in pkgutil.iter_modules(hostler.model.__path__):
        for name, found in inspect.getmembers(import_module(f"hostler.model.{module.name}"), inspect.isclass):
            if issubclass(found, enum.Enum) and found not in (OpenEnum, enum.StrEnum) and found not in closed:
                assert issubclass(found, OpenEnum), f"{name}: derive it from OpenEnum"


@pytest.mark.parametrize("wrong", ["", "two words", "\x1b[31m", "x" * 65, "1st"])
def test_unknown_values_are_words_and_nothing_else(wrong: str) -> None:
    assert later(Lifecycle, "MAINTENANCE") == "MAINTENANCE"
    with pytest.raises(Invalid):
        later(Lifecycle, wrong)
