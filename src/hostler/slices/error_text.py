"""What is told of a slice's own errors and values: few words, whatever they do when they are asked for them.

And nothing that cannot be written: a text of Python may have half a surrogate in it, as the name of a file that is no
UTF-8, and no text on the wire may.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import logging

MAX_TOLD = 2000
"""Characters of an exception's message, or of a value, that are handed on."""
_encode = msgspec.msgpack.Encoder().encode


def message_of(error: BaseException) -> str:
    """Its message; empty: it has none, or cannot say it."""
    try:
        return str(error)[:MAX_TOLD]
    except BaseException:  # noqa: BLE001 - its own __str__ may raise whatever it likes
        return ""


def named(error: BaseException) -> str:
    """Its class, and its message where it has one."""
    said = message_of(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def log_raised(log: logging.Logger, what: str, error: BaseException) -> None:
    """With where it was raised; without, where its own words keep whoever writes logs from doing so."""
    try:
        log.error("%s raised", what, exc_info=error)
    except BaseException:  # noqa: BLE001 - its own __str__ may raise whatever it likes, and not all logs expect that
        log.error("%s raised %s", what, named(error))


def packed(message: msgspec.Struct) -> bytes:
    """As it goes out of the slice's process. Of what cannot be written, its number is told."""
    try:
        return _encode(message)
    except UnicodeEncodeError:
        told = {name: getattr(message, name) for name in message.__struct_fields__}
        clean = {
            name: text.encode("utf-8", "backslashreplace").decode()
            for name, text in told.items()
            if isinstance(text, str) and not isinstance(text, enum.Enum)
        }
        return _encode(msgspec.structs.replace(message, **clean))
