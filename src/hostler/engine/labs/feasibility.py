"""Whether any node could run a VM if it were empty, on duty and reachable. If none could, waiting is pointless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.labs.vm_template import shape_of
from hostler.engine.placement import Cluster, PlacementRequest, image_problems, node_state, place
from hostler.model.lab import LabCatalogue
from hostler.model.node import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hostler.engine.view import View
    from hostler.model.lab import LabTemplate
    from hostler.model.node import NodeRecord
    from hostler.model.vm import VmSpec


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
        decision = place(PlacementRequest(vm="", project="", spec=spec, node_labels=node_labels), self._nodes)
        return decision.summary.removeprefix("no node will do: ") if decision.node is None else ""
