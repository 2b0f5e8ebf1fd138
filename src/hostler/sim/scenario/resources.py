"""Machines and labs in the file of a scenario; workloads are as in `engine.workloads.document`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hostler.engine.deployments.blueprint_file import faults
from hostler.errors import Invalid
from hostler.keys.lab import check_user
from hostler.kit.yaml import Piece
from hostler.model.deployment import Blueprint
from hostler.model.lab import LabCatalogue
from hostler.model.rollout import BLUEPRINT_NAME
from hostler.model.vm import Affinity, Level, OnNodeLoss, Power, VmSpec
from hostler.model.vm_api import MAX_NAME, VmCreate
from hostler.settings.value import mebibytes_of, seconds_of
from hostler.sim.scenario.actions import RequestedLab, RequestedVm

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

ORG, PROJECT = "acme", "shop"
MOST = 100_000
SMALL = 256
"""Default memory of a machine, in MiB."""
_SHAPE = ("cpus", "memory", "disk")
_PLACING = ("affinity", "on_node_loss", "labels", "node_labels")
_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+)\]")


def seconds(piece: Piece, *, least: float = 0.0, most: float = 7 * 86400.0) -> float:
    """Parse a duration: seconds, or `90s`, `5m`, `1h30m`."""
    value = piece.value
    try:
        found = seconds_of(value) if not isinstance(value, float) else value
    except ValueError as error:
        piece.doubt(str(error))
        return least
    if not least <= found <= most:
        piece.doubt(f"must be from {least:g} to {most:g} seconds")
        return least
    return found


def parse_record(piece: Piece, kind: type[T], otherwise: T) -> T:
    """Parse a record. An error is reported at its position; the result is then `otherwise`."""
    try:
        return msgspec.convert(piece.plain(), kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        where = piece
        for name, number in _STEP.findall(path):
            inside = where.node.value
            if isinstance(inside, dict) and name in inside:
                where = Piece(inside[name], where.place.field(name, inside[name].key_line), where.doubts)
            elif isinstance(inside, list) and number:
                where = where.items()[int(number)]
        where.doubt(what[:1].lower() + what[1:])
        return otherwise


def name_in(piece: Piece, fields: Mapping[str, Piece], field: str = "name", most: int = MAX_NAME) -> str:
    """Return the required name."""
    return fields[field].text(least=1, most=most) if field in fields else piece.missing(field)


def vms_of(piece: Piece) -> RequestedVm:
    """Parse an item of `vms`: one machine, or `count` machines called NAME-1, NAME-2, …"""
    fields = piece.fields("name", "count", "org", "project", "power", "expires", *_SHAPE, *_PLACING)
    name = name_in(piece, fields, most=MAX_NAME - 7)
    names = numbered_names(fields, name)
    labels = _labels(fields, "labels")
    return RequestedVm(
        org=fields["org"].text(least=1, most=255) if "org" in fields else ORG,
        project=fields["project"].text(least=1, most=255) if "project" in fields else PROJECT,
        names=names,
        wanted=VmCreate(
            name=names[0] or "?",
            spec=_spec(fields),
            power=Power(_choice(fields, "power", Power.ON, Power.OFF)),
            labels=labels,
            on_node_loss=OnNodeLoss(
                _choice(fields, "on_node_loss", OnNodeLoss.RECREATE, OnNodeLoss.FENCE, OnNodeLoss.WAIT)
            ),
            affinity=_affinity(fields, labels),
            node_labels=_labels(fields, "node_labels"),
            expires_in=seconds(fields["expires"], least=1.0) if "expires" in fields else None,
        ),
    )


def vm_names(piece: Piece, fields: Mapping[str, Piece]) -> tuple[str, str, tuple[str, ...]]:
    """Parse a reference to machines: org, project and names."""
    return (
        fields["org"].text(least=1, most=255) if "org" in fields else ORG,
        fields["project"].text(least=1, most=255) if "project" in fields else PROJECT,
        numbered_names(fields, name_in(piece, fields)),
    )


def labs_of(piece: Piece, fields: Mapping[str, Piece] | None = None) -> RequestedLab:
    """Parse an item of `labs`: a user with a lab, or `count` users called USER-1, USER-2, …"""
    fields = piece.fields("user", "count", "lab") if fields is None else fields
    return RequestedLab(users=users_of(piece, fields), lab_id=fields["lab"].whole(least=1) if "lab" in fields else 1)


def users_of(piece: Piece, fields: Mapping[str, Piece]) -> tuple[str, ...]:
    """Parse the users of labs."""
    user = name_in(piece, fields, "user", most=200)
    try:
        check_user(user or "nobody")
    except Invalid as error:
        fields["user"].doubt(str(error))
    return numbered_names(fields, user)


def catalogue_of(piece: Piece) -> LabCatalogue:
    """Parse `catalogue`: the configuration of labs. Durations are seconds."""
    return parse_record(piece, LabCatalogue, LabCatalogue())


def blueprint_of(piece: Piece) -> Blueprint:
    """Parse an item of `blueprints`, as `hostler blueprint apply` takes it.

    Its needs are checked when it is applied.
    """
    nothing = Blueprint(slices=())
    found = parse_record(piece, Blueprint, nothing)
    if found is not nothing:
        for fault in faults(found):
            piece.doubt(fault.what, field=fault.place)
    return found


def blueprint_name(piece: Piece, name: str) -> str:
    """Return the name of a blueprint."""
    if re.search(BLUEPRINT_NAME, name) is None:
        piece.doubt("a blueprint's name consists of a-z, 0-9 and . _ -, at most 63 characters")
    return name


def base_of(piece: Piece) -> str:
    """Parse `group:name`, without a version."""
    text = piece.text(least=1)
    if text.count(":") != 1:
        piece.doubt("must be group:name")
    return text


def numbered_names(fields: Mapping[str, Piece], name: str) -> tuple[str, ...]:
    """Return NAME; with a `count` NAME-1, NAME-2, …"""
    if "count" not in fields:
        return (name,)
    return tuple(f"{name}-{number}" for number in range(1, fields["count"].whole(least=1, most=MOST) + 1))


def _spec(fields: Mapping[str, Piece]) -> VmSpec:
    return VmSpec(
        cpus=fields["cpus"].whole(least=1, most=4096) if "cpus" in fields else 1,
        memory_mib=_mebibytes(fields["memory"], least=1) if "memory" in fields else SMALL,
        disk_gib=_mebibytes(fields["disk"]) // 1024 if "disk" in fields else 0,
    )


def _mebibytes(piece: Piece, *, least: int = 0) -> int:
    try:
        found = mebibytes_of(piece.value)
    except ValueError as error:
        piece.doubt(str(error))
        return least
    if not least <= found <= 2**30:
        piece.doubt(f"must be from {least}MiB to 1PiB")
        return least
    return found


def _affinity(fields: Mapping[str, Piece], own: dict[str, str]) -> tuple[Affinity, ...]:
    """Parse rules; a rule without labels applies to machines with the same labels as this one."""
    if "affinity" not in fields:
        return ()
    found = []
    for piece in fields["affinity"].items():
        inside = piece.fields("together", "level", "labels", "required")
        for field in ("together", "level"):
            if field not in inside:
                piece.missing(field)
        found.append(
            Affinity(
                together=inside["together"].flag() if "together" in inside else False,
                level=_level(inside),
                labels=_labels(inside, "labels") or own,
                required=inside["required"].flag() if "required" in inside else True,
            )
        )
    return tuple(found)


def _level(fields: Mapping[str, Piece]) -> Level:
    return Level(_choice(fields, "level", *Level))


def _labels(fields: Mapping[str, Piece], name: str) -> dict[str, str]:
    if name not in fields:
        return {}
    return {label: piece.text(most=255) for label, piece in fields[name].fields().items()}


def _choice(fields: Mapping[str, Piece], name: str, *options: str) -> str:
    return fields[name].choice(*options) if name in fields else options[0]
