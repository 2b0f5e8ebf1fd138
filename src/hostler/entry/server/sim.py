"""The routes of a simulation: how time goes, what breaks, and what is repaired. Other servers know none of it."""

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
"""Real seconds after which a step that is not done is answered all the same."""
NUMBER = Parameter("after", "Entries after the one of this number.", pattern=r"^[0-9]{1,15}$", example="41")


def _simulation(asked: Asked) -> Simulation:
    found = asked.services.sim
    if found is None:
        raise NotFound("sim: this is no simulation; hostler sim serve starts one")
    return found


async def shown(asked: Asked) -> Answer:
    """All of it."""
    return Answer(await _simulation(asked).view())


async def changed(asked: Asked) -> Answer:
    """Another mode."""
    await _simulation(asked).change(asked.body)
    return Answer(await _simulation(asked).view())


async def stepped(asked: Asked) -> Answer:
    """Time went on; 202: it still does."""
    view = await _simulation(asked).step(asked.body, within=ANSWER_WITHIN)
    return Answer(view, status=200 if view.done else 202)


async def saved(asked: Asked) -> Answer:
    """What another simulation can go on from."""
    simulation = _simulation(asked)
    file = await simulation.save()
    return Answer(SimState(file=file.decode()))


async def kinds_listed(asked: Asked) -> Answer:
    """What can be broken, and how."""
    return Answer(_simulation(asked).kinds())


async def injected(asked: Asked) -> Answer:
    """Broken."""
    return Answer(await _simulation(asked).inject(asked.body))


async def lifted(asked: Asked) -> Answer:
    """Whole again, as far as this fault is concerned."""
    return Answer(await _simulation(asked).lift(asked.parts["fault"]))


async def commanded(asked: Asked) -> Answer:
    """Switched."""
    return Answer(await _simulation(asked).command(asked.body))


async def proposed(asked: Asked) -> Answer:
    """What should be done."""
    return Answer(await _simulation(asked).proposals())


async def repaired(asked: Asked) -> Answer:
    """Done."""
    return Answer(await _simulation(asked).repair(asked.parts["proposal"]))


async def automated(asked: Asked) -> Answer:
    """Who repairs."""
    return Answer(await _simulation(asked).auto_repair(asked.body))


async def told(asked: Asked) -> Answer:
    """What happened."""
    after = int(asked.query["after"] or 0)
    return Answer(await _simulation(asked).log(after=after, limit=asked.limit, last=asked.query["last"]))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=SIM,
        name="sim.get",
        summary="The simulation: how time goes, what is broken, and what should be done about it",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=SimView,
        errors=(404,),
        about="404: this server is no simulation.",
    ),
    Route(
        method="PUT",
        path=f"{SIM}/mode",
        name="sim.mode",
        summary="Let time stand still, go by the clock, or not wait",
        handler=changed,
        access="step_time",
        body=ModeSet,
        answer=SimView,
        errors=(404,),
        idempotent=False,
        about="409: the epoch is over. Every change of mode begins a new one, and drops the steps of the last.",
    ),
    Route(
        method="POST",
        path=f"{SIM}/step",
        name="sim.step",
        summary="Let time go on by so many seconds, or by so many instants at which something is due",
        handler=stepped,
        access="step_time",
        also=(202,),
        body=StepGrant,
        answer=StepView,
        errors=(404,),
        idempotent=False,
        about="Steps are done one after the other, and each in full, also if nobody waits for the answer. 202: it is"
        " not done yet; it is while `steps` has it. 409: time goes by itself, or the mode was changed meanwhile.",
    ),
    Route(
        method="GET",
        path=f"{SIM}/state",
        name="sim.state",
        summary="The simulation as a file that hostler sim serve --resume goes on from",
        handler=saved,
        access=Access.ADMINISTRATORS,
        answer=SimState,
        errors=(404,),
        about="400: more was written into the simulation from outside than can be saved.",
    ),
    Route(
        method="GET",
        path=f"{SIM}/faults",
        name="sim.kinds",
        summary="Which faults there are, and what they can be about",
        handler=kinds_listed,
        access=Access.LOGGED_IN,
        answer=FaultKindPage,
        errors=(404,),
    ),
    Route(
        method="POST",
        path=f"{SIM}/faults",
        name="sim.inject",
        summary="Break something",
        handler=injected,
        access="inject_faults",
        status=201,
        body=FaultInject,
        answer=FaultView,
        errors=(404,),
        idempotent=False,
        about="404: there is no such component.",
    ),
    Route(
        method="DELETE",
        path=f"{SIM}/faults/{{fault}}",
        name="sim.lift",
        summary="Lift a fault",
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
        about="409: the component has changed after `guard`, the instant of the state that the command was decided"
        " from. 404: there is no such component.",
    ),
    Route(
        method="GET",
        path=f"{SIM}/proposals",
        name="sim.proposals",
        summary="What should be done about hardware that is not as it should be, and why",
        handler=proposed,
        access=Access.LOGGED_IN,
        answer=ProposalPage,
        errors=(404,),
    ),
    Route(
        method="PUT",
        path=f"{SIM}/repairs",
        name="sim.auto_repair",
        summary="Have repairs performed without being asked, or not",
        handler=automated,
        access="perform_repairs",
        body=RepairMode,
        answer=ProposalPage,
        errors=(404,),
        idempotent=False,
        about="Those that need a human stay proposals.",
    ),
    Route(
        method="POST",
        path=f"{SIM}/repairs/{{proposal}}",
        name="sim.repair",
        summary="Perform a repair that is proposed, be it as the human who was asked for",
        handler=repaired,
        access="perform_repairs",
        answer=ProposalView,
        idempotent=False,
    ),
    Route(
        method="GET",
        path=f"{SIM}/log",
        name="sim.log",
        summary="What happened in the simulation, oldest first",
        handler=told,
        access=Access.LOGGED_IN,
        answer=SimLogPage,
        errors=(404,),
        query=(LIMIT, NUMBER, Parameter("last", "The newest of them.", "boolean", default=False)),
    ),
)
