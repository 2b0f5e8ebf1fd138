"""`client.sim`: a simulation, where the server is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.sim_api import (
    FaultKindPage,
    FaultView,
    HardwareCommandView,
    ModeSet,
    ProposalPage,
    ProposalView,
    RepairMode,
    SimLogPage,
    SimState,
    SimView,
    StepGrant,
    StepView,
)

if TYPE_CHECKING:
    from hostler.client.transport import Wire
    from hostler.model.sim_api import FaultInject, HardwareCommand, Mode


class Sim:
    """Time, faults and repairs. NotFound, from each: the server is no simulation.

    Writes are sent once: a step that was taken twice would be two steps.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def get(self) -> SimView:
        """All of it, as it is now."""
        return await self._wire.read(SimView, "sim")

    async def set_mode(self, mode: Mode, *, rate: float | None = None, epoch: int) -> SimView:
        """Another mode, decided under an `epoch` that was read. Conflict: that is over."""
        body = ModeSet(mode=mode, rate=rate, epoch=epoch)
        return await self._wire.write("PUT", SimView, "sim", "mode", body=body, repeat=False)

    async def step(
        self, seconds: float | None = None, *, events: int | None = None, epoch: int | None = None
    ) -> StepView:
        """Let time go on. If it is not `done`, it is under way while `get().steps` has its id.

        Conflict: time goes by itself, or the mode was changed before it was done.
        """
        body = StepGrant(seconds=seconds, events=events, epoch=epoch)
        return await self._wire.write("POST", StepView, "sim", "step", body=body, repeat=False)

    async def state(self) -> SimState:
        """The simulation as a file that `hostler sim serve --resume` goes on from."""
        return await self._wire.read(SimState, "sim", "state")

    async def kinds(self) -> FaultKindPage:
        """Which faults there are, and what they can be about."""
        return await self._wire.read(FaultKindPage, "sim", "faults")

    async def inject(self, fault: FaultInject) -> FaultView:
        """Break something. NotFound: there is no such component."""
        return await self._wire.write("POST", FaultView, "sim", "faults", body=fault, repeat=False)

    async def lift(self, fault: str) -> FaultView:
        """Lift a fault by its id."""
        return await self._wire.write("DELETE", FaultView, "sim", "faults", fault, repeat=False)

    async def proposals(self) -> ProposalPage:
        """What should be repaired, and why."""
        return await self._wire.read(ProposalPage, "sim", "proposals")

    async def command(self, wanted: HardwareCommand) -> HardwareCommandView:
        """Switch hardware on or off. Conflict: the component has changed after the guard tick."""
        return await self._wire.write("POST", HardwareCommandView, "sim", "commands", body=wanted, repeat=False)

    async def repair(self, proposal: str) -> ProposalView:
        """Perform a repair that is proposed. NotFound: it no longer is."""
        return await self._wire.write("POST", ProposalView, "sim", "repairs", proposal, repeat=False)

    async def auto_repair(self, automatic: bool) -> ProposalPage:
        """Have repairs that commands are enough for performed without being asked, or not."""
        body = RepairMode(automatic=automatic)
        return await self._wire.write("PUT", ProposalPage, "sim", "repairs", body=body, repeat=False)

    async def log(self, *, after: int = 0, limit: int | None = None, last: bool = False) -> SimLogPage:
        """What happened after the entry of that number; `last`: the newest of it."""
        query = {"after": str(after) if after else None, "limit": limit, "last": True if last else None}
        return await self._wire.read(SimLogPage, "sim", "log", query=query)
