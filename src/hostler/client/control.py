"""`client.control`, `client.decisions`, `client.sim`: the control plane itself, its decisions, and a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.client.resource import Resource
from hostler.model.resources.control import ControlApi, SimApi, TraceApi
from hostler.model.sim_api import ModeSet, RepairMode, StepGrant

if TYPE_CHECKING:
    from typing import Unpack

    from hostler.client.resource import Pages, Paging
    from hostler.model.access_api import AuditPage, AuditView
    from hostler.model.control_api import LeaderView, Overview, ReplicaPage, TracePage, TraceView, WhyView
    from hostler.model.sim_api import (
        FaultInject,
        FaultKindPage,
        FaultView,
        HardwareCommand,
        HardwareCommandView,
        Mode,
        ProposalPage,
        ProposalView,
        SimLogPage,
        SimState,
        SimView,
        StepView,
    )


class Control(Resource):
    """The control plane itself."""

    async def leader(self) -> LeaderView:
        """Return the leader."""
        return await self._wire.call(ControlApi.leader)

    async def replicas(self) -> ReplicaPage:
        """List the running replicas."""
        return await self._wire.call(ControlApi.replicas)

    async def overview(self) -> Overview:
        """Return an overview: leader and past leaders, the store, nodes, machines, labs, and what needs attention."""
        return await self._wire.call(ControlApi.overview)

    def audit(
        self,
        *,
        day: str | None = None,
        newest: bool = False,
        who: str | None = None,
        verb: str | None = None,
        subject: str | None = None,
        **options: Unpack[Paging],
    ) -> Pages[AuditPage, AuditView]:
        """List every write, oldest first unless `newest`; of one day (`2026-11-15`) if `day` is given.

        `verb` may be a prefix (`vm.`), `subject` any part of the key that was written.
        """
        query = {"day": day, "who": who, "verb": verb, "subject": subject, "newest": newest or None}
        return self._wire.list(ControlApi.audit, query=query, **options)


class Decisions(Resource):
    """The decision log: decisions and their reasons."""

    def list(self, object_: str | None = None, **options: Unpack[Paging]) -> Pages[TracePage, TraceView]:
        """List the decisions, newest first, of all objects or of one: `await` a page, or `async for` over all.

        Objects are `vm/ORG/PROJECT/NAME`, `node/NAME`, `rack/NAME`, `lab/USER`, `workload/NAME`, `blueprint/NAME`,
        `slice/GROUP:NAME`, or an id.
        """
        return self._wire.list(TraceApi.list, query={"object": object_}, **options)

    async def why(
        self, object_: str, *, org: str | None = None, project: str | None = None, limit: int | None = None
    ) -> WhyView:
        """Explain the state of an object. `org` and `project`: where to look for a machine first."""
        query = {"object": object_, "org": org, "project": project, "limit": limit}
        return await self._wire.call(TraceApi.why, query=query)


class Sim(Resource):
    """Time, faults and repairs. Every method raises NotFound if the server does not run a simulation.

    Writes are sent only once, because a step that is sent twice would be two steps.
    """

    async def get(self) -> SimView:
        """Return the state of the whole simulation."""
        return await self._wire.call(SimApi.get)

    async def set_mode(self, mode: Mode, *, rate: float | None = None, epoch: int) -> SimView:
        """Change the mode, based on an `epoch` that was read. Conflict: the epoch has changed."""
        body = ModeSet(mode=mode, rate=rate, epoch=epoch)
        return await self._wire.call(SimApi.mode, body=body)

    async def step(
        self, seconds: float | None = None, *, events: int | None = None, epoch: int | None = None
    ) -> StepView:
        """Advance the time. If the answer is not `done`, the step runs while `get().steps` has its id.

        Conflict: time runs by itself, or the mode was changed before the step was done.
        """
        body = StepGrant(seconds=seconds, events=events, epoch=epoch)
        return await self._wire.call(SimApi.step, body=body)

    async def state(self) -> SimState:
        """Return the simulation as a file for `hostler sim serve --resume`."""
        return await self._wire.call(SimApi.state)

    async def kinds(self) -> FaultKindPage:
        """List the kinds of faults, and the components they can affect."""
        return await self._wire.call(SimApi.kinds)

    async def inject(self, fault: FaultInject) -> FaultView:
        """Inject a fault. NotFound: there is no such component."""
        return await self._wire.call(SimApi.inject, body=fault)

    async def lift(self, fault: str) -> FaultView:
        """Lift a fault by its id."""
        return await self._wire.call(SimApi.lift, fault)

    async def proposals(self) -> ProposalPage:
        """List the proposed repairs and their reasons."""
        return await self._wire.call(SimApi.proposals)

    async def command(self, wanted: HardwareCommand) -> HardwareCommandView:
        """Switch hardware on or off. Conflict: the component has changed since the guard tick."""
        return await self._wire.call(SimApi.command, body=wanted)

    async def repair(self, proposal: str) -> ProposalView:
        """Perform a proposed repair. NotFound: it is no longer proposed."""
        return await self._wire.call(SimApi.repair, proposal)

    async def auto_repair(self, automatic: bool) -> ProposalPage:
        """Switch automatic repair on or off; it performs repairs for which commands suffice."""
        body = RepairMode(automatic=automatic)
        return await self._wire.call(SimApi.auto_repair, body=body)

    async def log(self, *, after: int = 0, limit: int | None = None, last: bool = False) -> SimLogPage:
        """List the log after the entry with that number; `last`: the newest entries."""
        query = {"after": str(after) if after else None, "limit": limit, "last": True if last else None}
        return await self._wire.call(SimApi.log, query=query)
