"""Short texts for errors and values of a slice, even if these raise when they are formatted.

The texts can always be encoded: a Python string may contain a lone surrogate, for example from a file name that is not
UTF-8, and text on the wire may not.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import logging

MAX_TOLD = 2000
"""The largest part of an exception's message, or of a value, that is passed on, in characters."""
_encode = msgspec.msgpack.Encoder().encode


def message_of(error: BaseException) -> str:
    """Return the message of an error; empty: it has none, or formatting it fails."""
    try:
        return str(error)[:MAX_TOLD]
    except BaseException:  # noqa: BLE001 - its own __str__ may raise anything
        return ""


def describe_error(error: BaseException) -> str:
    """Return the class of an error, and its message if it has one."""
    said = message_of(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def log_raised(log: logging.Logger, what: str, error: BaseException) -> None:
    """Log the error with its traceback; without it, if the error cannot be formatted."""
    try:
        log.error("%s raised", what, exc_info=error)
    except BaseException:  # noqa: BLE001 - its own __str__ may raise anything, and not all log handlers expect that
        log.error("%s raised %s", what, describe_error(error))


def encode_message(message: msgspec.Struct) -> bytes:
    """Encode a message of the slice's process. Characters that cannot be encoded become escape sequences."""
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
