"""The key with which the terminal logs into labs: made when it is first needed, and put into every lab's machine.

Every server that serves terminals needs the same one: machines take the key that the leader had when it made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.ssh_key import loaded, public_text, put_first
from hostler.errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

    import asyncssh

COMMENT = "hostler-terminal"


def terminal_key(path: Path) -> tuple[asyncssh.SSHKey, str]:
    """The private key, and the line for a machine's `authorized_keys`.

    Of all who come first at once, each gets the same. Invalid: it can be neither read nor made. Refused: others can
    read it.
    """
    if not path.exists():
        _make(path)
    key = loaded(path)
    return key, public_text(key)


def _make(path: Path) -> None:
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment=COMMENT)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        put_first(path, key.export_private_key())
    except OSError as error:
        raise Invalid(
            f"lab_key {path}: cannot be written: {error.strerror}; the key of the labs' terminal is kept there: see to"
            " it that it can be, or set lab_key to another path"
        ) from None
