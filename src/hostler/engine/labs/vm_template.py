"""What a lab's machine is made of. Pure; shared by what makes machines on demand and what makes them ahead."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from hostler.model.lab import LAB_LABEL, SHAPE_LABEL, USER_LABEL
from hostler.model.vm import VmSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.model.lab import LabTemplate

MACHINES_LABEL = "machines"
"""Of a node: the kind of machines it makes."""


def shape_of(template: LabTemplate, keys: Sequence[str]) -> VmSpec:
    """The machine's shape. `keys`: public SSH keys that may log in beside those of the template."""
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
    """The same for machines of the same shape, and for no others.

    Keys that a leader adds do not count: the next one may have others, and what is ready stays so.
    """
    return hashlib.sha256(shape_of(template, ()).encode()).hexdigest()[:12]


def labels_of(lab_id: int, user: str, template: LabTemplate) -> dict[str, str]:
    """The labels of a lab's machine."""
    return {LAB_LABEL: str(lab_id), USER_LABEL: user, SHAPE_LABEL: digest(template)}


def node_labels_of(template: LabTemplate) -> dict[str, str]:
    """What a node must be labelled with."""
    return {MACHINES_LABEL: template.provider} if template.provider else {}
