"""Every release reads what every earlier release wrote.

`golden/{release}/{Record}.json` is a record as that release wrote it. The files of a release that is out are never
changed; a release that adds fields adds a folder. The `-minimal` ones hold the required fields alone.
"""

from __future__ import annotations

import enum
import inspect
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler.engine.labs import state_machine
from hostler.errors import Invalid
from hostler.keys.families import KEYS
from hostler.model import (
    access,
    deployment,
    inventory,
    lab,
    migration,
    node,
    replica,
    rollout,
    trace,
    vm,
    workload,
)
from hostler.model.record import Record

if TYPE_CHECKING:
    from types import ModuleType

GOLDEN = Path(__file__).parent / "golden"
MODULES: tuple[ModuleType, ...] = (
    *(access, deployment, inventory, lab, migration, node, replica, rollout, trace, vm, workload),
)
RECORDS: dict[str, type[Record]] = {
    name: cls
    for module in MODULES
    for name, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, Record) and cls not in (Record, inventory.Hardware)
}
FILES = sorted(GOLDEN.glob("*/*.json"))


_Event = enum.StrEnum("_Event", {event.name: event.value for event in lab.LabEvent if event != "message"})  # type: ignore[misc]


class _News(Record, frozen=True, kw_only=True):
    """As it was before there were messages."""

    number: int
    at: float
    event: _Event
    lab_id: int | None = msgspec.field(name="labId", default=None)
    reason: str = ""


class _BeforeMessages(Record, frozen=True, kw_only=True):
    """`LabUser` as it was then."""

    user: str
    generation: int = 0
    lab: lab.Lab | None = None
    worked: dict[str, str] = msgspec.field(default_factory=dict)
    news: tuple[_News, ...] = ()
    changed_at: float


def contains(whole: Any, part: Any) -> bool:
    """Whether everything in `part` is in `whole`, which may have more fields."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(k in whole and contains(whole[k], v) for k, v in part.items())
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part) and isinstance(whole, bool) == isinstance(part, bool)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_an_earlier_record_is_read_and_nothing_of_it_is_lost(path: Path) -> None:
    data = path.read_bytes()
    record = RECORDS[path.stem.removesuffix("-minimal")].decode(data)
    written = json.loads(record.encode())
    assert contains(written, json.loads(data))
    assert type(record).decode(record.encode()) == record


@pytest.mark.parametrize("name", RECORDS)
def test_every_record_has_its_golden_files(name: str) -> None:
    stems = {path.stem for path in FILES}
    assert {name, f"{name}-minimal"} <= stems, f"{name}: add golden files of it to {GOLDEN}"


@pytest.mark.parametrize("name", RECORDS)
def test_the_newest_golden_file_shows_every_field(name: str) -> None:
    newest = [path for path in FILES if path.stem == name][-1]
    shown = set(json.loads(newest.read_bytes()))
    assert shown == set(RECORDS[name].__struct_encode_fields__) - {"hostler:unknown"}


def test_every_record_in_the_store_is_among_them() -> None:
    assert {key.record.__name__ for key in KEYS if issubclass(key.record, Record)} <= set(RECORDS)


def test_a_lab_with_a_message_is_read_and_kept_by_a_release_that_knows_none() -> None:
    told = lab.LabUser.decode((GOLDEN / "0.1" / "LabUser.json").read_bytes())
    assert told.messages
    record = state_machine.message(told, "five minutes left", now=1.0)
    before = _BeforeMessages.decode(record.encode())
    after = lab.LabUser.decode(msgspec.structs.replace(before, changed_at=2.0).encode())
    assert after == msgspec.structs.replace(record, changed_at=2.0)


def test_an_event_of_a_later_release_is_read_shown_and_kept() -> None:
    data = b'{"number":1,"at":1.0,"event":"moved-away","labId":5,"reason":""}'
    news = lab.LabNews.decode(data)
    assert (news.event.value, f"{news.event}", news.encode()) == ("moved-away", "moved-away", data)
    for wrong in (b'"No word"', b'""', b"7", b'"' + b"x" * 65 + b'"'):
        with pytest.raises(Invalid):
            lab.LabNews.decode(data.replace(b'"moved-away"', wrong))
