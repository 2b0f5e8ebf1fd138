"""Controller of hardware in burn-in or retirement. `flow` decides the next step."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hostler.engine.inventory.flow import BladeSnapshot, Step, decide_blade, decide_rack, flow_of
from hostler.engine.runtime.controller import Controller
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Unavailable, Uncertain
from hostler.keys.families import (
    ALIVE,
    ARRIVAL,
    BLADE,
    BLADE_FLOW,
    COMMAND,
    IN_RACKS,
    MEMBER,
    RACK,
    RACK_FLOW,
    RETAINED,
    SLICE,
)
from hostler.model.inventory import Condition
from hostler.ports.store import MAX_OPERATIONS, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.key import Key
    from hostler.model.inventory import HardwareFlow
    from hostler.model.node import NodeRecord
    from hostler.ports.store import Comparison, Operation

BURN_IN = 24 * 3600.0
PASS_EVERY = 60.0
COMPARED = MAX_OPERATIONS - 8
"""Number of blade records that the last step of a rack compares: the limit of a transaction.

For a larger rack, the other records were read a moment before.
"""
DRAIN = "drain"
"""Subject of the reason why a machine is still on a drained node."""


class _Found(NamedTuple):
    """A blade or rack, and its flow."""

    name: str
    key: Key[Any]
    entry: Entry[Any]
    flows: Key[HardwareFlow]
    flow: Entry[HardwareFlow] | None


class FlowController(Controller):
    """Reconciles hardware flows. `burn_in`: seconds without a fault. Names are `rack` and `rack/blade`."""

    name = "hardware flows"
    pass_every = PASS_EVERY

    def __init__(
        self,
        env: ControllerEnv,
        view: View,
        *,
        burn_in: float = BURN_IN,
    ) -> None:
        super().__init__(env, width=16)
        self._view, self._period = view, burn_in
        self._flows: set[str] = set()  # names that have a flow record

    # The service

    async def begin(self) -> None:
        """Start following changes."""
        view, inventory = self._view, self._view.inventory
        self.follow(
            inventory.parts.listen(self._part_changed),
            inventory.racks.listen(lambda key: self._rack_changed(RACK.parse(key)["rack"])),
            view.members.listen(lambda key: self._node_changed(MEMBER.parse(key)["node"])),
            view.alive.listen(lambda key: self._node_changed(ALIVE.parse(key)["node"])),
            view.commands.listen(lambda key: self._node_changed(COMMAND.parse(key)["node"])),
            view.arrivals.listen(lambda key: self._node_changed(ARRIVAL.parse(key)["node"])),
            view.slices.listen(lambda key: self._node_changed(SLICE.parse(key)["node"])),
            view.retained.listen(lambda key: self._node_changed(RETAINED.parse(key)["node"])),
        )

    async def resync(self, *, first: bool) -> None:  # noqa: ARG002 - each pass covers everything
        """Queue everything that has a flow record, also from an earlier leader, or should have one."""
        for key in (BLADE_FLOW, RACK_FLOW):
            with suppress(Unavailable, Uncertain):  # the next pass finds it
                for entry in (await key.list(self._store, strict=False)).entries:
                    self._flows.add(_name(entry.parts))
                    self._queue.add(_name(entry.parts))
        self._add_all()

    # Names

    def _part_changed(self, key: str) -> None:
        parts = IN_RACKS.match(key) or {}
        if "blade" in parts:
            self._add(parts["rack"], parts["blade"])
            self._add(parts["rack"])

    def _rack_changed(self, rack: str) -> None:
        self._add(rack)
        for blade in self._view.inventory.blades_of(rack):
            self._add(rack, blade)

    def _node_changed(self, node: str) -> None:
        rack, _, blade = node.partition("-")
        if blade:
            self._add(rack, blade)

    def _add(self, rack: str, blade: str = "") -> None:
        """Queue it if there is a flow, or should be one."""
        name = f"{rack}/{blade}" if blade else rack
        if name in self._flows or self._wanted(rack, blade):
            self._queue.add(name)

    def _wanted(self, rack: str, blade: str) -> bool:
        above = self._view.inventory.racks.get(rack=rack)
        if above is None:
            return False
        if not blade:
            return above.value.condition in (Condition.BURN_IN, Condition.RETIRING)
        found = self._view.inventory.blade(f"{rack}-{blade}")
        return found is not None and flow_of(above.value, found) is not None

    def _add_all(self) -> None:
        """Queue all hardware with a flow. Scanning ten thousand cached records takes milliseconds."""
        inventory, flowing = self._view.inventory, (Condition.BURN_IN, Condition.RETIRING)
        for rack in inventory.racks.entries.values():
            if rack.value.condition in flowing:
                self._rack_changed(rack.parts["rack"])
        for part in inventory.parts.entries.values():
            if part.value.condition in flowing and "blade" in part.parts:
                self._add(part.parts["rack"], part.parts["blade"])

    # Reconciliation

    async def reconcile(self, name: str) -> None:
        """Take the next step of a blade or rack."""
        rack, _, blade = name.partition("/")
        if blade:
            await self._look_at_blade(name, rack, blade)
        else:
            await self._look_at_rack(rack)

    async def _look_at_rack(self, rack: str) -> None:
        entry, flow = await RACK.get(self._store, rack=rack), await RACK_FLOW.get(self._store, rack=rack)
        if entry is None:
            await self._forget(rack, RACK_FLOW, flow, [RACK.absent(rack=rack)])
            return
        blades = (await BLADE.list(self._store, strict=False, rack=rack)).entries
        flows = (await BLADE_FLOW.list(self._store, strict=False, rack=rack)).entries
        by_blade = {each.parts["blade"]: each for each in flows}
        found = {
            blade.parts["blade"]: (
                blade.value,
                None if (at := by_blade.get(blade.parts["blade"])) is None else at.value,
            )
            for blade in blades
        }
        step = decide_rack(entry.value, None if flow is None else flow.value, found, self._clock.wall())
        when = [RACK.unchanged(entry)]
        if step.condition is not None:
            same = [*(BLADE.unchanged(blade) for blade in blades), *(BLADE_FLOW.unchanged(each) for each in flows)]
            when += same[:COMPARED]
        await self._write(_Found(rack, RACK, entry, RACK_FLOW, flow), step, when, read=flows[:3])

    async def _look_at_blade(self, name: str, rack: str, blade: str) -> None:
        above, entry = await RACK.get(self._store, rack=rack), await BLADE.get(self._store, rack=rack, blade=blade)
        flow = await BLADE_FLOW.get(self._store, rack=rack, blade=blade)
        if above is None or entry is None:
            gone = RACK.absent(rack=rack) if above is None else BLADE.absent(rack=rack, blade=blade)
            await self._forget(name, BLADE_FLOW, flow, [gone])
            return
        node = f"{rack}-{blade}"
        member, heartbeat = await MEMBER.get(self._store, node=node), await ALIVE.get(self._store, node=node)
        seen = BladeSnapshot(
            node=node,
            rack=above.value,
            blade=entry.value,
            flow=None if flow is None else flow.value,
            member=None if member is None else member.value,
            heartbeat="" if heartbeat is None else f"{heartbeat.value.holder}@{heartbeat.create_revision}",
            **await self._contents(node),
        )
        step = decide_blade(seen, self._clock.wall(), self._period)
        when = [
            *(RACK.unchanged(above), BLADE.unchanged(entry)),
            MEMBER.absent(node=node) if member is None else MEMBER.unchanged(member),
            ALIVE.absent(node=node) if heartbeat is None else ALIVE.unchanged(heartbeat),
        ]
        found = _Found(name, BLADE, entry, BLADE_FLOW, flow)
        if await self._write(found, step, when, read=[above, heartbeat], member=member):
            self._add(rack)

    async def _contents(self, node: str) -> dict[str, Any]:
        """Return the contents of a node, from the store. A drained node gets no more commands."""
        # In this order: a machine handed over between the two reads changes from an arrival to a command.
        arrivals = (await ARRIVAL.list(self._store, strict=False, node=node)).entries
        commands = (await COMMAND.list(self._store, strict=False, node=node)).entries
        retained = (await RETAINED.list(self._store, strict=False, node=node)).entries
        slices = await self._store.range(SLICE.prefix(node=node), keys_only=True)
        told = [*(each.value.command for each in arrivals), *(each.value for each in commands)]
        why = (reason.why for command in told for reason in command.reasons if reason.subject == DRAIN)
        return {
            "machines": tuple(sorted({f"{each.org}/{each.project}/{each.name or each.vm}" for each in told})),
            "stuck": next(why, ""),
            "slices": len(slices.items),
            "retained": tuple(each.value.vm_name or each.value.vm for each in retained),
        }

    async def _forget(
        self, name: str, key: Key[HardwareFlow], flow: Entry[HardwareFlow] | None, when: list[Comparison]
    ) -> None:
        """Delete the flow of hardware that is no longer in the inventory."""
        if flow is not None:
            txn = Txn([key.unchanged(flow), *when], [key.delete(**flow.parts)])
            await self._writing.write("", flow.key, txn, None)
        self._flows.discard(name)

    async def _write(
        self,
        found: _Found,
        step: Step,
        when: list[Comparison],
        *,
        read: Sequence[Entry[Any] | None],
        member: Entry[NodeRecord] | None = None,
    ) -> bool:
        """Commit one transaction with the guard and the revisions of the decision; False: nothing to write."""
        name, entry, flow, flows = found.name, found.entry, found.flow, found.flows
        parts = entry.parts
        if step.again is not None:
            self._queue.add(name, after=step.again + 0.001)
        then: list[Operation] = []
        if step.flow is None and flow is not None:
            then.append(flows.delete(**parts))
        elif step.flow is not None and (flow is None or step.flow != flow.value):
            then.append(Put(flows.fill(**parts), flows.encode(step.flow)))
        if step.condition is not None:
            changed = msgspec.structs.replace(entry.value, condition=step.condition)
            then.append(Put(entry.key, found.key.encode(changed)))
        if step.member is not None and member is not None:
            then.append(Put(member.key, MEMBER.encode(step.member)))
        (self._flows.discard if step.flow is None else self._flows.add)(name)
        if not then:
            return False
        what = step.condition.value if step.condition else step.flow.step.value if step.flow else "flow_over"
        unchanged = flows.absent(**parts) if flow is None else flows.unchanged(flow)
        why = Why(what=what, why=step.why, read=(entry, flow, member, *read))
        await self._writing.write("", entry.key, Txn([unchanged, *when], then), why)
        return True


def _name(parts: dict[str, str]) -> str:
    return f"{parts['rack']}/{parts['blade']}" if "blade" in parts else parts["rack"]
