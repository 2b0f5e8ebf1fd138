"""What is done to machines, killed at a step, and what must have come of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from crash_points.scene import NODES
from guests import repeat
from harness.artefacts import safe

from hostler.model.vm import OnNodeLoss
from hostler.model.vm_api import VmCreate

from .scene import AT, SPEC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler import Client

    from .scene import QemuScene

KINDS = {"agent": (False, True), "qemu": (True, False), "both": (True, True)}
"""Who dies: whether the machine's QEMU does, and whether the agent."""
BOOT = "cat /proc/sys/kernel/random/boot_id"
TICKS = f"""[ "$(cat ticks)" = "$({BOOT})" ] || {{ {BOOT} > ticks; ({repeat(":", every=0.02)}) & }} > /dev/null 2>&1;"""
"""Once in each of its lives: so that one sees that the guest runs."""


STEP = "machine "


class Point(NamedTuple):
    """A step of a verb."""

    name: str
    number: int
    """The how manieth of that name."""
    runs: bool
    """Whether a machine had a process on that node then."""

    def __str__(self) -> str:
        return self.name.removeprefix(STEP) + f"#{self.number}" * (self.number > 1)

    def kinds(self) -> list[str]:
        """Who can be killed."""
        return list(KINDS) if self.runs else ["agent"]


class Kill(NamedTuple):
    """Where, and of whom."""

    point: Point
    kind: str

    def __str__(self) -> str:
        return f"{self.point}/{self.kind}"


class Life:
    """A machine from its creation to its end; what it was told to keep is kept."""

    def __init__(self, scene: QemuScene, name: str, *, fenced: bool) -> None:
        self.scene, self.name, self.vm = scene, name, ""
        self._on_loss = OnNodeLoss.RECREATE if fenced else OnNodeLoss.WAIT
        self._boot = ""
        self._notes = 0

    async def create(self, kill: Kill | None) -> list[Point]:
        async def act(client: Client, key: str) -> None:
            wish = VmCreate(name=self.name, spec=SPEC, on_node_loss=self._on_loss)
            self.vm = (await client.vms.create(*AT, wish, key=key)).id

        points = await self._do(act, kill)
        if kill is None:
            await self.scene.learn(self.vm)
        return points

    async def delete(self, kill: Kill | None) -> list[Point]:
        async def act(client: Client, key: str) -> None:
            await client.vms.delete(*AT, self.vm, key=key)

        points = await self._do(act, kill)
        await self.scene.check_empty()
        return points

    async def stop(self, kill: Kill | None) -> list[Point]:
        async def act(client: Client, key: str) -> None:
            await client.vms.stop(*AT, self.vm, key=key)

        self._boot = ""
        return await self._do(act, kill)

    async def start(self, kill: Kill | None) -> list[Point]:
        async def act(client: Client, key: str) -> None:
            await client.vms.start(*AT, self.vm, key=key)

        return await self._do(act, kill)

    async def snapshot(self, kill: Kill | None) -> list[Point]:
        async def act(client: Client, key: str) -> None:
            await client.vms.snapshot(*AT, self.vm, f"after-{self._notes}", key=key)

        return await self._do(act, kill)

    async def migrate(self, kill: Kill | None) -> list[Point]:
        node = (await self.scene.handle(self.vm)).node
        other = next(name for name in NODES if name != node)

        async def act(client: Client, key: str) -> None:
            await client.vms.move(*AT, self.vm, other, key=key)

        points = await self._do(act, kill)
        handle = await self.scene.handle(self.vm)
        if kill is None:
            assert handle.node == other, handle
        assert (handle.node == other) is (not handle.unmoved), handle
        return points

    async def restore(self, number: int, kill: Kill | None = None) -> list[Point]:
        """To the snapshot that was taken after so many notes."""

        async def act(client: Client, key: str) -> None:
            await client.vms.restore(*AT, self.vm, f"after-{number}", key=key)

        return await self._do(act, kill)

    async def check_restored(self, number: int) -> None:
        """It has the notes that it had then, and no other."""
        said = (await self.scene.say(self.vm, "cat kept")).split()
        safe(said == [str(note) for note in range(1, number + 1)], f"snapshot {number} holds {said}")

    async def scribble(self) -> None:
        """Something that it need not keep."""
        await self.scene.say(self.vm, "echo scribble >> kept; sync")

    async def keep(self) -> None:
        """Whatever it was told to keep is there; it is told one thing more."""
        self._notes += 1
        expected = [str(number) for number in range(1, self._notes + 1)]
        said = (await self.scene.say(self.vm, f"echo {self._notes} >> kept; sync; {TICKS} {BOOT}; cat kept")).split()
        boot, kept = said[0], said[1:]
        safe(kept == expected, f"{kept} was kept of {expected}")
        self._boot = boot

    async def check_undisturbed(self) -> None:
        """The guest never stopped running."""
        safe(await self.scene.say(self.vm, BOOT) == self._boot, "the guest was started anew, though only agents died")

    async def _do(self, act: Callable[[Client, str], Awaitable[None]], kill: Kill | None) -> list[Point]:
        scene = self.scene
        kills, dies = (False, False) if kill is None else KINDS[kill.kind]
        target = None if kill is None else (kill.point.name, kill.point.number)
        crashes, killed = len(scene.crashes), scene.killed
        await scene.aim(target, kills=kills, dies=dies)
        await scene.wish(act)
        await scene.settled()
        if kill is not None:
            await scene.died(crashes, dies=dies)
            assert scene.killed > killed or not kills, "there was no QEMU to kill"
            await scene.settled()
        await scene.rest()
        found = [Point(*point) for point in scene.passed if _is_step(point[0])]
        return list(dict.fromkeys(found))


def _is_step(name: str) -> bool:
    """Those inside the machines, without what runs by the clock; and the transaction that hands one over."""
    if name.startswith(STEP):
        return "hold" not in name
    return "txn" in name and "-arrivals" in name
