"""Pure functions that apply each request to the workload record, or raise why that is impossible.

A function without an effect returns its argument or an equal value. The caller updates `generation` and `template`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from hostler.engine.vm_changes import check_user_data
from hostler.engine.workloads import vm_template
from hostler.engine.workloads.vm_template import LABEL
from hostler.errors import Conflict, Invalid
from hostler.keys.families import VM
from hostler.keys.template import check_part
from hostler.model.lab import ORG as LABS
from hostler.model.lab import POOL_ORG
from hostler.model.name import fold
from hostler.model.vm import OnNodeLoss
from hostler.model.workload import ORG, Workload
from hostler.model.workload_api import MAX_NAME
from hostler.ports.store import PIECE_BYTES

if TYPE_CHECKING:
    from hostler.model.workload_api import WorkloadApply, WorkloadScale


def new_workload(wanted: WorkloadApply, wall: float) -> Workload:
    """Return a new workload. Raise Invalid if the request is not valid."""
    check_part(wanted.name, "workload")
    if len(wanted.name) > MAX_NAME:
        raise Invalid(f"workload {wanted.name[:MAX_NAME]!r}…: its name has more than {MAX_NAME} characters; shorten it")
    subject = f"workload {wanted.name}"
    org, project = wanted.org or ORG, wanted.project or fold(wanted.name)
    check_part(org, f"{subject}: org")
    check_part(project, f"{subject}: project")
    if org in (LABS, POOL_ORG):
        raise Invalid(f"{subject}: org {org} is for labs; name another")
    if wanted.rollout.max_unavailable == 0 and wanted.rollout.max_surge == 0:
        raise Invalid(
            f"{subject}: rollout: with max_unavailable and max_surge 0 nothing could ever be replaced; raise one"
        )
    if LABEL in wanted.labels:
        raise Invalid(f"{subject}: labels.{LABEL}: Hostler sets it to the workload's name; leave it out")
    check_user_data(wanted.spec.user_data)
    if wanted.spec.origin is not None:
        raise Invalid(f"{subject}: spec.origin: instances cannot begin as a snapshot; leave it out, and name an image")
    workload = Workload(
        name=wanted.name,
        org=org,
        project=project,
        enabled=wanted.enabled,
        instances=1 if wanted.instances is UNSET else wanted.instances,
        spec=wanted.spec,
        affinity=tuple(rule.rule() for rule in wanted.affinity),
        node_labels=wanted.node_labels,
        on_node_loss=wanted.on_node_loss,
        returns=wanted.on_node_loss is OnNodeLoss.FENCE,
        restart=wanted.restart,
        rollout=wanted.rollout,
        labels=wanted.labels,
        created_at=wall,
    )
    size = len(VM.encode(vm_template.vm_of_instance(workload, 1, vm="-", name=wanted.name, at=wall)))
    if size > PIECE_BYTES:  # every change of a VM writes its whole record, together with others
        raise Invalid(
            f"{subject}: each machine's record has {size} bytes, at most {PIECE_BYTES} are allowed; shorten user_data"
        )
    return workload


def apply(old: Workload, new: Workload, wanted: WorkloadApply) -> Workload:
    """Return `old` updated by the request. Raise Conflict if it is being deleted, or its VMs would change project."""
    _check_kept(old)
    if new.home != old.home:
        raise Conflict(
            f"workload {old.name}: its machines are in {'/'.join(old.home)} and cannot go to {'/'.join(new.home)};"
            " delete it and apply it again, or give it another name"
        )
    return msgspec.structs.replace(
        new,
        name=old.name,
        org=old.org,
        project=old.project,
        instances=old.instances if wanted.instances is UNSET else wanted.instances,
        generation=old.generation,
        template=old.template,
        had=old.had,
        created_at=old.created_at,
        unknown=old.unknown,
    )


def scale(old: Workload, wanted: WorkloadScale) -> Workload:
    """Return the workload with the requested changes. Raise Conflict if it is being deleted."""
    _check_kept(old)
    return msgspec.structs.replace(
        old,
        instances=old.instances if wanted.instances is UNSET else wanted.instances,
        enabled=old.enabled if wanted.enabled is UNSET else wanted.enabled,
    )


def delete(old: Workload) -> Workload:
    """Return the workload marked for deletion."""
    return old if old.deleting else msgspec.structs.replace(old, deleting=True)


def _check_kept(workload: Workload) -> None:
    if workload.deleting:
        raise Conflict(
            f"workload {workload.name}: it is being deleted; wait until it is gone"
            f" (hostler workload delete {workload.name} --wait), then apply it again"
        )
