"""Whether disks with data are kept: looked at when one is deleted.

A disk that was booted from has data. It may be deleted if its VM is gone or being deleted, if the same disk is on
another node (it was handed over), or if its VM has a newer one that was accepted: by its owner (`on_node_loss: fence`),
by an operator who drains the node by making machines elsewhere, or by the confirmation that the node was off when the
machine was taken from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.keys.node import COMMAND, MEMBER
from hostler.keys.vm import VM
from hostler.model.vm import OnNodeLoss

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.drivers.machines.simulated.place import Row
    from hostler.ports.store import Event
    from hostler.sim.world import World


class _Vm(msgspec.Struct):
    deleting: bool = False
    on_node_loss: str = ""


class _Member(msgspec.Struct):
    off: msgspec.Raw = msgspec.Raw(b"null")


class _Command(msgspec.Struct):
    deleting: bool = False


class DiskWatch:
    """Knows what each VM asked for, and which machines were given up on which node."""

    def __init__(self, world: World, violated: Callable[[str, str, float | None], None]) -> None:
        self._world, self._violated = world, violated
        self.looks = 0
        self._vms: dict[str, _Vm] = {}
        self._off: set[str] = set()
        self._given_up: set[tuple[str, str]] = set()
        """Node and VM: the disk of the VM on that node may be deleted."""
        world.disks.listen(self._deleted)

    def heard(self, event: Event) -> None:
        """Something has changed in the store."""
        key, gone = event.kv.key, event.type == "delete"
        if parts := VM.match(key):
            if gone:
                self._vms.pop(parts["vm"], None)
            else:
                self._vms[parts["vm"]] = msgspec.json.decode(event.kv.value, type=_Vm)
        elif parts := MEMBER.match(key):
            is_off = not gone and bytes(msgspec.json.decode(event.kv.value, type=_Member).off) != b"null"
            (self._off.add if is_off else self._off.discard)(parts["node"])
        elif parts := COMMAND.match(key):
            self._command(parts["node"], parts["vm"], None if gone else event.kv.value)

    def _command(self, node: str, vm: str, value: bytes | None) -> None:
        if value is None:
            if node in self._off:
                self._given_up.add((node, vm))
        elif msgspec.json.decode(value, type=_Command).deleting:
            self._given_up.add((node, vm))

    def _deleted(self, node: str, row: Row) -> None:
        if not row.boots:
            return
        self.looks += 1
        vm = self._vms.get(row.vm)
        if vm is None or vm.deleting or vm.on_node_loss == OnNodeLoss.FENCE or (node, row.vm) in self._given_up:
            return
        places = (place for host in self._world.blades.values() for place in (*host.earlier, host.place))
        if not any(other.disk_id == row.disk_id for place in places for other in place.contents.rows.values()):
            text = f"its disk {row.disk_id}, with data of {row.boots} boots, was deleted and no newer one was accepted"
            self._violated(f"vm {row.vm}", text, None)
