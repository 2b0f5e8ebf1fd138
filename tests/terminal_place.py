"""A server with labs, all of which lead to one guest, for tests of the terminal."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from api_server import Api, serving
from doubles import DoorMachines
from terminal_guest import ShellGuest

from hostler.entry.server.services import ServerConfig
from hostler.entry.ssh import terminal_key
from hostler.keys.families import HANDLE
from hostler.keys.lab import LAB
from hostler.model.lab import Lab, LabCatalogue, LabEvent, LabNews, LabPhase, LabUser
from hostler.model.vm import Access, MachineState, Readiness, Step, VmHandle
from hostler.ports.machines import ChannelKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.entry.terminal.session import Terminal


class Place:
    """A server with the labs of a few users, all of which lead to one guest."""

    def __init__(self, api: Api, guest: ShellGuest, doubles: DoorMachines) -> None:
        self.api, self.guest, self.doubles = api, guest, doubles

    async def lab(self, user: str = "ann", **fields: Any) -> None:
        """The user's lab is this now; an available one of generation 1, unless said otherwise."""
        said: dict[str, Any] = {
            "lab_id": 5,
            "generation": 1,
            "phase": LabPhase.RUNNING,
            "requested_at": 0.0,
            "life": 60.0,
            "vm": f"vm-{user}",
            "user": "student",
            "available": True,
            **fields,
        }
        lab = Lab(**said)
        if lab.vm:
            if lab.available:  # else the terminal could log in before it hears that the lab is not available
                self.doubles.ports[lab.vm, ChannelKind.SSH] = self.guest.port
            await self.machine(user, lab.vm)
        await self.user(LabUser(user=user, generation=lab.generation, lab=lab, changed_at=0.0))

    async def user(self, record: LabUser) -> None:
        await self.api.store.txn([], [LAB.put(record, user=record.user)])

    async def machine(
        self,
        user: str = "ann",
        vm: str = "vm-ann",
        *,
        keys: tuple[str, ...] | None = None,
        node: str = "n1",
        step: Step = Step.AVAILABLE,
    ) -> None:
        host_keys = (self.guest.public_key,) if keys is None else keys
        access = Access(host="127.0.0.1", port=22, user="user", host_keys=host_keys)
        ready = Readiness(step=step, since=0.0)
        handle = VmHandle(id=vm, node=node, state=MachineState.RUNNING, access=access, readiness=ready, seen_at=0.0)
        await self.api.store.txn([], [HANDLE.put(handle, org="labs", project=user, vm=vm)])
        await self.api.services.view.refresh(self.api.services.view.handles)

    async def gone(self, user: str = "ann", event: LabEvent = LabEvent.STOPPED, reason: str = "") -> None:
        news = LabNews(number=1, at=0.0, event=event, lab_id=5, reason=reason)
        await self.user(LabUser(user=user, generation=1, news=(news,), changed_at=0.0))

    def terminal(self, user: str = "ann") -> Terminal:
        return self.api.app.terminals._terminals[user]

    async def empty(self) -> None:
        """The server has no terminal any more."""
        await until(lambda: not len(self.api.app.terminals))


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def placed(tmp_path: Path, *, catalogue: LabCatalogue | None = None, **plan: Any) -> AsyncIterator[Place]:
    doubles = DoorMachines({})
    key = tmp_path / "data" / "lab_ed25519"
    async with (
        ShellGuest() as guest,
        serving(
            plan=ServerConfig(lab_key=key, **plan),
            machines_of=lambda node: doubles if node == "n1" else None,
            sockets=True,
            **({} if catalogue is None else {"catalogue": catalogue}),
        ) as api,
    ):
        guest.allowed.append(terminal_key(key)[0].convert_to_public())
        yield Place(api, guest, doubles)
