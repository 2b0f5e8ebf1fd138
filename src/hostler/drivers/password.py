"""Passwords that stand in a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hostler.errors import Invalid

MAX_PASSWORD = 1024
"""Bytes of a password that only its owner may read."""


def read_password(path: str, subject: str) -> str:
    """What is in the file, without the end of its line. Invalid: it cannot be read; says nothing of what is in it."""
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise Invalid(f"{subject}: password_file {path!r} cannot be read ({reason}); name a file of UTF-8 text")


def read_private_password(path: str, subject: str) -> str:
    """The one line of a file that only its owner and its group may read. Invalid: it is not such a file."""
    try:
        # A pipe without a writer would block here.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_PASSWORD + 1) if stat.S_ISREG(mode) else b""
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise Invalid(f"{subject}: password_file {path!r} cannot be read ({reason}); name a file of one line") from None
    if not stat.S_ISREG(mode):
        raise Invalid(f"{subject}: password_file {path!r} is no file; name a file of one line")
    if mode & stat.S_IRWXO:
        raise Invalid(f"{subject}: password_file {path!r}: other users may use it; chmod 600 {path}")
    try:
        password = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        password = ""
    if not password or len(data) > MAX_PASSWORD or not password.isprintable():
        raise Invalid(f"{subject}: password_file {path!r} must hold one line of UTF-8 text; write the password into it")
    return password
