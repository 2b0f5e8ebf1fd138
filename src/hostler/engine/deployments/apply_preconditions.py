"""What an apply is based on, reasons to reject it, and what must still hold when it is written. Pure.

Two applies that are valid alone but not together must not both succeed. Therefore each compares the blueprints that it
depends on, also indirectly. An apply that removes a slice must notice new dependents: an apply that needs a slice of
another blueprint rewrites that slice's owner record unchanged, and a removal compares the record's revision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments import blueprint_file
from hostler.errors import Conflict, HostlerError, Invalid
from hostler.keys.families import BLUEPRINT, BLUEPRINT_HISTORY, SLICE_OWNER
from hostler.model.rollout import SliceOwner

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.keys.entry import Entry
    from hostler.model.deployment import Blueprint, SliceSpec
    from hostler.model.rollout import BlueprintRevision
    from hostler.ports.store import Comparison, Operation


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a blueprint and of everything that it affects."""

    name: str
    entry: Entry[Blueprint] | None
    number: int
    """The last used revision number; 0: none."""
    oldest: int
    """The oldest revision that is kept, if the maximum number is kept; 0: there are fewer."""
    owners: Mapping[str, Entry[SliceOwner]]
    """Owners of the slices that it names, named or needs; slices without an owner are missing."""
    others: Mapping[str, Entry[Blueprint]]
    """The other blueprints that matter for the decision."""
    damage: str = ""
    """Why the stored blueprint is unreadable. `entry` then has the last applied blueprint, at the stored revision."""

    @property
    def slices(self) -> tuple[SliceSpec, ...]:
        """The slices of the stored blueprint."""
        return () if self.entry is None else self.entry.value.slices

    @property
    def revision(self) -> int:
        """Its mod revision; 0: it does not exist."""
        return 0 if self.entry is None else self.entry.mod_revision

    @property
    def own(self) -> dict[str, int]:
        """The slices that it owns, with the revision number that last named each."""
        return {base: one.value.number for base, one in self.owners.items() if one.value.blueprint == self.name}


def problems(case: Case, wanted: Blueprint | None) -> list[HostlerError]:
    """Return the reasons to reject an apply (None: a deletion) that cannot be seen from the blueprint alone."""
    name = case.name
    others = {other: entry.value for other, entry in case.others.items()}
    new = [] if wanted is None else [spec.base for spec in wanted.slices]
    found: list[HostlerError] = []
    for number, base in enumerate(new):
        owner = case.owners.get(base)
        if owner is not None and owner.value.blueprint != name:
            found.append(
                Conflict(f"blueprint {name}: slices[{number}].artifact: {_owner_conflict(base, owner.value.blueprint)}")
            )
    if wanted is not None:
        found += [Invalid(f"blueprint {name}: {fault}") for fault in blueprint_file.link_faults(name, wanted, others)]
    if wanted is not None and not found:  # another program wrote a blueprint that the leader has not taken up
        found += [
            Conflict(
                f"blueprint {name}: {place}: {base} is in no applied blueprint; apply the one that contains it first"
            )
            for base, place in blueprint_file.outside(wanted).items()
            if base not in case.owners
        ]
    gone = [spec.base for spec in case.slices if spec.base not in new]
    found += [
        Conflict(f"blueprint {name}: {base} is needed by {by} of blueprint {other}; change that first")
        for base, other, by in blueprint_file.dependents(gone, others)
    ]
    return found


def _owner_conflict(base: str, by: str) -> str:
    return f"{base} is a slice of blueprint {by}; remove it there, and wait until it is gone"


def comparisons(case: Case, wanted: Blueprint | None, number: int) -> list[Comparison]:
    """Return the comparisons that must hold when the apply is written."""
    new = [] if wanted is None else [spec.base for spec in wanted.slices]
    old = [spec.base for spec in case.slices]
    when = [
        BLUEPRINT.absent(blueprint=case.name) if case.entry is None else BLUEPRINT.unchanged(case.entry),
        BLUEPRINT_HISTORY.absent(blueprint=case.name, number=number),
    ]
    # A slice that it owns and keeps stays its own as long as the blueprint is unchanged.
    touched = [base for base in (*new, *old) if base not in old or base not in new or base not in case.owners]
    if wanted is not None:
        others = {other: one.value for other, one in case.others.items()}
        when += [BLUEPRINT.unchanged(case.others[other]) for other in blueprint_file.needed_blueprints(wanted, others)]
        touched += blueprint_file.outside(wanted)
    for base in dict.fromkeys(touched):
        owner = case.owners.get(base)
        when.append(SLICE_OWNER.absent(base=base) if owner is None else SLICE_OWNER.unchanged(owner))
    return when


def operations(case: Case, wanted: Blueprint | None, record: BlueprintRevision) -> list[Operation]:
    """Return what an apply (None: a deletion) writes: the blueprint, its revision, and the owners of its slices."""
    name, number = case.name, record.number
    then: list[Operation] = [
        BLUEPRINT.delete(blueprint=name) if wanted is None else BLUEPRINT.put(wanted, blueprint=name),
        BLUEPRINT_HISTORY.put(record, blueprint=name, number=number),
    ]
    if wanted is not None:
        owner = SliceOwner(blueprint=name, number=number)
        then += [SLICE_OWNER.put(owner, base=spec.base) for spec in wanted.slices]
        then += touches(case, wanted)
    if case.oldest:
        then.append(BLUEPRINT_HISTORY.delete(blueprint=name, number=case.oldest))
    return then


def touches(case: Case, wanted: Blueprint) -> list[Operation]:
    """Rewrite the owners of the slices that it needs, so that a concurrent removal of such a slice conflicts."""
    return [SLICE_OWNER.put(case.owners[base].value, base=base) for base in blueprint_file.outside(wanted)]
