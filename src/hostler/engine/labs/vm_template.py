"""The VM of a lab. Pure; used for VMs created on demand and for the warm pool."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hostler.model.lab import LAB_LABEL, SHAPE_LABEL, USER_LABEL
from hostler.model.vm import VmSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.model.lab import LabTemplate

MACHINES_LABEL = "machines"
"""Node label with the kind of machines that the node creates."""


def shape_of(template: LabTemplate, keys: Sequence[str]) -> VmSpec:
    """Return the spec of the VM. `keys`: public SSH keys that may log in, in addition to the template's."""
    return VmSpec(
        cpus=template.cpus,
        memory_mib=template.memory_mib,
        disk_gib=template.disk_gib,
        image=template.image,
        user_data=template.user_data,
        ssh_keys=tuple(dict.fromkeys((*template.ssh_keys, *keys))),
        user=template.user,
    )


def digest(template: LabTemplate) -> str:
    """Return a digest that is equal exactly for VMs of the same spec.

    Keys that a leader adds do not count: the next leader may have others, and ready VMs stay usable.
    """
    return hashlib.sha256(shape_of(template, ()).encode()).hexdigest()[:12]


def labels_of(lab_id: int, user: str, template: LabTemplate) -> dict[str, str]:
    """Return the labels of a lab's VM."""
    return {LAB_LABEL: str(lab_id), USER_LABEL: user, SHAPE_LABEL: digest(template)}


def node_labels_of(template: LabTemplate) -> dict[str, str]:
    """Return the labels that a node must have."""
    return {MACHINES_LABEL: template.provider} if template.provider else {}
