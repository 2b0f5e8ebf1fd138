"""Their words for a server's state, and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from hostler.drivers.machines.hetzner.labels import Card

RUNNING, OFF, STOPPING, DELETING = "running", "off", "stopping", "deleting"

_STATES = {
    RUNNING: MachineState.RUNNING,
    OFF: MachineState.STOPPED,
    STOPPING: MachineState.STOPPING,
    DELETING: MachineState.CREATING,  # its destruction was begun: it is not whole
}


def state_of(status: str, card: Card) -> MachineState:
    """`initializing`, `starting`, `migrating`, `rebuilding`, `unknown`, and words that are new: it may run soon."""
    if card.life:
        return MachineState.CREATING
    return _STATES.get(status, MachineState.STARTING)
