"""Routes of a simulation: control of time, faults and repairs. Other servers answer 404."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server.route import LIMIT, Access, Answer, Asked, Parameter, Route
from hostler.errors import NotFound
from hostler.model.sim_api import (
    FaultInject,
    FaultKindPage,
    FaultView,
    HardwareCommand,
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
    from hostler.sim.simulation import Simulation

SIM = "/v1/sim"
ANSWER_WITHIN = 20.0
"""Real seconds after which a step in progress is answered."""
NUMBER = Parameter("after", "Entries after the one of this number.", pattern=r"^[0-9]{1,15}$", example="41")


def _simulation(asked: Asked) -> Simulation:
    found = asked.services.sim
    if found is None:
        raise NotFound("sim: not a simulation; hostler sim serve starts one")
    return found


async def shown(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).view())


async def changed(asked: Asked) -> Answer:
    await _simulation(asked).change(asked.body)
    return Answer(await _simulation(asked).view())


async def stepped(asked: Asked) -> Answer:
    """Advance time; 202: the step is still in progress."""
    view = await _simulation(asked).step(asked.body, within=ANSWER_WITHIN)
    return Answer(view, status=200 if view.done else 202)


async def saved(asked: Asked) -> Answer:
    simulation = _simulation(asked)
    file = await simulation.save()
    return Answer(SimState(file=file.decode()))


async def kinds_listed(asked: Asked) -> Answer:
    return Answer(_simulation(asked).kinds())


async def injected(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).inject(asked.body))


async def lifted(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).lift(asked.parts["fault"]))


async def commanded(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).command(asked.body))


async def proposed(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).proposals())


async def repaired(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).repair(asked.parts["proposal"]))


async def automated(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).auto_repair(asked.body))


async def told(asked: Asked) -> Answer:
    after = int(asked.query["after"] or 0)
    return Answer(await _simulation(asked).log(after=after, limit=asked.limit, last=asked.query["last"]))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=SIM,
        name="sim.get",
        summary="The simulation: its clock, active faults, and proposed repairs",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=SimView,
        errors=(404,),
        about="404: this server is not a simulation.",
    ),
    Route(
        method="PUT",
        path=f"{SIM}/mode",
        name="sim.mode",
        summary="Set the mode: paused, real time, or as fast as possible",
        handler=changed,
        access="step_time",
        body=ModeSet,
        answer=SimView,
        errors=(404,),
        idempotent=False,
        about="409: the epoch has ended. Every change of mode starts a new epoch and drops the pending steps.",
    ),
    Route(
        method="POST",
        path=f"{SIM}/step",
        name="sim.step",
        summary="Advance time by a number of seconds, or by a number of scheduled instants",
        handler=stepped,
        access="step_time",
        also=(202,),
        body=StepGrant,
        answer=StepView,
        errors=(404,),
        idempotent=False,
        about="Steps are executed one after the other and completely, even if the client does not wait. 202: it is"
        " still in progress while `steps` lists it. 409: time runs by itself, or the mode was changed in the meantime.",
    ),
    Route(
        method="GET",
        path=f"{SIM}/state",
        name="sim.state",
        summary="The simulation as a file for hostler sim serve --resume",
        handler=saved,
        access=Access.ADMINISTRATORS,
        answer=SimState,
        errors=(404,),
        about="400: the API wrote more into the simulation than can be saved.",
    ),
    Route(
        method="GET",
        path=f"{SIM}/faults",
        name="sim.kinds",
        summary="Kinds of faults, and the components they apply to",
        handler=kinds_listed,
        access=Access.LOGGED_IN,
        answer=FaultKindPage,
        errors=(404,),
    ),
    Route(
        method="POST",
        path=f"{SIM}/faults",
        name="sim.inject",
        summary="Inject a fault",
        handler=injected,
        access="inject_faults",
        status=201,
        body=FaultInject,
        answer=FaultView,
        errors=(404,),
        idempotent=False,
        about="404: component not found.",
    ),
    Route(
        method="DELETE",
        path=f"{SIM}/faults/{{fault}}",
        name="sim.lift",
        summary="Remove a fault",
        handler=lifted,
        access="inject_faults",
        answer=FaultView,
        idempotent=False,
    ),
    Route(
        method="POST",
        path=f"{SIM}/commands",
        name="sim.command",
        summary="Switch a blade, a port, a cable or a rack on or off",
        handler=commanded,
        access="perform_repairs",
        body=HardwareCommand,
        answer=HardwareCommandView,
        errors=(404,),
        idempotent=False,
        about="409: the component has changed since `guard`, the instant of the state that the command is based"
        " on. 404: component not found.",
    ),
    Route(
        method="GET",
        path=f"{SIM}/proposals",
        name="sim.proposals",
        summary="Proposed repairs of faulty hardware, with reasons",
        handler=proposed,
        access=Access.LOGGED_IN,
        answer=ProposalPage,
        errors=(404,),
    ),
    Route(
        method="PUT",
        path=f"{SIM}/repairs",
        name="sim.auto_repair",
        summary="Turn automatic repairs on or off",
        handler=automated,
        access="perform_repairs",
        body=RepairMode,
        answer=ProposalPage,
        errors=(404,),
        idempotent=False,
        about="Repairs that need a human stay proposals.",
    ),
    Route(
        method="POST",
        path=f"{SIM}/repairs/{{proposal}}",
        name="sim.repair",
        summary="Perform a proposed repair, also one that needs a human",
        handler=repaired,
        access="perform_repairs",
        answer=ProposalView,
        idempotent=False,
    ),
    Route(
        method="GET",
        path=f"{SIM}/log",
        name="sim.log",
        summary="The log of the simulation, oldest first",
        handler=told,
        access=Access.LOGGED_IN,
        answer=SimLogPage,
        errors=(404,),
        query=(LIMIT, NUMBER, Parameter("last", "The newest entries.", "boolean", default=False)),
    ),
)
