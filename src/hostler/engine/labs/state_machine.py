"""Pure functions from a user's record and a request or observation to the changed record.

Every request adds one event, even if nothing else changes: the event is the answer. The functions that the controller
calls (from `admit` on) return the same object if nothing changes, or if the record now has another lab.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hostler.model.lab import NEWS_KEPT, Lab, LabEvent, LabNews, LabPhase, LabUse, LabUser, utc_time
from hostler.model.vm import MachineState, Step

if TYPE_CHECKING:
    from hostler.model.lab import LabCatalogue, LabTemplate
    from hostler.model.vm import VmHandle

DAY = 86400.0
LONGEST_REASON = 300
"""Maximum length of the event text for an invalid request."""
LEAST = 60.0
"""Minimum number of seconds that each start of a lab counts as, and that must be left for another start."""
UNREACHABLE = "its node is silent"
"""`detail` of a lab whose node is unreachable."""
PROVISIONED_WITHIN = 600.0
"""Seconds in which a lab with a node must become available."""


def add_event(record: LabUser, event: LabEvent, now: float, *, lab_id: int | None = None, reason: str = "") -> LabUser:
    """Return the record with one more event. Numbers continue; the last 16 events are kept."""
    news = LabNews(number=record.last_number + 1, at=now, event=event, lab_id=lab_id, reason=reason)
    return replace(record, news=(*record.news, news)[-NEWS_KEPT:], changed_at=now)


def mark_processed(record: LabUser, queue: str, token: str, *, at: float | None = None) -> LabUser:
    """Return the record with the request of that token marked as processed; `at`: when, if there is a rate limit."""
    times = record.worked_at if at is None else {**record.worked_at, queue: at}
    return replace(record, worked={**record.worked, queue: token}, worked_at=times)


# Requests of users


class LabStart(Struct, frozen=True):
    """A request to start a lab. `own`, `door`: as in `Lab`."""

    lab_id: int
    switch: bool
    """Whether it replaces another lab."""
    own: bool = False
    door: str = ""


def start(
    record: LabUser | None,
    user: str,
    request: LabStart,
    *,
    catalogue: LabCatalogue,
    now: float,
) -> LabUser:
    """Request a lab."""
    lab_id, switch, own, door = request.lab_id, request.switch, request.own, request.door
    record = record or LabUser(user=user, changed_at=now)
    template, lab = catalogue.find(lab_id), record.lab
    if template is None:
        return add_event(record, LabEvent.REFUSED, now, lab_id=lab_id, reason=_unknown(lab_id, catalogue))
    wanted = lab is None or lab.lab_id != lab_id or lab.phase is LabPhase.STOPPING
    if own and wanted and left_today(record, lab_id, template, now) < min(LEAST, template.life):
        return add_event(record, LabEvent.REFUSED, now, lab_id=lab_id, reason=_used_up(template, now))
    if lab is None:
        return add_event(
            _begin(record, lab_id, template, now, own=own, door=door), LabEvent.REQUESTED, now, lab_id=lab_id
        )
    if lab.phase is LabPhase.STOPPING:
        reason = f"once lab {lab.lab_id} is gone"
        if lab.again == lab_id:
            return add_event(record, LabEvent.ALREADY, now, lab_id=lab_id, reason=f"it is started {reason}")
        record = replace(record, lab=replace(lab, again=lab_id, own=own, door=door))
        return add_event(record, LabEvent.REQUESTED, now, lab_id=lab_id, reason=reason)
    if lab.lab_id == lab_id:
        return add_event(record, LabEvent.ALREADY, now, lab_id=lab_id, reason=f"it is {lab.phase.value}")
    if not switch:
        reason = f"lab {lab.lab_id} is active; stop it first"
        return add_event(record, LabEvent.REFUSED, now, lab_id=lab_id, reason=reason)
    if lab.phase is LabPhase.WAITING:  # it has no VM that must be removed first
        record, reason = _begin(record, lab_id, template, now, own=own, door=door), f"instead of lab {lab.lab_id}"
        return add_event(record, LabEvent.REQUESTED, now, lab_id=lab_id, reason=reason)
    ending = _ending(lab, LabEvent.STOPPED, f"for lab {lab_id}")
    record = replace(record, lab=replace(ending, again=lab_id, own=own, door=door), used=_usage(record, now))
    return add_event(record, LabEvent.STOPPING, now, lab_id=lab.lab_id, reason=f"lab {lab_id} follows")


def stop(record: LabUser | None, user: str, lab_id: int | None, *, now: float) -> LabUser:
    """Request the end of a lab; None: of any lab, and no other lab follows."""
    record = record or LabUser(user=user, changed_at=now)
    lab = record.lab
    if lab is None:
        return add_event(record, LabEvent.IGNORED, now, lab_id=lab_id, reason="there is no lab")
    if lab.phase is LabPhase.STOPPING:
        if lab.again is not None and lab_id in (None, lab.again):
            record = replace(record, lab=replace(lab, again=None))
            return add_event(
                record, LabEvent.STOPPING, now, lab_id=lab.lab_id, reason=f"lab {lab.again} does not follow"
            )
        if lab_id in (None, lab.lab_id):
            return add_event(record, LabEvent.ALREADY, now, lab_id=lab.lab_id, reason="it is stopping")
    if lab_id not in (None, lab.lab_id):
        return add_event(record, LabEvent.IGNORED, now, lab_id=lab_id, reason=f"lab {lab.lab_id} is active")
    return stopping(record, LabEvent.STOPPED, "", now)


def not_understood(record: LabUser | None, user: str, queue: str, why: str, *, now: float) -> LabUser:
    """Record that a request could not be understood. Nothing else changes."""
    record = record or LabUser(user=user, changed_at=now)
    event = LabEvent.REFUSED if queue == "provision" else LabEvent.IGNORED
    return add_event(record, event, now, reason=f"the request cannot be understood: {why}"[:LONGEST_REASON])


def is_for_after_a_stop(record: LabUser | None, lab_id: int, *, catalogue: LabCatalogue, switch: bool) -> bool:
    """Return whether a start is refused only because of another lab, which a waiting stop may end."""
    lab = None if record is None else record.lab
    there = lab is not None and lab.phase is not LabPhase.STOPPING and lab.lab_id != lab_id
    return there and not switch and catalogue.find(lab_id) is not None


def is_for_after_a_start(record: LabUser | None, lab_id: int | None) -> bool:
    """Return whether a stop is ignored only because the lab does not exist yet; a waiting start may begin it."""
    lab = None if record is None else record.lab
    if lab_id is None or (lab is not None and lab.phase is not LabPhase.STOPPING):
        return False
    return lab is None or lab_id not in (lab.lab_id, lab.again)


def extend(record: LabUser | None, user: str, minutes: float, lab_id: int | None, *, now: float) -> LabUser:
    """Extend the lab by a number of minutes; if a lab id is given, only that lab."""
    record = record or LabUser(user=user, changed_at=now)
    lab = record.lab
    reason = ""
    if lab is None:
        reason = "there is no lab to extend"
    elif lab_id not in (None, lab.lab_id):
        reason = f"lab {lab.lab_id} is active"
    elif lab.expires_at is None:
        reason = "it waits for its turn, and its time has not begun"
    elif lab.phase is LabPhase.STOPPING:
        reason = "it is stopping; start it again"
    if lab is None or lab.expires_at is None or reason:
        lab_id = lab.lab_id if lab_id is None and lab is not None else lab_id
        return add_event(record, LabEvent.REFUSED, now, lab_id=lab_id, reason=reason)
    end = lab.expires_at + minutes * 60.0
    record = replace(record, lab=replace(lab, expires_at=end, warned=False))
    return add_event(record, LabEvent.EXTENDED, now, lab_id=lab.lab_id, reason=f"it ends at {utc_time(end)}")


def message(record: LabUser, text: str, *, now: float) -> LabUser:
    """Add a message to the user. Nothing else changes."""
    lab_id = None if record.lab is None else record.lab.lab_id
    said = LabNews(number=record.last_number + 1, at=now, event=LabEvent.MESSAGE, lab_id=lab_id, reason=text)
    return replace(record, messages=(*record.messages, said)[-NEWS_KEPT:], changed_at=now)


def record_attendance(record: LabUser, generation: int, at: float, now: float) -> LabUser:
    """Record that a terminal of the lab of that generation was open. Return the same object if nothing changes."""
    lab = record.lab
    if lab is None or lab.generation != generation or lab.phase is LabPhase.STOPPING or at <= (lab.terminal_at or 0.0):
        return record
    return replace(record, lab=replace(lab, terminal_at=at), changed_at=now)


# Actions and observations of the controller


def put_off(record: LabUser, position: int, reason: str, now: float) -> LabUser:
    """Record why the lab waits. The event is added once; `detail` follows the reason."""
    lab = record.lab
    if lab is None or lab.phase is not LabPhase.WAITING or lab.detail == reason:
        return record
    first = not lab.detail
    record = replace(record, lab=replace(lab, detail=reason), changed_at=now)
    if not first:
        return record
    return add_event(record, LabEvent.WAITING, now, lab_id=lab.lab_id, reason=f"position {position}: {reason}")


def admit(record: LabUser, vm: str, template: LabTemplate, now: float) -> LabUser:
    """Give the lab the VM of that id, new or from the pool, and start its lifetime."""
    lab = record.lab
    if lab is None or lab.phase is not LabPhase.WAITING:
        return record
    life = min(template.life, left_today(record, lab.lab_id, template, now)) if lab.own else template.life
    lab = replace(
        lab,
        phase=LabPhase.PROVISIONING,
        vm=vm,
        user=template.user,
        life=life,
        grace=template.grace,
        expires_at=now + life,
        provisioned_by=now + PROVISIONED_WITHIN,
        detail="",
    )
    return add_event(replace(record, lab=lab), LabEvent.STARTED, now, lab_id=lab.lab_id)


def observe(record: LabUser, handle: VmHandle, now: float, *, silent: bool = False) -> LabUser:
    """Update the lab from the handle of its VM. A handle of another VM is ignored.

    `silent`: the node is unreachable. The lab is then not available; it still ends when its time is over.
    """
    lab = record.lab
    if lab is None or not lab.vm or lab.vm != handle.id:
        return record
    runs, readiness, access = handle.state is MachineState.RUNNING, handle.readiness, handle.access
    cloud_status = handle.cloud_status or handle.state.value
    if lab.phase is LabPhase.STOPPING:  # keep its last address and server id readable
        new = replace(lab, machine_runs=runs, available=False, cloud_status=cloud_status)
        return record if new == lab else replace(record, lab=new, changed_at=now)
    available = runs and readiness is not None and readiness.step is Step.AVAILABLE and not (silent or handle.paused)
    new = replace(
        lab,
        machine_runs=runs,
        available=available,
        cloud_status=cloud_status,
        server_id=handle.machine,
        address=handle.address if access is None else access.host,
        port=22 if access is None else access.port,
        detail=UNREACHABLE if silent else handle.detail or ("" if readiness is None else readiness.cause),
    )
    if lab.phase is LabPhase.PROVISIONING:
        new = replace(new, provisioned_by=_limit(lab, handle, now), expires_at=_end(lab, handle, now))
        if available:
            new = replace(new, phase=LabPhase.RUNNING)
            return add_event(replace(record, lab=new), LabEvent.AVAILABLE, now, lab_id=lab.lab_id)
    return record if new == lab else replace(record, lab=new, changed_at=now)


def warn(record: LabUser, now: float) -> LabUser:
    """Warn the user that the lab ends soon: once, and again after each extension."""
    lab = record.lab
    if lab is None or lab.warned or lab.expires_at is None or lab.phase is LabPhase.STOPPING:
        return record
    record = replace(record, lab=replace(lab, warned=True))
    return add_event(
        record, LabEvent.EXPIRES_SOON, now, lab_id=lab.lab_id, reason=f"it ends at {utc_time(lab.expires_at)}"
    )


def stopping(record: LabUser, ending: LabEvent, reason: str, now: float) -> LabUser:
    """End the lab: its VM is to be removed, and then `ending` is reported. Without a VM it ends at once."""
    lab = record.lab
    if lab is None or lab.phase is LabPhase.STOPPING:
        return record
    if lab.phase is LabPhase.WAITING:
        return add_event(replace(record, lab=None), ending, now, lab_id=lab.lab_id, reason=reason)
    record = replace(
        record, lab=_ending(lab, ending, reason), used=_usage(record, now, failed=ending is LabEvent.FAILED)
    )
    return add_event(record, LabEvent.STOPPING, now, lab_id=lab.lab_id, reason=reason)


def gone(record: LabUser, now: float, catalogue: LabCatalogue) -> LabUser:
    """End the lab after its VM is gone, and start the next one if requested."""
    lab = record.lab
    if lab is None or lab.phase is LabPhase.WAITING:
        return record
    ending, reason = lab.ending or LabEvent.FAILED, lab.ending_reason
    if lab.phase is not LabPhase.STOPPING:
        ending, reason = LabEvent.FAILED, "its machine was deleted"
        record = replace(record, used=_usage(record, now, failed=True))
    record = add_event(replace(record, lab=None), ending, now, lab_id=lab.lab_id, reason=reason)
    if lab.again is None:
        return record
    own, door = lab.own, lab.door
    request = LabStart(lab.again, switch=False, own=own, door=door)
    return start(record, record.user, request, catalogue=catalogue, now=now)


# Internals


def left_today(record: LabUser, lab_id: int, template: LabTemplate, now: float) -> float:
    """Return how many seconds of the lab its user may still use today, if the user starts it."""
    use = record.used.get(str(lab_id))
    spent = use.seconds if use is not None and use.day == int(now // DAY) else 0.0
    return (template.life if template.per_day is None else template.per_day) - spent


def _usage(record: LabUser, now: float, *, failed: bool = False) -> dict[str, LabUse]:
    """Return the user's usage of each lab today, including the one that ends now.

    Time that a teacher added does not count, nor does a lab that failed before it was ever available.
    """
    lab, today = record.lab, int(now // DAY)
    used = {name: use for name, use in record.used.items() if use.day == today}
    if lab is None or lab.expires_at is None or (failed and lab.phase is LabPhase.PROVISIONING):
        return used
    before = used[str(lab.lab_id)].seconds if str(lab.lab_id) in used else 0.0
    had = min(max(lab.life - (lab.expires_at - now), LEAST), lab.life)
    return used | {str(lab.lab_id): LabUse(day=today, seconds=before + had)}


def _used_up(template: LabTemplate, now: float) -> str:
    day = template.life if template.per_day is None else template.per_day
    again = utc_time((now // DAY + 1) * DAY)
    return (
        f"its time for today is used up ({day / 60:.0f} min); start it after {again}, or ask your teacher to start it"
    )


def _begin(record: LabUser, lab_id: int, template: LabTemplate, now: float, *, own: bool, door: str) -> LabUser:
    generation = record.generation + 1
    lab = Lab(
        lab_id=lab_id,
        generation=generation,
        phase=LabPhase.WAITING,
        requested_at=now,
        life=template.life,
        grace=template.grace,
        user=template.user,
        own=own,
        door=door,
    )
    return replace(record, generation=generation, lab=lab)


def _ending(lab: Lab, ending: LabEvent, reason: str) -> Lab:
    return replace(lab, phase=LabPhase.STOPPING, ending=ending, ending_reason=reason, available=False, detail="")


def _limit(lab: Lab, handle: VmHandle, now: float) -> float | None:
    """Return the deadline to become available: None while no node has room; the full time from when one has."""
    if handle.state is MachineState.PENDING:
        return None
    return now + PROVISIONED_WITHIN if lab.provisioned_by is None else lab.provisioned_by


def _end(lab: Lab, handle: VmHandle, now: float) -> float | None:
    """Return the expiry. While no node has room it is postponed at intervals, so that the full lifetime remains."""
    if lab.expires_at is None:
        return None
    pending = handle.state is MachineState.PENDING
    if (pending and now >= lab.expires_at - lab.life / 2) or (not pending and lab.provisioned_by is None):
        return max(lab.expires_at, now + lab.life)
    return lab.expires_at


def _unknown(lab_id: int, catalogue: LabCatalogue) -> str:
    known = sorted(catalogue.labs or (), key=lambda name: (len(name), name))
    if not known:
        return f"there is no lab {lab_id}; the catalogue is empty"
    shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
    return f"there is no lab {lab_id}; there are {shown}"
