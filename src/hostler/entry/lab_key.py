"""The SSH key of the lab terminal: created on first use, and installed in every lab machine.

Every server that serves terminals needs the same key, because a machine gets the key of the leader that created it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.ssh_key import loaded, make, public_text

if TYPE_CHECKING:
    from pathlib import Path

    import asyncssh

COMMENT = "hostler-terminal"
ADVICE = "the key of the lab terminal is kept there; make the path writable, or set lab_key to another path"


def terminal_key(path: Path) -> tuple[asyncssh.SSHKey, str]:
    """Return the private key and its line for `authorized_keys`.

    Callers that create the key at the same time all get the same key. Invalid: it can be neither read nor created.
    Refused: other users can read it.
    """
    if not path.exists():
        make(path, COMMENT, f"lab_key {path}", ADVICE)
    key = loaded(path)
    return key, public_text(key)
