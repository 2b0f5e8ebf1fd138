"""The catalogue of available labs, the VM of each, and whether any node could run it.

A lab for which no node would have room even if it were empty, on duty and reachable is refused: waiting is pointless.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.placement import Cluster, PlacementRequest, image_problems, node_state, place
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.keys.lab import LAB_CATALOGUE
from hostler.model.lab import LAB_LABEL, SHAPE_LABEL, USER_LABEL, LabCatalogue
from hostler.model.node import Lifecycle
from hostler.model.vm import VmSpec
from hostler.ports.store import ModRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.model.lab import LabTemplate
    from hostler.model.node import NodeRecord
    from hostler.ports.store import Store


_ANY = LabCatalogue()
CATALOGUE = LAB_CATALOGUE.fill(name="default")


class Catalogue:
    """The catalogue in the store, or the last known one if it was deleted or cannot be decoded.

    Using the last known one prevents the removal of VMs by mistake. `own`: from the file of this replica.
    """

    def __init__(self, view: View, own: LabCatalogue | None = None) -> None:
        self._mirror, self._own, self._last = view.catalogues, own, own

    def current(self) -> LabCatalogue | None:
        """Return the catalogue; None: it cannot be decoded, and no earlier one is known."""
        entry = self._mirror.entries.get(CATALOGUE)
        if entry is not None:
            self._last = entry.value
        elif self._last is None and CATALOGUE not in self._mirror.unreadable:
            return _ANY
        return self._last

    async def write(self, store: Store, writing: GuardedWriter) -> None:
        """Write the catalogue of this replica's file, or a default if none exists. Raise LeadershipLost if replaced."""
        there = await store.get(CATALOGUE)
        put = LAB_CATALOGUE.put(self._own or LabCatalogue(), name="default")
        if there is not None and (self._own is None or there.value == put.value):
            return
        was = ModRevision(CATALOGUE) == (0 if there is None else there.mod_revision)
        why = Why(what="catalogue", why="the leader loaded this catalogue at its start")
        await writing.write("", CATALOGUE, Txn([was], [put]), why)


_NEVER_SET = LabCatalogue()


def problems_of(template: LabTemplate, records: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Return the problems of a lab of the catalogue on the nodes that could run it."""
    provider = template.provider
    return image_problems(shape_of(template, ()), [one for one in records if not provider or one.driver == provider])


def catalogue_problems(catalogue: LabCatalogue, records: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Return the problems of the labs of a catalogue, each with its lab.

    The default catalogue, which exists where labs were never set up, has none.
    """
    if catalogue == _NEVER_SET:
        return ()
    nodes = tuple(records)
    labs = {f"lab {name}": template for name, template in (catalogue.labs or {}).items()}
    labs = labs or {"every lab": catalogue.default}
    return tuple(f"{lab}: {why}" for lab, template in labs.items() for why in problems_of(template, nodes))


class Feasibility:
    """Follows the node records. Results are cached until one of them changes."""

    def __init__(self, view: View) -> None:
        self._members = view.members
        self._nodes: Cluster | None = None
        self._found: dict[object, str] = {}

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Start listening; `changed`: results may differ now. The returned function ends this."""

        def forget(_: str) -> None:
            self._nodes = None
            self._found.clear()
            changed()

        return self._members.listen(forget)

    def never(self, spec: VmSpec, node_labels: Mapping[str, str]) -> str:
        """Return why no node could ever run it; empty: one could, or there are no nodes yet."""
        shape = (spec.cpus, spec.memory_mib, spec.disk_gib, spec.image, tuple(sorted(node_labels.items())))
        if shape not in self._found:
            self._found[shape] = self._looked(spec, node_labels)
        return self._found[shape]

    def _looked(self, spec: VmSpec, node_labels: Mapping[str, str]) -> str:
        if self._nodes is None:
            records = [entry.value for entry in self._members.entries.values()]
            there = [record for record in records if record.lifecycle is not Lifecycle.DECOMMISSIONED]
            states = (node_state(record, alive=True) for record in there)
            self._nodes = Cluster(
                msgspec.structs.replace(state, on_duty=True, why_not="", refuses="") for state in states
            )
        if not len(self._nodes):
            return ""
        return place(PlacementRequest(vm="", project="", spec=spec, node_labels=node_labels), self._nodes).why_not


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
