"""Routes of a simulation: control of time, faults and repairs. Other servers answer 404."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server.route import Answer, Asked, routes_of
from hostler.errors import NotFound
from hostler.model.resources.control import SimApi
from hostler.model.sim_api import SimState

if TYPE_CHECKING:
    from hostler.sim.simulation import Simulation

ANSWER_WITHIN = 20.0
"""Real seconds after which a step in progress is answered."""


def _simulation(asked: Asked) -> Simulation:
    found = asked.services.sim
    if found is None:
        raise NotFound("sim: not a simulation; hostler sim serve starts one")
    return found


async def show(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).view())


async def set_mode(asked: Asked) -> Answer:
    await _simulation(asked).change(asked.body)
    return Answer(await _simulation(asked).view())


async def step(asked: Asked) -> Answer:
    """Advance time; 202: the step is still in progress."""
    view = await _simulation(asked).step(asked.body, within=ANSWER_WITHIN)
    return Answer(view, status=200 if view.done else 202)


async def save(asked: Asked) -> Answer:
    simulation = _simulation(asked)
    file = await simulation.save()
    return Answer(SimState(file=file.decode()))


async def kinds(asked: Asked) -> Answer:
    return Answer(_simulation(asked).kinds())


async def inject(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).inject(asked.body))


async def lift(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).lift(asked.parts["fault"]))


async def command(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).command(asked.body))


async def proposals(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).proposals())


async def repair(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).repair(asked.parts["proposal"]))


async def auto_repair(asked: Asked) -> Answer:
    return Answer(await _simulation(asked).auto_repair(asked.body))


async def log(asked: Asked) -> Answer:
    after = int(asked.query["after"] or 0)
    return Answer(await _simulation(asked).log(after=after, limit=asked.limit, last=asked.query["last"]))


ROUTES = routes_of(
    SimApi,
    get=show,
    mode=set_mode,
    step=step,
    state=save,
    kinds=kinds,
    inject=inject,
    lift=lift,
    command=command,
    proposals=proposals,
    auto_repair=auto_repair,
    repair=repair,
    log=log,
)
