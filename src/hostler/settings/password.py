"""Passwords in files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hostler.errors import Invalid

MAX_PASSWORD = 1024
"""Maximum size in bytes of a password that only its owner may read."""


def read_password(path: str, subject: str) -> str:
    """Return the content without the line end. Invalid: it cannot be read; the error does not reveal the content."""
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise Invalid(f"{subject}: password_file {path!r} cannot be read ({reason}); name a file of UTF-8 text")


def read_private_password(path: str, subject: str) -> str:
    """Return the only line of a file that no other user may read. Invalid: it is not such a file."""
    try:
        # A FIFO without a writer would block here.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_PASSWORD + 1) if stat.S_ISREG(mode) else b""
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise Invalid(f"{subject}: password_file {path!r} cannot be read ({reason}); name a file of one line") from None
    if not stat.S_ISREG(mode):
        raise Invalid(f"{subject}: password_file {path!r} is not a regular file; name a file of one line")
    if mode & stat.S_IRWXO:
        raise Invalid(f"{subject}: password_file {path!r}: accessible to other users; run chmod 600 {path}")
    try:
        password = data.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        password = ""
    if not password or len(data) > MAX_PASSWORD or not password.isprintable():
        raise Invalid(f"{subject}: password_file {path!r} must contain one line of UTF-8 text: the password")
    return password
