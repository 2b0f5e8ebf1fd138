"""The audit log in files: chained, durable, appended once; and whether a change of them is found."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from hostler.drivers.audit.chain import check
from hostler.drivers.audit.folder import AuditFolder
from hostler.errors import Damaged, Unavailable
from hostler.keys.families import AUDIT
from hostler.model.access import Audit
from hostler.ports.store import KeyValue

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = "2026-11-14", "2026-11-15"


def line(day: str, number: int) -> KeyValue:
    record = Audit(who="ada", verb="vm.create", subject=f"/s/{number}", at=float(number), name="ä\nb")
    key = AUDIT.fill(day=day, write=f"10:00:00.{number:06d}-x")
    return KeyValue(key, record.encode(), number, number, 1)


def lines(day: str, numbers: range) -> list[KeyValue]:
    return [line(day, number) for number in numbers]


async def filled(folder: Path) -> AuditFolder:
    files = AuditFolder(folder / "audit")
    await files.append(lines(FIRST, range(30)))
    await files.append([*lines(FIRST, range(30, 40)), *lines(SECOND, range(40, 50))])
    return files


async def test_lines_come_back_as_they_were_in_both_directions(tmp_path: Path) -> None:
    files = await filled(tmp_path)
    assert await files.days() == (FIRST, SECOND)
    found, start = [], 0
    while some := await files.read(FIRST, start, 7):
        found += [one.kv for one in some]
        start = some[-1].end
    assert found == lines(FIRST, range(40))
    back, end = [], None
    while some := await files.read_back(FIRST, end, 7):
        back += [one.kv for one in some]
        end = some[-1].start
    assert back == found[::-1]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.files()} == {0o600}


async def test_lines_larger_than_a_block_are_read_backwards(tmp_path: Path) -> None:
    files = AuditFolder(tmp_path / "audit")
    large = [KeyValue(line(FIRST, n).key, b'"%s"' % (b"x" * 100_000), n, n, 1) for n in range(1, 5)]
    await files.append(large)
    assert [one.kv for one in await files.read_back(FIRST, None, 3)] == large[:0:-1]


async def test_a_value_that_is_no_json_is_kept_as_it_is(tmp_path: Path) -> None:
    files = AuditFolder(tmp_path / "audit")
    odd = [KeyValue(line(FIRST, n).key, value, n, n, 1) for n, value in enumerate((b"", b"\xff", b"{\n}", b"nul"), 1)]
    await files.append(odd)
    assert [one.kv for one in await files.read(FIRST, 0, 10)] == odd
    assert [one.problems for one in check(files.files(), {})] == [()]


async def test_what_was_filed_before_a_crash_is_not_filed_twice_and_half_a_line_is_overwritten(tmp_path: Path) -> None:
    files = await filled(tmp_path)
    with files.files()[-1].open("ab") as torn:
        torn.write(b'{"key":"/hostler/v1/audit/2026-11-15/half')
    again = AuditFolder(tmp_path / "audit")
    written = await again.append(lines(SECOND, range(45, 55)))
    assert [(one.day, one.lines) for one in written] == [(SECOND, 15)]
    assert [one.kv for one in await again.read(SECOND, 0, 100)] == lines(SECOND, range(40, 55))
    assert again.place == files.place
    assert [one.problems for one in check(again.files(), {})] == [(), ()]
    # The other process goes on behind what this one has appended.
    await files.append(lines(SECOND, range(55, 60)))
    assert [one.problems for one in check(files.files(), {})] == [(), ()]


async def test_a_file_that_a_crash_left_empty_is_begun_anew(tmp_path: Path) -> None:
    files = await filled(tmp_path)
    (tmp_path / "audit" / "2026-11-16.jsonl").touch()
    await files.append(lines("2026-11-16", range(60, 70)))
    assert [one.problems for one in check(files.files(), {})] == [(), (), ()]


async def test_a_line_that_comes_late_goes_into_the_newest_file(tmp_path: Path) -> None:
    files = await filled(tmp_path)
    await files.append(lines(FIRST, range(90, 91)))
    assert [one.kv for one in await files.read(SECOND, 0, 100)][-1] == line(FIRST, 90)
    assert [one.problems for one in check(files.files(), {})] == [(), ()]


@pytest.mark.parametrize("what", ["changed", "removed", "swapped", "added", "first file", "end"])
async def test_every_change_is_found(tmp_path: Path, what: str) -> None:
    files = await filled(tmp_path)
    recorded = {one.day: one for one in await files.append(lines(FIRST, range(30, 40)))}
    path = files.files()[0]
    rows = path.read_bytes().splitlines(keepends=True)
    if what == "changed":
        rows[7] = rows[7].replace(b"ada", b"eve")
    elif what == "removed":
        del rows[7]
    elif what == "swapped":
        rows[7], rows[8] = rows[8], rows[7]
    elif what == "added":
        rows.insert(7, rows[7])
    elif what == "end":
        del rows[-3:]
    path.write_bytes(b"".join(rows))
    if what == "first file":
        recorded[FIRST] = type(recorded[SECOND])(FIRST, 40, "")
        path.unlink()
    assert any(one.problems for one in check(files.files(), recorded)), what


async def test_a_folder_that_cannot_be_written_is_told_and_a_damaged_file_is_not_added_to(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("in the way")
    with pytest.raises(Unavailable, match="audit files"):
        await AuditFolder(tmp_path / "audit").append(lines(FIRST, range(3)))
    files = await filled(tmp_path / "other")
    files.files()[-1].write_bytes(b"no header\n")
    with pytest.raises(Damaged, match="hostler audit verify"):
        await AuditFolder(tmp_path / "other" / "audit").append(lines(SECOND, range(60, 61)))


async def test_a_call_over_midnight_that_is_repeated_after_a_crash_files_each_line_once(tmp_path: Path) -> None:
    both = [*lines(FIRST, range(5)), *lines(SECOND, range(5, 10))]
    await AuditFolder(tmp_path / "audit").append(both)
    again = AuditFolder(tmp_path / "audit")  # of a process that does not know that it was done
    await again.append(both)
    found = [one.kv for day in (FIRST, SECOND) for one in await again.read(day, 0, 100)]
    assert found == both
    assert [one.problems for one in check(again.files(), {})] == [(), ()]
    await again.append([*both, *lines(SECOND, range(10, 12))])
    assert [one.kv for one in await again.read(SECOND, 0, 100)] == lines(SECOND, range(5, 12))
