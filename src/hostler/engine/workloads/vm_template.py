"""The VM of a workload instance. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.model.name import fold
from hostler.model.vm import OnNodeLoss, Power, RestartPolicy, VirtualMachine
from hostler.model.workload import instance_of

if TYPE_CHECKING:
    from hostler.model.workload import Workload

LABEL = "workload"
"""Every VM of a workload has this label, with the folded name of the workload."""


class Tune(msgspec.Struct, frozen=True, gc=False):
    """Properties of a VM that can be changed in place. The others form the template."""

    power: Power
    restart: RestartPolicy
    on_node_loss: OnNodeLoss
    returns: bool
    labels: tuple[tuple[str, str], ...]

    def fields(self) -> dict[str, Any]:
        """Return the properties as fields of a VM."""
        return {
            "power": self.power,
            "restart": self.restart,
            "on_node_loss": self.on_node_loss,
            "returns": self.returns,
            "labels": dict(self.labels),
        }


def tune_of(workload: Workload) -> Tune:
    """Return the properties that the workload specifies for all its VMs."""
    labels = {**workload.labels, LABEL: fold(workload.name)}
    loss = workload.on_node_loss, workload.returns
    return Tune(workload.power, workload.restart, *loss, tuple(sorted(labels.items())))


def tune_of_machine(vm: VirtualMachine) -> Tune:
    """Return the properties of a VM that can be changed in place."""
    return Tune(vm.power, vm.restart, vm.on_node_loss, vm.returns, tuple(sorted(vm.labels.items())))


def same_template(one: Workload, other: Workload) -> bool:
    """Return whether both workloads have the same template."""
    return (one.spec, one.affinity, one.node_labels) == (other.spec, other.affinity, other.node_labels)


def name_of(workload: Workload, number: int, *, vm: str = "") -> str:
    """Return the name of an instance's VM; `vm` is added if the plain name is taken."""
    return f"{workload.name}-{number}" + (f"-{vm[:8]}" if vm else "")


def vm_of_instance(workload: Workload, number: int, *, vm: str, name: str, at: float) -> VirtualMachine:
    """Return the VM record of an instance."""
    org, project = workload.home
    folded = fold(workload.name)
    return VirtualMachine(
        id=vm,
        name=name,
        org=org,
        project=project,
        spec=workload.spec,
        affinity=tuple(
            rule if rule.labels else msgspec.structs.replace(rule, labels={LABEL: folded}) for rule in workload.affinity
        ),
        node_labels=workload.node_labels,
        instance=instance_of(folded, number),
        created_at=at,
        **tune_of(workload).fields(),
    )
