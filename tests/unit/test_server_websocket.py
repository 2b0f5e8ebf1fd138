"""WebSocket frames."""

from __future__ import annotations

import random

import pytest

from hostler.entry.server.websocket import (
    BINARY,
    CLOSE,
    MAX_MESSAGE,
    PING,
    PROTOCOL_ERROR,
    TEXT,
    TOO_BIG,
    Broken,
    Frames,
    accepted,
    framed,
    unmasked,
)

MASK = b"\x01\x02\x03\x04"


def _sent(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """A frame as a caller sends it: masked."""
    plain = framed(opcode, payload)
    head = plain[: len(plain) - len(payload)]
    first = head[0] if final else head[0] & 0x7F
    return bytes((first, head[1] | 0x80)) + head[2:] + MASK + unmasked(payload, MASK)


def test_the_handshake_is_proved_as_the_standard_says() -> None:
    assert accepted(b"dGhlIHNhbXBsZSBub25jZQ==") == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, MAX_MESSAGE])
def test_messages_of_every_length_are_read(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    assert Frames().feed(_sent(BINARY, payload)) == [(BINARY, payload)]


def test_messages_are_the_same_however_they_are_cut() -> None:
    data = _sent(TEXT, b"one") + _sent(PING, b"p") + _sent(BINARY, b"x" * 300)
    for step in (1, 2, 3, 7, 100):
        frames, found = Frames(), []
        for start in range(0, len(data), step):
            found += frames.feed(data[start : start + step])
        assert found == [(TEXT, b"one"), (PING, b"p"), (BINARY, b"x" * 300)]


def test_fragments_are_joined_and_a_ping_may_stand_between() -> None:
    data = _sent(BINARY, b"a", final=False) + _sent(PING, b"") + _sent(0, b"b", final=False) + _sent(0, b"c")
    assert Frames().feed(data) == [(PING, b""), (BINARY, b"abc")]


@pytest.mark.parametrize(
    "data",
    [
        framed(BINARY, b"unmasked"),
        b"\xc2" + _sent(BINARY, b"x")[1:],  # a reserved bit
        _sent(0, b"goes on from nothing"),
        _sent(BINARY, b"a", final=False) + _sent(BINARY, b"begins anew"),
        _sent(PING, b"", final=False),
        _sent(3, b"unknown"),
        bytes((0x80 | CLOSE, 0xFE, 1, 0)) + MASK,  # a control frame that is too long
    ],
)
def test_what_is_no_websocket_is_broken_off(data: bytes) -> None:
    with pytest.raises(Broken) as broken:
        Frames().feed(data)
    assert broken.value.code == PROTOCOL_ERROR


def test_a_message_that_is_too_big_is_refused_before_it_has_come() -> None:
    head = bytes((0x80 | BINARY, 0xFF)) + (MAX_MESSAGE + 1).to_bytes(8, "big")
    with pytest.raises(Broken) as broken:
        Frames().feed(head)
    assert broken.value.code == TOO_BIG


def test_fragments_count_together() -> None:
    frames = Frames()
    frames.feed(_sent(BINARY, b"x" * MAX_MESSAGE, final=False))
    with pytest.raises(Broken) as broken:
        frames.feed(_sent(0, b"y"))
    assert broken.value.code == TOO_BIG
