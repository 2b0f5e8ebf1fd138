"""The key with which the terminal logs into labs: made when it is first needed, and put into every lab's machine.

Every server that serves terminals needs the same one: machines take the key that the leader had when it made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.ssh_key import loaded, make, public_text

if TYPE_CHECKING:
    from pathlib import Path

    import asyncssh

COMMENT = "hostler-terminal"
ADVICE = "the key of the labs' terminal is kept there: see to it that it can be, or set lab_key to another path"


def terminal_key(path: Path) -> tuple[asyncssh.SSHKey, str]:
    """The private key, and the line for a machine's `authorized_keys`.

    Of all who come first at once, each gets the same. Invalid: it can be neither read nor made. Refused: others can
    read it.
    """
    if not path.exists():
        make(path, COMMENT, f"lab_key {path}", ADVICE)
    key = loaded(path)
    return key, public_text(key)
