"""SSH keys that are created on first use: that of the command line, and that of the lab terminal.

The key of the command line is installed in every machine that it creates, the key of the terminal in every lab machine.
Every server that serves terminals needs the same key, because a machine gets the key of the leader that created it.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.errors import Invalid, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    import asyncssh


USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")


def key_file(environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the key; its public part is next to it."""
    environ = os.environ if environ is None else environ
    state = environ.get("XDG_STATE_HOME", "")
    folder = Path(state) if state.startswith("/") else Path(environ.get("HOME") or "~").expanduser() / ".local/state"
    return folder / "hostler" / "ssh" / "id_ed25519"


def own_public(path: Path | None = None) -> str:
    """Return the key's line for `authorized_keys`. Invalid: the key can be neither read nor created."""
    path = path or key_file()
    with suppress(OSError, UnicodeDecodeError):
        text = path.with_suffix(".pub").read_text(encoding="ascii").strip()
        if text and path.exists():
            return text
    text = public_text(own_key(path))
    with suppress(OSError):  # only a cache for the next call
        put_first(path.with_suffix(".pub"), f"{text}\n".encode())
    return text


def own_key(path: Path | None = None) -> asyncssh.SSHKey:
    """Return the key. Callers that create it at the same time all get the same key."""
    path = path or key_file()
    if not path.exists():
        make(
            path,
            f"hostler@{socket.gethostname()}",
            str(path),
            "the SSH key is kept there; make the path writable, or set XDG_STATE_HOME",
        )
    return loaded(path)


def public_text(key: asyncssh.SSHKey) -> str:
    """Return the public part as one line."""
    return str(key.export_public_key().decode().strip())


def loaded(path: Path) -> asyncssh.SSHKey:
    """Load a private key. Invalid: the file is not a usable key. Refused: other users can read it."""
    import asyncssh

    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise Refused(f"key {path}: other users can read it; chmod 600 {path}, and replace the key if it was read")
        return asyncssh.read_private_key(path)
    except OSError as error:
        raise Invalid(f"key {path}: cannot be read: {error.strerror}; name another") from None
    except (asyncssh.KeyEncryptionError, asyncssh.KeyImportError) as error:
        if "passphrase" in str(error).lower():
            raise Invalid(
                f"key {path}: it has a passphrase, and this command does not prompt; add it to ssh-agent"
            ) from None
        raise Invalid(f"key {path}: not a private key ({error}); name another") from None


def usual_keys(home: Path) -> list[asyncssh.SSHKey]:
    """Return the keys of `~/.ssh` that need no passphrase."""
    import asyncssh

    found = []
    for name in USUAL:
        with suppress(OSError, asyncssh.KeyImportError, asyncssh.KeyEncryptionError):
            found.append(asyncssh.read_private_key(home / ".ssh" / name))
    return found


def make(path: Path, comment: str, subject: str, advice: str) -> None:
    """Create a private key, unless another process creates it first. Invalid: it cannot be written."""
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519", comment=comment)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        put_first(path, key.export_private_key())
    except OSError as error:
        raise Invalid(f"{subject}: cannot be written: {error.strerror}; {advice}") from None


def put_first(path: Path, data: bytes) -> None:
    """Write a file atomically, and never over one that another process has just written."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()


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
