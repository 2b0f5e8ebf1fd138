"""Actions of users in a scenario, as values: `do: scale`, `do: drain`, …"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, get_args

import msgspec

if TYPE_CHECKING:
    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.model.deployment import Blueprint
    from hostler.model.inventory import Condition
    from hostler.model.node import DrainMode
    from hostler.model.vm_api import VmCreate
    from hostler.model.workload_api import WorkloadApply


class RequestedVm(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one shape, each with its own name."""

    org: str
    project: str
    names: tuple[str, ...]
    wanted: VmCreate
    """Its name is that of the first machine."""


class RequestedLab(msgspec.Struct, frozen=True, kw_only=True):
    """Users who request the same lab."""

    users: tuple[str, ...]
    lab_id: int = 1


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the control plane, or a manual action."""

    refused: bool = False
    """The request should be refused; success is a violation."""


class Apply(Act, frozen=True, kw_only=True, tag="apply"):
    """Create or change a workload."""

    workload: WorkloadApply


class Scale(Act, frozen=True, kw_only=True, tag="scale"):
    """Change the number of instances."""

    workload: str
    instances: int


class Delete(Act, frozen=True, kw_only=True, tag="delete"):
    """Delete a workload."""

    workload: str


class ApplyBlueprint(Act, frozen=True, kw_only=True, tag="apply_blueprint"):
    """Create or change a blueprint."""

    name: str
    blueprint: Blueprint


class DeleteBlueprint(Act, frozen=True, kw_only=True, tag="delete_blueprint"):
    """Delete a blueprint with all its slices."""

    name: str


class RollbackBlueprint(Act, frozen=True, kw_only=True, tag="rollback_blueprint"):
    """Return to a blueprint that was applied before."""

    name: str
    to: int
    """The number of that revision."""


class Calls(Act, frozen=True, kw_only=True, tag="calls"):
    """Set the rate and the quality of the calls of an artifact, as routers measure them."""

    artifact: str
    per_second: float = 10.0
    errors: float = 0.0
    """The fraction of calls that fails."""
    p95_ms: float = 10.0
    in_flight: float = 0.0


class DrainNodes(Act, frozen=True, kw_only=True, tag="drain"):
    """Drain nodes."""

    nodes: tuple[str, ...]
    mode: DrainMode


class ActivateNodes(Act, frozen=True, kw_only=True, tag="activate"):
    """Put nodes on duty again."""

    nodes: tuple[str, ...]


class ConfirmOff(Act, frozen=True, kw_only=True, tag="confirm_off"):
    """Confirm that nodes are off. The request is retried until they are unreachable."""

    nodes: tuple[str, ...]


class ReleaseBrake(Act, frozen=True, kw_only=True, tag="release_brake"):
    """Allow the fencing of the nodes that the mass-failure brake protects."""


class LoadInventory(Act, frozen=True, kw_only=True, tag="load_inventory"):
    """Replace the inventory."""

    inventory: Inventory


class SetHardware(Act, frozen=True, kw_only=True, tag="set"):
    """Change the duty of a region, zone, rack, pdu, tor or blade."""

    level: str
    """`region`, `zone`, `rack`, or `part` of a rack."""
    on: str
    enabled: bool | None = None
    condition: Condition | None = None


class LabStart(Act, frozen=True, kw_only=True, tag="lab_start"):
    """Users request a lab, through the lab queues."""

    labs: RequestedLab


class LabStop(Act, frozen=True, kw_only=True, tag="lab_stop"):
    """Users end their labs, through the lab queues."""

    users: tuple[str, ...]


class CreateVm(Act, frozen=True, kw_only=True, tag="create_vm"):
    """Create machines."""

    vms: RequestedVm


class DeleteVm(Act, frozen=True, kw_only=True, tag="delete_vm"):
    """Delete machines."""

    org: str
    project: str
    names: tuple[str, ...]


class Backup(Act, frozen=True, kw_only=True, tag="backup"):
    """Take a backup of the store."""


class Restore(Act, frozen=True, kw_only=True, tag="restore"):
    """Lose the store: stop all replicas and agents, fill an empty store from the last backup, and restart them."""


class Repair(Act, frozen=True, kw_only=True, tag="repair"):
    """Perform the proposed repairs of a component, including those that need a human. Empty: of all components."""

    on: str = ""


class Expect(Act, frozen=True, kw_only=True, tag="expect"):
    """Check that the state matches all specs, while the scenario is running; the outcome lists the differences."""

    pending: int = 0
    """Machines that have no node for lack of capacity: exactly so many."""
    given_up: tuple[str, ...] = ()
    """Slices whose last version has failed by then: exactly these."""


Anything: TypeAlias = (
    Apply
    | Scale
    | Delete
    | ApplyBlueprint
    | DeleteBlueprint
    | RollbackBlueprint
    | Calls
    | DrainNodes
    | ActivateNodes
    | ConfirmOff
    | ReleaseBrake
    | LoadInventory
    | SetHardware
    | LabStart
    | LabStop
    | CreateVm
    | DeleteVm
    | Backup
    | Restore
    | Repair
    | Expect
)

ACTS: dict[str, type[Act]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Anything)}
"""All actions by their name in YAML."""
