"""SSH login to a machine over a channel, with a key of our own and a pinned host key.

The host key is created with the machine and stored in its record. A server with another host key is refused before
anything is sent. Nothing here prompts the user.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from hostler.entry.ssh_key import key_file, loaded, own_key, usual_keys
from hostler.errors import Forbidden, HostlerError, Refused, Unavailable
from hostler.kit.host import have_a_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from hostler.model.vm_api import VmView
    from hostler.ports.machines import Channel

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
    keys = [loaded(path) for path in identities] or [*map(loaded, also), own_key(), *usual_keys(Path.home())]
    name = user or access.user
    have_a_name()
    async with channel, bridged(channel) as bridge:
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
async def bridged(channel: Channel) -> AsyncIterator[Bridge]:
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
