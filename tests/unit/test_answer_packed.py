"""Long lists in brief: compressed for those who take that, and the same otherwise."""

from __future__ import annotations

import gzip
from types import SimpleNamespace
from typing import Any

import pytest

from hostler.entry.server.machines import packed_page
from hostler.entry.server.response import body_of
from hostler.model.vm_api import VmRowPage

PAGE = VmRowPage(items=(), after=None, revision=7)


@pytest.mark.parametrize(
    ("accepted", "taken"),
    [
        (b"gzip", True),
        (b"br;q=1, GZIP;q=0.5", True),
        (b"*", True),
        (b"gzip;q=0", False),
        (b"gzip;q=0.0, identity", False),
        (b"*;q=0", False),
        (b"x-gzip-not", False),
        (b"", False),
    ],
)
def test_a_list_is_compressed_only_for_who_takes_that(accepted: bytes, taken: bool) -> None:
    asked: Any = SimpleNamespace(raw=SimpleNamespace(headers={b"accept-encoding": accepted}))
    answer = packed_page(asked, PAGE)
    headers = dict(answer.headers)
    assert headers[b"vary"] == b"accept-encoding"
    if taken:
        assert headers[b"content-encoding"] == b"gzip"
        assert headers[b"etag"] == b'"7"'
        assert gzip.decompress(answer.text or b"") == body_of(PAGE)
    else:
        assert answer.value is PAGE
        assert b"content-encoding" not in headers
