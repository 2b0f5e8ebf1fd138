"""`client.sim`: control of a simulation, if the server runs one."""

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
    from hostler.client.transport import HttpTransport
    from hostler.model.sim_api import FaultInject, HardwareCommand, Mode


class Sim:
    """Time, faults and repairs. Every method raises NotFound if the server does not run a simulation.

    Writes are sent only once, because a step that is sent twice would be two steps.
    """

    def __init__(self, wire: HttpTransport) -> None:
        self._wire = wire

    async def get(self) -> SimView:
        """Return the state of the whole simulation."""
        return await self._wire.read(SimView, "sim")

    async def set_mode(self, mode: Mode, *, rate: float | None = None, epoch: int) -> SimView:
        """Change the mode, based on an `epoch` that was read. Conflict: the epoch has changed."""
        body = ModeSet(mode=mode, rate=rate, epoch=epoch)
        return await self._wire.write("PUT", SimView, "sim", "mode", body=body, repeat=False)

    async def step(
        self, seconds: float | None = None, *, events: int | None = None, epoch: int | None = None
    ) -> StepView:
        """Advance the time. If the answer is not `done`, the step runs while `get().steps` has its id.

        Conflict: time runs by itself, or the mode was changed before the step was done.
        """
        body = StepGrant(seconds=seconds, events=events, epoch=epoch)
        return await self._wire.write("POST", StepView, "sim", "step", body=body, repeat=False)

    async def state(self) -> SimState:
        """Return the simulation as a file for `hostler sim serve --resume`."""
        return await self._wire.read(SimState, "sim", "state")

    async def kinds(self) -> FaultKindPage:
        """List the kinds of faults, and the components they can affect."""
        return await self._wire.read(FaultKindPage, "sim", "faults")

    async def inject(self, fault: FaultInject) -> FaultView:
        """Inject a fault. NotFound: there is no such component."""
        return await self._wire.write("POST", FaultView, "sim", "faults", body=fault, repeat=False)

    async def lift(self, fault: str) -> FaultView:
        """Lift a fault by its id."""
        return await self._wire.write("DELETE", FaultView, "sim", "faults", fault, repeat=False)

    async def proposals(self) -> ProposalPage:
        """List the proposed repairs and their reasons."""
        return await self._wire.read(ProposalPage, "sim", "proposals")

    async def command(self, wanted: HardwareCommand) -> HardwareCommandView:
        """Switch hardware on or off. Conflict: the component has changed since the guard tick."""
        return await self._wire.write("POST", HardwareCommandView, "sim", "commands", body=wanted, repeat=False)

    async def repair(self, proposal: str) -> ProposalView:
        """Perform a proposed repair. NotFound: it is no longer proposed."""
        return await self._wire.write("POST", ProposalView, "sim", "repairs", proposal, repeat=False)

    async def auto_repair(self, automatic: bool) -> ProposalPage:
        """Switch automatic repair on or off; it performs repairs for which commands suffice."""
        body = RepairMode(automatic=automatic)
        return await self._wire.write("PUT", ProposalPage, "sim", "repairs", body=body, repeat=False)

    async def log(self, *, after: int = 0, limit: int | None = None, last: bool = False) -> SimLogPage:
        """List the log after the entry with that number; `last`: the newest entries."""
        query = {"after": str(after) if after else None, "limit": limit, "last": True if last else None}
        return await self._wire.read(SimLogPage, "sim", "log", query=query)
