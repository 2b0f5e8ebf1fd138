"""Objects that the verbs share: the API client, the poller, the local state and the options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.machines.hetzner.api import Api
from hostler.drivers.machines.hetzner.labels import Card, card_of
from hostler.drivers.machines.hetzner.local_state import LocalState
from hostler.drivers.machines.hetzner.poller import Goings, Poller
from hostler.errors import Damaged, Uncertain

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.machines.hetzner.api_types import Server
    from hostler.drivers.machines.hetzner.options import HetznerOptions
    from hostler.kit.clock import Clock


class HetznerContext:
    """Shared objects of one driver."""

    def __init__(self, folder: str | Path, options: HetznerOptions, *, clock: Clock) -> None:
        self.options, self.clock = options, clock
        self.kept = LocalState(folder)
        self.api = Api(options, clock=clock)
        self.looks = Poller(self.api)
        self.goings = Goings(self.api, self.looks, options.pace, clock=clock)

    def open(self) -> None:
        self.kept.open()
        self.api.open()

    async def aclose(self) -> None:
        await self.goings.aclose()
        await self.looks.aclose()
        await self.api.aclose()
        self.kept.close()

    def card(self, server: Server) -> Card | None:
        """Return the record in a server's labels. None: not Hostler's. Damaged: another client changed the labels."""
        try:
            return card_of(server.labels)
        except Damaged as error:
            raise Damaged(
                f"server {server.name} (hcloud-{server.id}): {error}; correct its labels, or delete it in Hetzner's"
                " console"
            ) from None

    async def relabel(self, server: Server, card: Card) -> Server:
        return await self.api.relabel(server, card.labels())

    async def destroy(self, server: Server) -> None:
        """Delete a server and wait until it is gone. Uncertain: it is not gone yet."""
        action = await self.api.delete(server)
        if action is None:
            return
        ended = await self.goings.ended(action, f"server {server.name}")
        if ended.failed:
            raise Uncertain(f"server {server.name}: not deleted: {ended.message}; inspect it and try again")
        try:
            await self.goings.became(
                server.name, lambda seen: seen is None or seen.id != server.id, within=self.options.pace.patience
            )
        except TimeoutError:
            raise Uncertain(f"server {server.name}: deleted, but still listed; inspect it") from None
