"""URLs of the lab door: what is understood, and what is refused with a line that helps and shows no password."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from hostler.drivers.inbox.redis import RedisInbox, RedisLabRecords
from hostler.entry.cli.options import redacted
from hostler.errors import Closed, Invalid
from hostler.keys.lab import LabNames
from hostler.wiring import open_board, open_inbox

OPENERS = pytest.mark.parametrize("opener", [open_inbox, open_board])


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://user:p%40ss@localhost:6380/3?timeout=2",
        "redis://[::1]:6379/0",
        "rediss://localhost:6379/0?ca=/ca.pem&cert=/c.pem&key=/k.pem",
    ],
)
def test_a_url_gives_its_queues_and_records(url: str) -> None:
    assert isinstance(open_inbox(url), RedisInbox)
    assert isinstance(open_board(url, names=LabNames(prefix="Test:Abcd:")), RedisLabRecords)


@OPENERS
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://", "Redis URL of the labs with scheme 'memory': unknown; known are redis://, rediss://"),
        ("localhost:6379", "unknown; known are redis://"),
        ("redis://", "Redis URL of the labs redis://…: needs host:port after ://"),
        ("redis://u:s3cret@host:99999999", "needs host:port"),
        ("redis://:s3cret@host/db", "needs a database number"),
        ("redis://:s3cret@host?nonsense=1", "an unknown option; known: password"),
        ("redis://:s3cret@host?timeout=0", "the option 'timeout' must be a number"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_a_reason(opener: Callable[[str], object], url: str, says: str) -> None:
    with pytest.raises(Invalid) as caught:
        opener(url)
    assert says in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "\n" not in str(caught.value)


@OPENERS
@pytest.mark.parametrize(
    "url",
    [
        "redis://:S3cr/etPart@127.0.0.1:6379/0",
        "redis://:S3cr?etPart@127.0.0.1:6379/0",
        "redis://:S3cr#etPart@h:1/0",
        "redis://:S3cr[etPart@h:1/0",
        "redis://:S3cr\uff0fetPart@h:1/0",
        "redis://me:12?etPart=@h:1/0",
        "redis://me:12/etPart@h:1/0",
        "redis://h/0?Password=S3cretPart",
        "redis://h/0?password=S3cr&etPart=1",
        "redis://h/0?password=S3cr&etPart&etPart",
        "redis://h/0?auth=S3cr&etPart=1",
        "redis://h/0?S3cretPart",
        "redis://me:S3cretPart:6379/0",
    ],
)
def test_no_piece_of_a_password_is_shown_wherever_it_tears_the_url(opener: Callable[[str], object], url: str) -> None:
    with pytest.raises(Invalid) as caught:
        opener(url)
    for text in (str(caught.value), redacted(url)):
        assert "S3cr" not in text
        assert "etPart" not in text


@OPENERS
def test_a_client_that_is_not_installed_is_named_with_the_command_that_installs_it(
    opener: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == "redis":
            monkeypatch.setitem(sys.modules, name, None)
        elif name.startswith(("hostler.drivers.inbox.redis", "hostler.drivers.redis_client")):
            monkeypatch.delitem(sys.modules, name)
    with pytest.raises(Invalid, match=r"redis: its client is not installed; run: pip install 'hostler\[redis\]'"):
        opener("redis://host")


async def test_what_is_not_open_says_how_to_open_it() -> None:
    with pytest.raises(Closed, match=r"use it inside `async with hostler.wiring.open_inbox\(url\) as …`"):
        await open_inbox("redis://host").workers()
    with pytest.raises(Closed, match=r"use it inside `async with hostler.wiring.open_board\(url\) as …`"):
        await open_board("redis://host").publish(())
