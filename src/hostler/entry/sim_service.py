"""A simulated datacenter with the API of a real one.

    lock the folder → start the world and boot it at full speed → stop the clock → view and services → server →
    the chosen mode, and the timeline begins → ready

The control plane under test runs inside the world: its replicas lead, and its agents run machines. The API server runs
outside the world and takes no decisions; it reads and writes the world's store, unaffected by faults. A failure in the
world is reported, and the server keeps running.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hostler import __version__
from hostler.entry.control_plane import ControlPlaneProcess, check_listen, first_admin, local_url
from hostler.entry.data_dir import DataFolder
from hostler.entry.process import RotatingFile, asked_to_end, run_unless_asked
from hostler.entry.server.logs import configure, logger
from hostler.entry.up import Ready
from hostler.errors import HostlerError, Invalid, Refused
from hostler.sim.journal import load, save
from hostler.sim.simulation import Simulation, Story
from hostler.sim.world.replica import EveryArtifact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hostler.model.sim_api import Mode
    from hostler.settings import Settings
    from hostler.sim.journal import Saved
    from hostler.sim.scenario.scenario import Scenario
    from hostler.sim.time_control import EventPosition
    from hostler.sim.world import World

BOOT = 120.0
"""Virtual seconds for the nodes of the world to become ready; the service does not wait longer for any node."""
STOP_WITHIN = 1.0
"""Real seconds for the world to end."""
SWITCH = 0.0005
"""Thread switch interval in seconds. With the default of 5 ms, a request would wait for many switches."""


SAVE_EVERY = 10.0
"""Real seconds between two saves; nothing is saved while nothing happens."""


@dataclass(frozen=True)
class Resumed:
    """A saved simulation to resume, and the file that holds it."""

    name: str
    saved: Saved


class SimReports(NamedTuple):
    """What is called with the news of a simulation."""

    tell: Callable[[str], None]
    warn: Callable[[str], None]
    """Receives failures in the world."""
    ready: Callable[[Ready], None]


class SimService:
    """One run of `hostler sim serve`."""

    def __init__(
        self,
        settings: Settings,
        story: Story,
        *,
        pace: tuple[Mode, float | None],
        reports: SimReports,
        resumed: Resumed | None = None,
        save: Path | None = None,
    ) -> None:
        """`pace`: mode and rate. `resumed`: the simulation to resume. `save`: the file to save it to."""
        self._settings, (self._mode, self._rate) = settings, pace
        self._resumed, self._save = resumed, save
        self._saved: EventPosition | None = None
        self._tell, self._warn, self._ready = reports
        self._folder = DataFolder(settings.data)
        self._simulation = Simulation(story, told=self._told)
        self._asked = asyncio.Event()
        self._serving = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal asks the process to end. Return the exit code."""
        check_listen(self._settings)
        check_folder(self._folder)
        with self._folder.held(), asked_to_end() as self._asked:
            self._folder.write(self._folder.simulation_file, "hostler sim serve: not kept after it ends")
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
            if self._resumed is not None:
                await self._resume(self._resumed)
            else:
                await simulation.start()
                if not await simulation.boot(within=BOOT):
                    self._warn(f"not every node is on duty after {BOOT:g} virtual seconds; continuing")
            store = await stack.enter_async_context(simulation.store())
            plane = await stack.enter_async_context(
                ControlPlaneProcess(
                    store, self._settings, clock=simulation.clock(), sim=simulation, artifacts=EveryArtifact()
                )  # as in the world's own replicas: no artifact has to be pushed
            )
            server = await stack.enter_async_context(plane.served())
            failing = asyncio.create_task(self._failed(plane), name="view: failure")
            stack.callback(failing.cancel)
            host, _ = check_listen(self._settings)
            url = local_url(server, host)
            token = await first_admin(plane.users, self._folder)
            if self._resumed is not None and self._folder.read(self._folder.token_file) is None:
                token = await plane.users.recover_admin()  # the folder with the token no longer exists
                self._folder.write(self._folder.token_file, token)
            stack.enter_context(self._folder.announced(url))
            await (simulation.go_on if self._resumed is not None else simulation.play)(self._mode, rate=self._rate)
            if self._save is not None:
                await self._keep(self._save)
                saving = asyncio.create_task(self._keep_on(self._save), name="simulation: save")
                stack.callback(saving.cancel)
            self._serving.set()
            self._ready(Ready(url, self._folder, token))
            await self._asked.wait()
            self._tell("stopping")
            if self._save is not None:
                try:
                    await self._keep(self._save)
                    self._tell(f"saved in {self._save}")
                except HostlerError as error:
                    self._warn(str(error))
            with suppress(HostlerError):
                await simulation.hold()  # requests that wait for a step get an answer
        return 0

    async def _resume(self, resumed: Resumed) -> None:
        header = resumed.saved.header
        self._tell(f"resuming {resumed.name}: replaying {header.place.at:g} virtual seconds")
        await self._simulation.resume(resumed.saved, resumed.name)

    async def _keep(self, path: Path) -> None:
        """Save the simulation, unless nothing has happened since the last save."""
        place = await self._simulation.place()
        if place != self._saved:
            data = await self._simulation.save()
            await asyncio.to_thread(save, path, data)
            self._saved = place

    async def _keep_on(self, path: Path) -> None:
        told = ""
        while True:
            await asyncio.sleep(SAVE_EVERY)
            try:
                await self._keep(path)
                told = ""
            except HostlerError as error:
                if str(error) != told:
                    told = str(error)
                    self._warn(told)

    async def _failed(self, plane: ControlPlaneProcess) -> None:
        self._warn(f"the view of the simulated store is no longer updated: {await plane.failed()}")

    def _told(self, text: str) -> None:
        """Report a failure; called in the world's thread."""
        logger(part="simulation").error("the simulation failed", why=text)
        self._warn(text)


def check_folder(folder: DataFolder) -> None:
    """Check the folder. Refused: it holds other state, whose administrator's token would be overwritten."""
    if folder.path.is_dir() and any(folder.path.iterdir()) and folder.read(folder.simulation_file) is None:
        raise Refused(
            f"data folder {folder.path}: it belongs to hostler up, or holds other files; give --data an empty folder,"
            " or omit --data"
        )


def check_save(path: Path, resumed: Resumed | None) -> None:
    """Check the file to save to. Refused: it exists and is not the one that is resumed; it is not replaced."""
    if not path.parent.is_dir():
        raise Invalid(f"{path}: folder {path.parent} not found; create it, or save elsewhere")
    if (path.exists() or path.is_symlink()) and (resumed is None or not path.samefile(resumed.name)):
        raise Refused(f"{path}: file exists; resume it with --resume {path}, or save to a new file")


def resumed_from(path: Path) -> tuple[Resumed, Story]:
    """Load a saved simulation. NotFound, Invalid, Damaged, Refused: the file holds none that can be resumed."""
    from hostler.sim.scenario.format import read_scenario

    saved = load(path)
    scenario = read_scenario(saved.header.scenario, str(path))
    return Resumed(str(path), saved), _story(scenario, saved.header.seed)


def story_of(what: str, seed: int | None) -> Story:
    """Return the scenario of that name, or in that file: its initial objects, then its timeline.

    NotFound, Invalid: there is no such scenario, or it has an error.
    """
    from hostler.sim.scenario.library import find

    scenario = find(what)
    return _story(scenario, scenario.seed if seed is None else seed)


def _story(scenario: Scenario, seed: int) -> Story:
    from hostler.sim.scenario.format import scenario_text
    from hostler.sim.scenario.player import Player, plan_of
    from hostler.sim.scenario.scenario import draw_moments

    moments = draw_moments(scenario, seed)

    async def play(world: World, to_come: Callable[[int], None]) -> None:
        await Player(world, scenario, moments).play(to_come)

    plan = msgspec.structs.replace(plan_of(scenario), slices=True)  # users of the API may apply blueprints
    return Story(
        name=scenario.name,
        about=scenario.about,
        seed=seed,
        plan=plan,
        play=play,
        scenario=scenario_text(scenario),
        release=__version__,
    )
