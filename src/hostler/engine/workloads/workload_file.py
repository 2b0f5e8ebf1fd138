"""Workload files in YAML or JSON. The format: docs/workloads.md.

`read_workload(text, file)` reads a file, `workload_of(piece)` a part of one. Errors are reported with their lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from hostler.engine.hardware_document import accelerators_and_volumes
from hostler.errors import Invalid
from hostler.kit.yaml import Doubts, read
from hostler.model.vm import Level, OnNodeLoss, RestartPolicy, VmSpec, architecture
from hostler.model.workload import Rollout
from hostler.model.workload_api import MAX_NAME, WorkloadApply, WorkloadRule
from hostler.settings.value import mebibytes_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.kit.yaml import Piece

_SHAPE = (
    *("cpus", "memory", "memory_mib", "disk", "disk_gib", "image"),
    *("user", "user_data", "network_config", "ssh_keys", "cpu_share", "arch", "accelerators", "volumes"),
)
_LONG = 1024 * 1024
MOST = 1_000_000


def read_workload(text: str | bytes, file: str = "workload") -> WorkloadApply:
    """Parse a file. Raise Invalid if it has errors; the message has one line for each."""
    doubts = Doubts(file)
    top = read(text, doubts)
    found = None if top is None else workload_of(top)
    if doubts or found is None:
        raise Invalid("\n".join(doubts.lines()))
    return found


def workload_of(top: Piece) -> WorkloadApply:
    """Parse a part of a file. Errors are added to its doubts; then the returned value must not be used."""
    fields = top.fields(
        *("name", "org", "project", "enabled", "instances", "spec", *_SHAPE, "affinity", "node_labels"),
        *("on_node_loss", "restart", "rollout", "labels"),
    )
    name = fields["name"].text(least=1, most=MAX_NAME) if "name" in fields else top.missing("name")
    return WorkloadApply(
        name=name or "?",
        org=_text(fields, "org", 255),
        project=_text(fields, "project", 255),
        enabled=fields["enabled"].flag() if "enabled" in fields else True,
        instances=fields["instances"].whole(most=MOST) if "instances" in fields else UNSET,
        spec=_spec(top, fields),
        affinity=tuple(_rule(piece) for piece in fields["affinity"].items()) if "affinity" in fields else (),
        node_labels=_labels(fields, "node_labels"),
        on_node_loss=OnNodeLoss(
            _choice(fields, "on_node_loss", OnNodeLoss.WAIT, OnNodeLoss.FENCE, OnNodeLoss.RECREATE)
        ),
        restart=RestartPolicy(_choice(fields, "restart", *RestartPolicy)),
        rollout=_rollout(fields["rollout"]) if "rollout" in fields else Rollout(),
        labels=_labels(fields, "labels"),
    )


def _spec(top: Piece, fields: Mapping[str, Piece]) -> VmSpec:
    """Parse the spec, which is under `spec` or at the top level."""
    at_top = [name for name in _SHAPE if name in fields]
    if "spec" in fields:
        for name in at_top:
            fields[name].doubt("is next to spec; put it into spec")
        top, fields = fields["spec"], fields["spec"].fields(*_SHAPE)
    memory = _size(top, fields, "memory", "memory_mib", 1)
    if not memory:
        top.missing("memory")
    if "cpus" not in fields:
        top.missing("cpus")
    keys = fields["ssh_keys"].items() if "ssh_keys" in fields else []
    more: dict[str, Any] = {}
    if "cpu_share" in fields:
        more["cpu_share"] = fields["cpu_share"].whole(least=1, most=10_000)
    more["accelerators"], more["volumes"] = accelerators_and_volumes(fields)
    return VmSpec(
        cpus=fields["cpus"].whole(least=1, most=4096) if "cpus" in fields else 1,
        memory_mib=memory or 1,
        disk_gib=_size(top, fields, "disk", "disk_gib", 1024) or 0,
        image=_text(fields, "image", 255),
        arch=architecture(_text(fields, "arch", 32)),
        user=_text(fields, "user", 32),
        user_data=_text(fields, "user_data", _LONG),
        network_config=_text(fields, "network_config", _LONG),
        ssh_keys=tuple(piece.text(least=1, most=16_384) for piece in keys),
        **more,
    )


def _size(top: Piece, fields: Mapping[str, Piece], name: str, exact: str, unit: int) -> int | None:
    """Parse `memory: 2GiB` or `memory_mib: 2048`; None: neither is given. `unit` is in MiB."""
    if name in fields and exact in fields:
        top.doubt(f"is given twice, also as {exact}; leave one out", field=name)
    if exact in fields:
        return fields[exact].whole(least=0 if unit > 1 else 1, most=2**30)
    if name not in fields:
        return None
    try:
        found = mebibytes_of(fields[name].value)
    except ValueError as error:
        fields[name].doubt(str(error))
        return 1
    if not (0 if unit > 1 else 1) <= found // unit <= 2**30 or found % unit:
        fields[name].doubt("must be whole GiB; write 10GiB" if unit > 1 else "must be from 1 MiB to 1 PiB")
        return 1
    return found // unit


def _rule(piece: Piece) -> WorkloadRule:
    fields = piece.fields("together", "level", "labels", "required")
    for name in ("together", "level"):
        if name not in fields:
            piece.missing(name)
    return WorkloadRule(
        together=fields["together"].flag() if "together" in fields else False,
        level=Level(_choice(fields, "level", *Level)),
        labels=_labels(fields, "labels"),
        required=fields["required"].flag() if "required" in fields else True,
    )


def _rollout(piece: Piece) -> Rollout:
    fields = piece.fields("max_unavailable", "max_surge")
    found: dict[str, Any] = {name: field.whole(most=10_000) for name, field in fields.items()}
    return Rollout(**found)


def _labels(fields: Mapping[str, Piece], name: str) -> dict[str, str]:
    return {label: piece.text(most=255) for label, piece in fields[name].fields().items()} if name in fields else {}


def _text(fields: Mapping[str, Piece], name: str, most: int) -> str:
    return fields[name].text(most=most) if name in fields else ""


def _choice(fields: Mapping[str, Piece], name: str, *options: str) -> str:
    return fields[name].choice(*options) if name in fields else options[0]
