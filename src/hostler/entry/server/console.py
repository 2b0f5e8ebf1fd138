"""The serial port of a machine, as a WebSocket: binary messages both ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server.problem import INVALID, NOT_HERE, Refusal

if TYPE_CHECKING:
    from hostler.entry.server.route import Answer, Asked
    from hostler.ports.machines import Machines


async def console(asked: Asked) -> Answer | None:
    """What a plain GET is told."""
    await machine_of(asked)
    raise Refusal(INVALID, "console: it speaks WebSocket only; ask for an upgrade to websocket")


async def machine_of(asked: Asked) -> tuple[Machines, str]:
    """The driver that has the machine in this process, and the machine's id. Refusal: it is elsewhere."""
    parts = asked.parts
    vm = await asked.services.vms.get(asked.caller, parts["org"], parts["project"], parts["vm"])
    machines = None if vm.node is None else asked.services.machines_of(vm.node)
    if machines is None:
        where = "no node has it yet" if vm.node is None else f"it is on node {vm.node}, whose agent is another process"
        raise Refusal(NOT_HERE, f"console of {vm.name}: {where}; ask there, or wait")
    return machines, vm.id
