"""Passwords that stand in a file."""

from __future__ import annotations

from pathlib import Path

from hostler.errors import Invalid


def read_password(path: str, subject: str) -> str:
    """What is in the file, without the end of its line. Invalid: it cannot be read; says nothing of what is in it."""
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise Invalid(f"{subject}: password_file {path!r} cannot be read ({reason}); name a file of UTF-8 text")
