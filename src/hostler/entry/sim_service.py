"""A simulated datacenter with the API of a real one.

    folder held → the world begins, and boots as fast as it can → time stands still → view and services → server →
    the chosen mode, and the timeline begins → ready

The control plane under test lives inside the world: its replicas lead, and its agents run machines. The server beside
it decides nothing; it reads and writes the world's store, past every fault. What goes wrong in the world is told, and
the server stays.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.entry.folder import DataFolder
from hostler.entry.plane import Plane, check_listen, first_admin, local_url
from hostler.entry.rotation import RotatingFile
from hostler.entry.server.logs import configure, logger
from hostler.entry.signals import asked_to_end, run_unless_asked
from hostler.entry.up import Ready
from hostler.errors import HostlerError, Refused
from hostler.sim.simulation import Simulation, Story
from hostler.sim.world.artifacts import EveryArtifact

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.model.sim_api import Mode
    from hostler.settings import Settings
    from hostler.sim.world import World

BOOT = 120.0
"""Virtual seconds that the world has until its nodes are on duty; what is not by then is not waited for."""
STOP_WITHIN = 1.0
"""Real seconds that the world has to end."""
SWITCH = 0.0005
"""Seconds after which the world's thread lets the server's run: with the usual 5 ms a request would wait for many of
them."""


class SimService:
    """One `hostler sim serve`: made, run, gone. `warn` hears of what went wrong in the world."""

    def __init__(
        self,
        settings: Settings,
        story: Story,
        *,
        mode: Mode,
        rate: float | None,
        tell: Callable[[str], None],
        warn: Callable[[str], None],
        ready: Callable[[Ready], None],
    ) -> None:
        self._settings, self._mode, self._rate = settings, mode, rate
        self._tell, self._warn, self._ready = tell, warn, ready
        self._folder = DataFolder(settings.data)
        self._simulation = Simulation(story, told=self._told)
        self._asked = asyncio.Event()
        self._serving = asyncio.Event()

    async def run(self) -> int:
        """Until it is asked to end; the exit code."""
        check_listen(self._settings)
        check_folder(self._folder)
        with self._folder.held(), asked_to_end() as self._asked:
            self._folder.write(self._folder.simulation_file, "it holds nothing that outlives hostler sim serve")
            log = RotatingFile(self._folder.log_file)
            configure(self._settings.log_level, log, self._settings.log_format)  # type: ignore[arg-type]
            before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH)
            try:
                return await run_unless_asked("simulation", self._asked, self._serving, self._run())
            finally:
                sys.setswitchinterval(before)
                log.close()

    async def _run(self) -> int:
        simulation = self._simulation
        async with AsyncExitStack() as stack:
            stack.push_async_callback(simulation.stop, within=STOP_WITHIN)
            await simulation.start()
            if not await simulation.boot(within=BOOT):
                self._warn(f"not every node is on duty after {BOOT:g} virtual seconds; going on")
            store = await stack.enter_async_context(simulation.store())
            plane = await stack.enter_async_context(
                Plane(
                    store, self._settings, clock=simulation.clock(), sim=simulation, artifacts=EveryArtifact()
                )  # as the world's own replicas have it: nothing needs to be pushed
            )
            server = await stack.enter_async_context(plane.served())
            failing = asyncio.create_task(self._failed(plane), name="view: failure")
            stack.callback(failing.cancel)
            host, _ = check_listen(self._settings)
            url = local_url(server, host)
            token = await first_admin(plane.users, self._folder)
            stack.enter_context(self._folder.announced(url))
            await simulation.play(self._mode, rate=self._rate)
            self._serving.set()
            self._ready(Ready(url, self._folder, token))
            await self._asked.wait()
            self._tell("stopping")
            with suppress(HostlerError):
                await simulation.hold()  # whoever waits for a step is told
        return 0

    async def _failed(self, plane: Plane) -> None:
        self._warn(f"what is read from the world is no longer kept up: {await plane.failed()}")

    def _told(self, text: str) -> None:
        """In the world's thread."""
        logger(part="simulation").error("the simulation failed", why=text)
        self._warn(text)


def check_folder(folder: DataFolder) -> None:
    """Refused: somebody else's state is there, whose token our own administrator's would take the place of."""
    if folder.path.is_dir() and any(folder.path.iterdir()) and folder.read(folder.simulation_file) is None:
        raise Refused(
            f"data folder {folder.path}: it belongs to hostler up, or to somebody else; give --data an empty folder,"
            " or leave it out"
        )


def story_of(what: str, seed: int | None) -> Story:
    """The scenario of that name, or in that file: its wishes, then its timeline. NotFound, Invalid: it is none."""
    from hostler.sim.scenario.chance import drawn
    from hostler.sim.scenario.library import find
    from hostler.sim.scenario.play import Player, plan_of

    scenario = find(what)
    seed = scenario.seed if seed is None else seed
    moments = drawn(scenario, seed)

    async def play(world: World, to_come: Callable[[int], None]) -> None:
        await Player(world, scenario, moments).play(to_come)

    plan = msgspec.structs.replace(plan_of(scenario), slices=True)  # whoever is beside it may apply a blueprint
    return Story(name=scenario.name, about=scenario.about, seed=seed, plan=plan, play=play)
