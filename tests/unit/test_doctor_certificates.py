"""What `hostler doctor` says of certificates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
import trustme

from hostler.entry.doctor.host import certificates
from hostler.ports.machine_driver import Finding, Level
from hostler.settings import load

AUTHORITY = trustme.CA()
DAY = dt.timedelta(days=1)


def said(tmp_path: Path, *, key: str = "a", listen: str = "10.1.2.3:7070", store: str = "") -> list[Finding]:
    given = {"tls_cert": str(tmp_path / "a.pem"), "tls_key": str(tmp_path / f"{key}.key"), "listen": listen}
    more = {"store": store} if store else {}
    return certificates(load({"data": tmp_path, **given, **more}, environ={}, cwd=tmp_path))


def make(tmp_path: Path, name: str = "a", *, begins: dt.timedelta = -DAY, ends: dt.timedelta = 90 * DAY) -> None:
    now = dt.datetime.now(dt.UTC)
    made = AUTHORITY.issue_cert("a.example", "10.1.2.3", not_before=now + begins, not_after=now + ends)
    made.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    made.private_key_pem.write_to_path(tmp_path / f"{name}.key")


def test_a_certificate_that_can_be_used_is_named_with_its_names_and_its_end(tmp_path: Path) -> None:
    make(tmp_path)
    (found,) = said(tmp_path)
    assert found.level is Level.OK
    assert "a.pem for a.example, 10.1.2.3, until " in found.what


@pytest.mark.parametrize(
    ("begins", "ends", "level", "words"),
    [
        (-2 * DAY, -DAY, Level.FAIL, "a.pem expired at "),
        (DAY, 9 * DAY, Level.FAIL, "a.pem is valid from "),
        (-DAY, 9 * DAY, Level.WARN, "a.pem expires at "),
    ],
)
def test_an_end_is_told(tmp_path: Path, begins: dt.timedelta, ends: dt.timedelta, level: Level, words: str) -> None:
    make(tmp_path, begins=begins, ends=ends)
    (found,) = said(tmp_path)
    assert (found.level, words in found.what) == (level, True)


def test_the_key_of_another_certificate_and_files_that_are_none_are_told(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, "b")
    (found,) = said(tmp_path, key="b")
    assert (found.level, "the key is that of another certificate" in found.what) == (Level.FAIL, True)
    (tmp_path / "a.pem").write_text("nothing")
    assert "is not a certificate" in said(tmp_path)[0].what
    (tmp_path / "a.pem").unlink()
    assert "cannot be read: no such file" in said(tmp_path)[0].what


def test_an_address_that_the_certificate_is_not_for_is_told(tmp_path: Path) -> None:
    make(tmp_path)
    (found,) = said(tmp_path, listen="10.9.9.9:7070")
    assert (found.level, "not valid for 10.9.9.9" in found.what) == (Level.WARN, True)
    assert said(tmp_path, listen="0.0.0.0:7070")[0].level is Level.OK


def test_the_client_certificate_of_a_store_is_looked_at_too(tmp_path: Path) -> None:
    make(tmp_path)
    make(tmp_path, "c", ends=-DAY / 2)
    query = f"ca={tmp_path / 'a.pem'}&cert={tmp_path / 'c.pem'}&key={tmp_path / 'c.key'}"
    found = said(tmp_path, store=f"etcds://127.0.0.1:1?{query}")
    assert [each.level for each in found] == [Level.OK, Level.OK, Level.FAIL]
