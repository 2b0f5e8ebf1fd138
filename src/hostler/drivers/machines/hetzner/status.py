"""Maps the status of a server to the state of a machine."""

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
    DELETING: MachineState.CREATING,  # its deletion began, so it is incomplete
}


def state_of(status: str, card: Card) -> MachineState:
    """Return the state. `initializing`, `migrating`, `unknown` and unlisted words are STARTING: it may run soon."""
    if card.life:
        return MachineState.CREATING
    return _STATES.get(status, MachineState.STARTING)
