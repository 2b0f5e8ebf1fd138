"""Proxies: believed are those that were named, and of what they say what can be understood."""

from __future__ import annotations

from typing import Any

import pytest

from hostler.entry.server.authentication import HOPS, Proxies
from hostler.settings import load

TRUSTED = ("127.0.0.1/32", "10.0.0.0/8", "fd00::/8")


def heard(
    *headers: tuple[str, str], peer: str = "127.0.0.1", trusted: tuple[str, ...] = TRUSTED, kind: str = "http"
) -> tuple[str, str]:
    """Address and scheme, after what the headers say."""
    scope: dict[str, Any] = {
        "type": kind,
        "client": (peer, 5),
        "scheme": "http" if kind == "http" else "ws",
        "headers": [(f"x-forwarded-{name}".encode(), text.encode("latin-1")) for name, text in headers],
    }
    Proxies(trusted).believe(scope)
    return scope["client"][0], scope["scheme"]


def test_a_trusted_proxy_says_who_asks_and_how() -> None:
    assert heard(("for", "192.0.2.7"), ("proto", "https")) == ("192.0.2.7", "https")
    assert heard(("for", "2001:db8::1"), ("proto", "HTTPS"), peer="10.9.9.9") == ("2001:db8::1", "https")
    assert heard(("for", "192.0.2.7"), ("proto", "http"), peer="::ffff:127.0.0.1") == ("192.0.2.7", "http")
    assert heard(("proto", "https"), kind="websocket") == ("127.0.0.1", "wss")
    assert heard() == ("127.0.0.1", "http")


@pytest.mark.parametrize("peer", ["192.0.2.1", "127.0.0.2", "::1", "testclient", ""])
def test_nobody_else_is_believed(peer: str) -> None:
    assert heard(("for", "10.0.0.1"), ("proto", "https"), peer=peer) == (peer, "http")


def test_without_any_that_is_trusted_nothing_is_believed() -> None:
    assert heard(("for", "192.0.2.7"), ("proto", "https"), trusted=()) == ("127.0.0.1", "http")
    scope = {"type": "http", "client": None, "headers": [(b"x-forwarded-for", b"192.0.2.7")]}
    Proxies(TRUSTED).believe(scope)
    assert scope["client"] is None


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        (("6.6.6.6, 192.0.2.7",), "192.0.2.7"),
        (("6.6.6.6", "192.0.2.7"), "192.0.2.7"),
        (("6.6.6.6, 192.0.2.7, 10.0.0.3", "127.0.0.1"), "192.0.2.7"),
        (("10.0.0.4, 10.0.0.3",), "10.0.0.4"),
        (("192.0.2.7,,  ,",), "192.0.2.7"),
        (("::ffff:192.0.2.7",), "192.0.2.7"),
        ((", ".join(["10.0.0.1"] * 9000),), "10.0.0.1"),
        ((", ".join(["192.0.2.7", *["10.0.0.1"] * HOPS]),), "10.0.0.1"),
    ],
)
def test_of_several_addresses_the_last_counts_that_is_no_proxy(lines: tuple[str, ...], address: str) -> None:
    assert heard(*(("for", line) for line in lines))[0] == address


@pytest.mark.parametrize(
    "garbage",
    ["unknown", "<script>", "192.0.2.7:80", "fe80::1%<b>", "1" * 5000, "\xff\x00", "192.0.2", "\xb2.0.0.1"],
)
def test_what_is_no_address_counts_for_nothing_nor_does_what_stands_before_it(garbage: str) -> None:
    assert heard(("for", garbage))[0] == "127.0.0.1"
    assert heard(("for", f"6.6.6.6, {garbage}"))[0] == "127.0.0.1"
    assert heard(("for", f"6.6.6.6, {garbage}, 10.0.0.3"))[0] == "10.0.0.3"


@pytest.mark.parametrize(
    ("said", "scheme"),
    [
        *((said, "http") for said in ("ftp", "https://x", "", "https, http", "https, x")),
        ("http, https", "https"),
    ],
)
def test_of_several_schemes_the_last_counts_and_others_are_none(said: str, scheme: str) -> None:
    assert heard(("proto", said))[1] == scheme


@pytest.mark.parametrize("said", ["0.0.0.0/0", "::/0", "here", "10.0.0.1/8", "10.0.0.1,,10.0.0.2", "", "unix:"])
def test_what_is_no_network_or_all_of_them_is_no_setting(said: str) -> None:
    with pytest.raises(Exception, match="HOSTLER_TRUSTED_PROXIES = .*: must"):
        load({}, {"HOME": "/h", "HOSTLER_TRUSTED_PROXIES": said}, toml="")
