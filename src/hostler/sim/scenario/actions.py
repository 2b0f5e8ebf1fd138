"""What people do in a scenario, as values: `do: scale`, `do: drain`, …"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, get_args

import msgspec

if TYPE_CHECKING:
    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.model.api import VmCreate
    from hostler.model.deployment import Blueprint
    from hostler.model.inventory import Condition
    from hostler.model.node import DrainMode
    from hostler.model.workload_api import WorkloadApply


class VmWish(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one shape, each with a name of its own."""

    org: str
    project: str
    names: tuple[str, ...]
    wanted: VmCreate
    """Its name is that of the first."""


class LabWish(msgspec.Struct, frozen=True, kw_only=True):
    """Users who want the same lab."""

    users: tuple[str, ...]
    lab_id: int = 1


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is asked of the control plane, or done by hand."""

    refused: bool = False
    """It shall be refused: that it is done would be wrong."""


class Apply(Act, frozen=True, kw_only=True, tag="apply"):
    """Wish for a workload, or change it."""

    workload: WorkloadApply


class Scale(Act, frozen=True, kw_only=True, tag="scale"):
    """Wish for another number of instances."""

    workload: str
    instances: int


class Delete(Act, frozen=True, kw_only=True, tag="delete"):
    """Wish a workload away."""

    workload: str


class ApplyBlueprint(Act, frozen=True, kw_only=True, tag="apply_blueprint"):
    """Wish for slices, or change them."""

    name: str
    blueprint: Blueprint


class DeleteBlueprint(Act, frozen=True, kw_only=True, tag="delete_blueprint"):
    """Wish all slices of a blueprint away."""

    name: str


class RollbackBlueprint(Act, frozen=True, kw_only=True, tag="rollback_blueprint"):
    """Wish for what was applied before."""

    name: str
    to: int
    """The number of that revision."""


class Calls(Act, frozen=True, kw_only=True, tag="calls"):
    """From now on an artifact is called so often, and answers so well, as the routers measure it."""

    artifact: str
    per_second: float = 10.0
    errors: float = 0.0
    """The share of them that fails."""
    p95_ms: float = 10.0
    in_flight: float = 0.0


class DrainNodes(Act, frozen=True, kw_only=True, tag="drain"):
    """Empty nodes."""

    nodes: tuple[str, ...]
    mode: DrainMode


class ActivateNodes(Act, frozen=True, kw_only=True, tag="activate"):
    """Take machines there again."""

    nodes: tuple[str, ...]


class ConfirmOff(Act, frozen=True, kw_only=True, tag="confirm_off"):
    """Stand for it that nodes are off. It is asked until they are silent."""

    nodes: tuple[str, ...]


class ReleaseBrake(Act, frozen=True, kw_only=True, tag="release_brake"):
    """Let the nodes be fenced that hold the brake on mass failure."""


class LoadInventory(Act, frozen=True, kw_only=True, tag="load_inventory"):
    """Put this inventory into the place of the present one."""

    inventory: Inventory


class SetHardware(Act, frozen=True, kw_only=True, tag="set"):
    """Change the duty of a region, zone, rack, pdu, tor or blade."""

    level: str
    """`region`, `zone`, `rack`, or `part` of a rack."""
    on: str
    enabled: bool | None = None
    condition: Condition | None = None


class LabStart(Act, frozen=True, kw_only=True, tag="lab_start"):
    """Users ask for a lab, at the door."""

    labs: LabWish


class LabStop(Act, frozen=True, kw_only=True, tag="lab_stop"):
    """Users give their labs back, at the door."""

    users: tuple[str, ...]


class CreateVm(Act, frozen=True, kw_only=True, tag="create_vm"):
    """Wish for machines."""

    vms: VmWish


class DeleteVm(Act, frozen=True, kw_only=True, tag="delete_vm"):
    """Wish machines away."""

    org: str
    project: str
    names: tuple[str, ...]


class Backup(Act, frozen=True, kw_only=True, tag="backup"):
    """Take a backup of the store."""


class Restore(Act, frozen=True, kw_only=True, tag="restore"):
    """The store is lost: all replicas and agents are stopped, an empty store is filled from the last backup, and they
    are started again."""


class Repair(Act, frozen=True, kw_only=True, tag="repair"):
    """Do what the rules propose about a component, also where they ask for a human. Empty: about all of them."""

    on: str = ""


class Expect(Act, frozen=True, kw_only=True, tag="expect"):
    """Look whether all is as it was wished for, in the middle of everything; the outcome says what is not."""

    pending: int = 0
    """Machines that no node has room for: so many, no more and no fewer."""
    given_up: tuple[str, ...] = ()
    """Slices whose last version was given up by then: these, and no others."""


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
"""Every act, by its name in YAML."""
