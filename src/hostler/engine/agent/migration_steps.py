"""Migrations from the view of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.agent.decide import Going
from hostler.engine.agent.migration import Given, not_live
from hostler.errors import Closed, HostlerError, NotFound, Refused, Unavailable, Uncertain
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from hostler.engine.agent.migration import Migrations
    from hostler.engine.agent.status_reporter import ReportedMachine
    from hostler.keys.entry import Entry
    from hostler.model.node import Arrival, Departure, VmCommand
    from hostler.ports.machines import Machine

_OFF = (MachineState.STOPPED, MachineState.FAILED)


def going(command: VmCommand, known: ReportedMachine, seen: Machine | None, node: str) -> Going:
    """Return the state of a migration: whether to continue it, and whether a departed machine may resume here.

    The final transaction compares the command and the handle that it was based on, so it cannot succeed once either has
    changed. If neither has changed, only the process that sent the transaction knows its outcome, if it got an answer.
    """
    departing, handle = command.departing, known.handle
    ours = handle is not None and handle.node == node
    if seen is None or departing is None or handle is None:
        return Going(stays=departing is None)
    over = handle.attempt >= departing.number
    sends = ours and not over and not known.has_given_up(departing)
    if departing.number != seen.moved:
        return Going(sends=sends, cold=known.cold == departing.number)
    certain = over or (known.has_given_up(departing) and known.doubt != departing.number)
    return Going(sends=sends, cold=known.cold == departing.number, stays=ours and certain)


def is_stray(command: VmCommand, seen: Machine) -> bool:
    """Return whether an arriving machine belongs to an abandoned migration, while a new one is to be created here.

    Only the command can tell: it was written when the migration completed, or when it was certain that no node has the
    machine. The numbers in the handle continue to grow with every later migration that is given up.
    """
    return seen.state is MachineState.ARRIVING and command.arrived == 0


async def leave(handovers: Migrations, known: ReportedMachine, entry: Entry[VmCommand], seen: Machine) -> bool:
    """Migrate a machine; True: the other node has it. Otherwise it is known whether the migration was given up."""
    command, departing = entry.value, entry.value.departing
    if departing is None:
        return False
    if seen.state is not MachineState.DEPARTED:
        known.sent = departing.number
    elif known.sent != departing.number:
        known.doubt = departing.number  # an earlier process let it depart, and may have completed the migration
    try:
        arrival = await handovers.expected(command.vm, departing)
    except (HostlerError, TimeoutError) as error:
        raise Unavailable(f"the store does not say whether node {departing.to} expects it: {error}") from None
    if arrival is None:
        known.gives_up(departing, "that node does not expect it; request the move again")
        return False
    if not await _sent(handovers, known, entry, arrival, seen):
        return False
    given = await handovers.give(known, entry, arrival)
    if given is Given.UNKNOWN:
        known.doubt = departing.number
        known.read = False
        raise Uncertain("the store did not answer the final transaction of the move; its outcome is read next")
    if given is Given.KEPT:
        known.gives_up(departing, "that node or the spec changed before the move was complete; request the move again")
    return given is Given.OVER


async def _sent(
    handovers: Migrations, known: ReportedMachine, entry: Entry[VmCommand], arrival: Entry[Arrival], seen: Machine
) -> bool:
    departing = entry.value.departing
    if departing is None:
        return False
    runs = seen.state not in (*_OFF, MachineState.DEPARTED)
    why = not_live(seen, arrival.value.command.spec) if runs else ""
    try:
        if why:
            raise Refused(why)
        await handovers.send(entry.value, departing, live=seen.state not in _OFF)
    except HostlerError as error:
        known.read = False  # sending takes long, so the handle may have changed
        _not_sent(known, departing, error, runs=runs)
        return False
    return True


def _not_sent(known: ReportedMachine, departing: Departure, error: HostlerError, *, runs: bool) -> None:
    refused = isinstance(error, Refused) and not isinstance(error, NotFound | Closed)
    if refused and runs and departing.stop and known.cold != departing.number:
        known.cold = departing.number
    else:
        known.gives_up(departing, str(error))
