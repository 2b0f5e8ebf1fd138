"""Connections from blade to blade, independent of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.ports.machines import Channel, Door
    from hostler.sim.world.blade import BladeHost
    from hostler.sim.world.host import Life

T = TypeVar("T")


class WorldPeers:
    """The connections of one blade."""

    def __init__(self, here: BladeHost) -> None:
        self._here = here

    def channel(self, node: str, vm: str, door: Door) -> PeerChannel:
        return PeerChannel(self._here, node, vm, door)


class PeerChannel:
    """A connection to a port of a machine on another blade; its operations run in that blade's process."""

    def __init__(self, here: BladeHost, node: str, vm: str, door: Door) -> None:
        self._here, self._node, self._vm, self._door = here, node, vm, door
        self._life: Life | None = None
        self._inner: Channel | None = None

    async def __aenter__(self) -> Self:
        there = self._here.world.blades.get(self._node)
        if there is None or not there.alive or there.machines is None or not self._connected(there):
            raise Unavailable(f"{self._node}: not reachable")
        self._life, self._inner = there.life, there.machines.channel(self._vm, self._door)
        await self._there(self._inner.__aenter__)
        return self

    async def __aexit__(self, *_: object) -> None:
        inner = self._inner
        if inner is not None and self._life is not None and not self._life.dead:
            await self._there(lambda: inner.__aexit__(None, None, None), always=True)

    async def read(self) -> bytes:
        return b"" if self._inner is None else await self._there(self._inner.read)

    async def write(self, data: bytes) -> None:
        inner = self._inner
        if inner is not None:
            await self._there(lambda: inner.write(data))

    def _connected(self, there: BladeHost) -> bool:
        return self._here.world.reach(self._here, there)

    async def _there(self, work: Callable[[], Awaitable[T]], *, always: bool = False) -> T:
        """Run something in the other process. Unavailable: it died, or the network is cut.

        `always`: run even if the network is cut, because the other end notices by itself.
        """
        life = self._life
        there = self._here.world.blades.get(self._node)
        if life is None or life.dead or there is None or not (always or self._connected(there)):
            raise Unavailable(f"{self._node}: the connection was lost")
        return await life.call(work)
