"""SSH login to a machine over a channel, with a key of our own and a pinned host key; the keys of this host.

The host key is created with the machine and stored in its record. A server with another host key is refused before
anything is sent. Nothing here prompts the user.

Keys are created on first use. That of the command line is installed in every machine that it creates, that of the
terminal in every lab machine. Every server that serves terminals needs the same key, because a machine gets the key of
the leader that created it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import stat
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from hostler.errors import Forbidden, HostlerError, Invalid, Refused, Unavailable
from hostler.kit.host import have_a_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from hostler.model.vm_api import VmView
    from hostler.ports.machines import Channel


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
    return load_key(path)


def public_text(key: asyncssh.SSHKey) -> str:
    """Return the public part as one line."""
    return str(key.export_public_key().decode().strip())


def load_key(path: Path) -> asyncssh.SSHKey:
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
    key = load_key(path)
    return key, public_text(key)


WITHIN = 60.0
"""Seconds for key exchange and login; an emulated guest is slow at both."""
CHUNK = 64 * 1024


@asynccontextmanager
async def logged_in(
    channel: Channel,
    view: VmView,
    *,
    user: str | None = None,
    identities: Sequence[Path] = (),
    also: Sequence[Path] = (),
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    """Log in to the machine over the channel; this enters and leaves the channel.

    Uses the keys in `identities`. Without them: those in `also`, our own key, those of ssh-agent and those of `~/.ssh`
    that need no passphrase. Refused: the host key is not the machine's. Forbidden: the machine accepts none of the
    keys.
    """
    access = view.access
    if access is None and view.available:
        raise Refused(
            f"vm {view.name}: it runs but has no SSH access, like all simulated machines; use its console:"
            " hostler vm console"
        )
    if access is None:
        raise Unavailable(f"vm {view.name}: no SSH access known yet; see its state: hostler vm show")
    pinned = [asyncssh.import_public_key(text) for text in access.host_keys]
    if not pinned:
        raise Refused(f"vm {view.name}: its host key is not known, so the server cannot be verified; use its console")
    keys = [load_key(path) for path in identities] or [*map(load_key, also), own_key(), *usual_keys(Path.home())]
    name = user or access.user
    have_a_name()
    async with channel, open_bridge(channel) as bridge:
        try:
            async with asyncio.timeout(WITHIN):
                connection = await asyncssh.connect(
                    view.id,
                    sock=bridge.theirs,
                    config=None,
                    known_hosts=(pinned, [], []),
                    username=name,
                    client_keys=keys,
                    agent_path=None if identities else (),
                    preferred_auth="publickey",
                    gss_host=None,
                    keepalive_interval=0,
                )
        except asyncssh.HostKeyNotVerifiable:
            raise Refused(
                f"vm {view.name}: the SSH server has another host key than the machine, so it is not the"
                " machine; nothing was sent to it. Tell the operator of the node"
            ) from None
        except asyncssh.PermissionDenied:
            tried = ", ".join(str(path) for path in identities) or f"{key_file()}, ssh-agent, ~/.ssh"
            raise Forbidden(
                f"vm {view.name}: login of {name} was refused with all keys of {tried}; name the right one with -i, or"
                " create"
                " the machine with --ssh-key"
            ) from None
        except (asyncssh.Error, OSError, TimeoutError) as error:
            raise bridge.error or Unavailable(
                f"vm {view.name}: its SSH server does not respond properly ({why(error)}); see its console"
            ) from None
        try:
            yield connection
        except (asyncssh.Error, OSError) as error:
            if isinstance(error, asyncssh.Error) or bridge.error is not None:
                raise bridge.error or Unavailable(
                    f"vm {view.name}: the connection was lost ({why(error)}); log in again"
                ) from None
            raise
        finally:
            connection.abort()
            await connection.wait_closed()


class Bridge:
    """A socket pair that connects an SSH client, which needs a socket, with a channel."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.error: HostlerError | None = None
        """The error that ended the channel."""

    async def inwards(self, channel: Channel) -> None:
        """Copy from the channel to the socket."""
        loop = asyncio.get_running_loop()
        try:
            while data := await channel.read():
                await loop.sock_sendall(self.ours, data)
        except HostlerError as error:
            self.error = error
        except OSError:
            return
        with suppress(OSError):
            self.ours.shutdown(socket.SHUT_WR)

    async def outwards(self, channel: Channel) -> None:
        """Copy from the socket to the channel."""
        loop = asyncio.get_running_loop()
        with suppress(OSError, HostlerError):  # the reading side reports the error
            while data := await loop.sock_recv(self.ours, CHUNK):
                await channel.write(data)


@asynccontextmanager
async def open_bridge(channel: Channel) -> AsyncIterator[Bridge]:
    bridge = Bridge()
    for end in (bridge.ours, bridge.theirs):
        end.setblocking(False)
    tasks = [
        asyncio.create_task(bridge.inwards(channel), name="ssh: inwards"),
        asyncio.create_task(bridge.outwards(channel), name="ssh: outwards"),
    ]
    try:
        yield bridge
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        bridge.ours.close()
        bridge.theirs.close()


def why(error: BaseException) -> str:
    return str(error) or {"TimeoutError": "out of time"}.get(type(error).__name__, type(error).__name__)
