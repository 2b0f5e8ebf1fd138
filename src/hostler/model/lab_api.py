"""HTTP API types for labs. The rules are those of `hostler.model.vm_api`."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.lab import LabId, LabNews, LabPhase, LabStatus, LabTemplate, WebUserId
from hostler.model.record import Record


class LabStart(Record, frozen=True, kw_only=True):
    """Start a lab for a user. It does not replace another running lab."""

    user: WebUserId
    lab_id: LabId = field(name="labId")


class LabExtend(Record, frozen=True, kw_only=True):
    """Extend a lab by a number of minutes from its current expiry."""

    minutes: Annotated[float, Meta(gt=0, le=7 * 24 * 60)]
    lab_id: LabId | UnsetType = field(name="labId", default=UNSET)
    """If given, extend only this lab."""


class LabMessage(Record, frozen=True, kw_only=True):
    """A message to the user of a lab: one line, without control characters."""

    text: Annotated[str, Meta(min_length=1, max_length=500)]


class LabView(Record, frozen=True, kw_only=True):
    """A user's lab."""

    user: str
    lab_id: int = field(name="labId")
    title: str
    phase: LabPhase
    status: LabStatus
    available: bool
    ssh_user: str
    address: str
    port: int
    """SSH port: 22, or a port on the node that forwards to it."""
    cloud_status: str
    server_id: str
    vm: str
    """The id of its VM, in the project `labs/{user}`."""
    node: str = ""
    """The node of its VM; empty: none."""
    position: int | None
    """Position in the waiting list, from 1; None: it does not wait."""
    requested_at: float
    expires_at: float | None
    grace: float
    again: int | None
    """The lab to start once this one has ended."""
    detail: str
    generation: int
    revision: int


class LabPage(Record, frozen=True, kw_only=True):
    """A page of labs, ordered by user."""

    items: tuple[LabView, ...]
    after: str | None
    revision: int


class LabNewsPage(Record, frozen=True, kw_only=True):
    """The most recent events of a user, oldest first."""

    items: tuple[LabNews, ...]


class LabAnswer(Record, frozen=True, kw_only=True):
    """The result of a request: the event, and the current lab (null: none)."""

    news: LabNews
    lab: LabView | None
    revision: int = 0


class LabOffer(Record, frozen=True, kw_only=True):
    """A lab of the catalogue, with its current usage."""

    lab_id: int | None = field(name="labId")
    """None: the default template, for every id."""
    template: LabTemplate
    running: int
    waiting: int
    warm: int
    """Number of ready VMs in the warm pool."""
    problems: tuple[str, ...] = ()
    """Problems with it on the current nodes: missing image, too little memory, user data that is not run."""


class LabOffers(Record, frozen=True, kw_only=True):
    """The catalogue."""

    items: tuple[LabOffer, ...]
    at_once: int | None
    running: int
    waiting: int
