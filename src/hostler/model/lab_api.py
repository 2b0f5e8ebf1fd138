"""What the HTTP API takes and gives about labs; as `model.api`."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from hostler.model.lab import LabId, LabNews, LabPhase, LabStatus, LabTemplate, WebUserId
from hostler.model.record import Record


class LabStart(Record, frozen=True, kw_only=True):
    """Start a lab for a user. Another one that runs is not replaced."""

    user: WebUserId
    lab_id: LabId = field(name="labId")


class LabExtend(Record, frozen=True, kw_only=True):
    """Let it live longer: so many minutes from its present end."""

    minutes: Annotated[float, Meta(gt=0, le=7 * 24 * 60)]
    lab_id: LabId | UnsetType = field(name="labId", default=UNSET)
    """Only if it is this lab."""


class LabMessage(Record, frozen=True, kw_only=True):
    """Say something to the user of a lab: one line, without control characters."""

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
    """Of SSH: 22, or one that leads there on the node."""
    cloud_status: str
    server_id: str
    vm: str
    """The id of its machine, in the project `labs/{user}`."""
    node: str = ""
    """That has its machine; empty: none has."""
    position: int | None
    """Among those that wait, from 1; None: it does not."""
    requested_at: float
    expires_at: float | None
    grace: float
    again: int | None
    """The lab that is started once this one is gone."""
    detail: str
    generation: int
    revision: int


class LabPage(Record, frozen=True, kw_only=True):
    """Labs in order of their users."""

    items: tuple[LabView, ...]
    after: str | None
    revision: int


class LabNewsPage(Record, frozen=True, kw_only=True):
    """The last that happened to a user, oldest first."""

    items: tuple[LabNews, ...]


class LabAnswer(Record, frozen=True, kw_only=True):
    """What became of a request: the news of it, and the lab as it is now (null: there is none)."""

    news: LabNews
    lab: LabView | None
    revision: int = 0


class LabOffer(Record, frozen=True, kw_only=True):
    """A lab of the catalogue, and how it stands with it."""

    lab_id: int | None = field(name="labId")
    """None: the default, for every id."""
    template: LabTemplate
    running: int
    waiting: int
    warm: int
    """Machines that are ready ahead."""
    problems: tuple[str, ...] = ()
    """What is wrong with it on the nodes that there are: no image, too little memory, user data that is not run."""


class LabOffers(Record, frozen=True, kw_only=True):
    """The catalogue."""

    items: tuple[LabOffer, ...]
    at_once: int | None
    running: int
    waiting: int
