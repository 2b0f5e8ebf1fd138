"""Blueprints, the slices that come of them, and the endpoints of those."""

from __future__ import annotations

import enum
import re
from typing import Annotated, Self

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from hostler.errors import Invalid
from hostler.model.record import Record

MAX_ARTIFACT = 255
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._+-]*"
_ARTIFACT = rf"^{_WORD}:{_WORD}:{_WORD}$(?!\n)"
ArtifactText = Annotated[str, Meta(pattern=_ARTIFACT, max_length=MAX_ARTIFACT)]
InstanceNumber = Annotated[int, Meta(ge=1)]


class Artifact(msgspec.Struct, frozen=True, order=True):
    """What a slice is made of: `group:name:version`. Text in records and keys; `str()` gives it back."""

    group: str
    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """The artifact that `text` names. Invalid: it names none."""
        if not isinstance(text, str) or len(text) > MAX_ARTIFACT or re.search(_ARTIFACT, text) is None:
            raise Invalid(
                f"artifact {text!r}: must be group:name:version, each of letters, digits and . _ + -,"
                f" at most {MAX_ARTIFACT} characters in all"
            )
        return cls(*text.split(":"))

    def __str__(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"


class SliceSpec(Record, frozen=True, kw_only=True):
    """How many of what."""

    artifact: ArtifactText
    instances: InstanceNumber


class Blueprint(Record, frozen=True, kw_only=True):
    """`blueprints/{name}`: the slices that shall run."""

    slices: tuple[SliceSpec, ...]


class SliceState(enum.StrEnum):
    """Commands (LOAD, ACTIVATE, DEACTIVATE, UNLOAD) are the leader's; the answers to them are the node's."""

    LOAD = "LOAD"
    LOADING = "LOADING"
    LOADED = "LOADED"
    ACTIVATE = "ACTIVATE"
    ACTIVATING = "ACTIVATING"
    ACTIVE = "ACTIVE"
    DEACTIVATE = "DEACTIVATE"
    DEACTIVATING = "DEACTIVATING"
    UNLOAD = "UNLOAD"
    UNLOADING = "UNLOADING"
    FAILED = "FAILED"


_S = SliceState
MOVES: dict[SliceState | None, frozenset[SliceState | None]] = {
    None: frozenset({_S.LOAD}),
    _S.LOAD: frozenset({_S.LOADING, _S.UNLOAD}),
    _S.LOADING: frozenset({_S.LOADED, _S.FAILED}),
    _S.LOADED: frozenset({_S.ACTIVATE, _S.UNLOAD}),
    _S.ACTIVATE: frozenset({_S.ACTIVATING, _S.FAILED}),
    _S.ACTIVATING: frozenset({_S.ACTIVE, _S.FAILED}),
    _S.ACTIVE: frozenset({_S.DEACTIVATE, _S.FAILED}),
    _S.DEACTIVATE: frozenset({_S.DEACTIVATING, _S.FAILED}),
    _S.DEACTIVATING: frozenset({_S.LOADED, _S.FAILED}),
    _S.FAILED: frozenset({_S.UNLOAD}),
    _S.UNLOAD: frozenset({_S.UNLOADING}),
    _S.UNLOADING: frozenset({None, _S.FAILED}),
}
"""Where each state may go. None: there is no such slice on the node."""


def may_move(old: SliceState | None, new: SliceState | None, *, node_dead: bool = False) -> bool:
    """Whether a slice may go from `old` to `new` (None: it is not there). Staying is no move.

    `node_dead`: the leader knows that the node is dead, and may drop the slice whatever its state.
    """
    if node_dead and old is not None and new is None:
        return True
    return new in MOVES[old]


class SliceInstance(Record, frozen=True, kw_only=True):
    """One of several instances that share a slice key."""

    state: SliceState


class SliceRecord(Record, frozen=True, kw_only=True):
    """`slices/{node-id}/{artifact}`. With several instances, `state` is their aggregate."""

    state: SliceState
    timestamp: Annotated[int, Meta(ge=0)]
    instances: dict[int, SliceInstance] | UnsetType = UNSET


class Endpoint(Record, frozen=True, kw_only=True):
    """`endpoints/{artifact}/{method-name}:{instance}`: where a method can be called."""

    node_id: str = field(name="node-id")
    instance: InstanceNumber
    state: SliceState
