"""Data types of the strategies: the sides of a rollout, their instance counts, and the aim."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.call_metrics import is_given_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.model.deployment import SliceSettings, SliceSpec, Strategy
    from hostler.model.rollout import Deployment, Retries


class VersionSet(msgspec.Struct, frozen=True, order=True):
    """A version set: instances of one artifact that run with the same settings."""

    artifact: str
    template: int = 0


class Count(msgspec.Struct, frozen=True):
    """Number of instances of a side, by condition."""

    there: int = 0
    """Not leaving: LOAD to ACTIVE."""
    ready: int = 0
    """Of those: ACTIVE and ready."""
    leaving: int = 0
    """DEACTIVATE, DEACTIVATING, UNLOAD, UNLOADING, and LOADED while leaving."""
    failed: int = 0
    """FAILED, and not yet commanded to unload."""
    fresh: int = 0
    """Ready for less than `min_ready` seconds. They may fail soon."""

    @property
    def proven(self) -> int:
        """Ready for at least `min_ready` seconds."""
        return self.ready - self.fresh


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """The desired instances of a slice at this moment."""

    wants: tuple[tuple[VersionSet, int], ...] = ()
    """Desired instances that are not leaving, by side; a side not listed: none. Versions given up are accounted for."""
    spare: tuple[tuple[VersionSet, int], ...] = ()
    """READY instances of a side that may be deactivated now. Those that are not ready may always go, and go first."""
    deployment: Deployment | None = None
    """To be written if it differs from the stored record; None: no instance is left, delete it."""
    settings: dict[int, SliceSettings] = msgspec.field(default_factory=dict)
    """Settings by template, of the sides wanted; 0 (the default settings) is not listed."""
    again: float = 0.0
    """Seconds after which to decide again; 0: wait for a change."""


NOBODY = Count()


class VersionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot on which one decision is based."""

    spec: SliceSpec
    wished: int
    """The desired number of instances."""
    counts: Mapping[VersionSet, Count]
    retries: Mapping[str, Retries]
    measured: Callable[[str], Measured]
    now: float
    placeable: bool

    def of(self, side: VersionSet | None) -> Count:
        """Return the instance counts of a side."""
        return NOBODY if side is None else self.counts.get(side, NOBODY)

    def others(self, *sides: VersionSet | None) -> Iterator[tuple[VersionSet, Count]]:
        """Yield all sides except these that have instances which are not leaving, in order."""
        for side in sorted(self.counts):
            if side not in sides and self.counts[side].there:
                yield side, self.counts[side]

    def remains(self, side: VersionSet) -> bool:
        """Return whether any other side has instances. They may have endpoints even while they leave."""
        return any(one.there or one.leaving or one.failed for other, one in self.counts.items() if other != side)

    def floor(self, strategy: Strategy) -> int:
        """Return the number of ready instances that a planned change must keep."""
        return min(self.wished, max(self.wished - strategy.max_unavailable, self.spec.min_available))

    def surge(self, strategy: Strategy) -> int:
        """Return the instances above the desired number. At least one if none may be missing, or nothing could move."""
        return max(strategy.max_surge, 1 if self.floor(strategy) >= self.wished else 0)

    def gives_up(self, artifact: str, since: float) -> bool:
        """Return whether the artifact failed so often since that instant that it is not tried again."""
        return is_given_up(self.retries.get(artifact), since)


def new_side(deployment: Deployment) -> VersionSet:
    """Return the side that the deployment moves to, or has reached."""
    return VersionSet(deployment.artifact, deployment.template)


def old_side(deployment: Deployment) -> VersionSet | None:
    """Return the side that served before."""
    return VersionSet(deployment.previous, deployment.previous_template) if deployment.previous else None


def enough(look: VersionSnapshot, side: VersionSet, strategy: Strategy) -> bool:
    """Return whether the side can take all calls alone."""
    return look.of(side).ready >= max(1, look.floor(strategy))


def can_split(old: VersionSet, look: VersionSnapshot, strategy: Strategy) -> bool:
    """Return whether the old side can take all calls, so that shares of them can then be given to the new side."""
    alone = not any(count.ready for _, count in look.others(old))
    return enough(look, old, strategy) or (alone and look.of(old).ready > 0)
