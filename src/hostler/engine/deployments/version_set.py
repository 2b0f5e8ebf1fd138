"""What strategies speak of: sides of an upgrade, how many instances each has, and what there shall be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.gates import is_given_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.engine.deployments.call_metrics import Measured
    from hostler.model.deployment import SliceSettings, SliceSpec, Strategy
    from hostler.model.rollout import Deployment, Retries


class Side(msgspec.Struct, frozen=True, order=True):
    """Instances that are alike: of one artifact, run with the same settings."""

    artifact: str
    template: int = 0


class Count(msgspec.Struct, frozen=True):
    """How many instances of a side there are."""

    there: int = 0
    """Not leaving: LOAD to ACTIVE."""
    ready: int = 0
    """Of those: ACTIVE and ready."""
    leaving: int = 0
    """DEACTIVATE, DEACTIVATING, UNLOAD, UNLOADING, and LOADED on the way out."""
    failed: int = 0
    """FAILED, and not yet told to unload."""
    fresh: int = 0
    """Of those that are ready: such as have just become so, and may be gone the next moment."""

    @property
    def proven(self) -> int:
        """Ready for a while."""
        return self.ready - self.fresh


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """What there shall be now."""

    wants: tuple[tuple[Side, int], ...] = ()
    """Instances not leaving that there shall be, by side; a side not named: none. Giving up is reckoned with."""
    spare: tuple[tuple[Side, int], ...] = ()
    """READY instances of the side that may be deactivated now; those that are not ready may always go, and go first."""
    deployment: Deployment | None = None
    """To be written if it differs from what stands; None: nothing is left, to be deleted."""
    settings: dict[int, SliceSettings] = msgspec.field(default_factory=dict)
    """By template, of the sides wanted; 0 (the usual settings) is not named."""
    again: float = 0.0
    """Look again after so many seconds; 0: news will come."""


NOBODY = Count()


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked at, once."""

    spec: SliceSpec
    wished: int
    """The number of instances."""
    counts: Mapping[Side, Count]
    retries: Mapping[str, Retries]
    measured: Callable[[str], Measured]
    now: float
    placeable: bool

    def of(self, side: Side | None) -> Count:
        """How many of it there are."""
        return NOBODY if side is None else self.counts.get(side, NOBODY)

    def others(self, *sides: Side | None) -> Iterator[tuple[Side, Count]]:
        """All sides that have instances which are not leaving, but for these; in order."""
        for side in sorted(self.counts):
            if side not in sides and self.counts[side].there:
                yield side, self.counts[side]

    def remains(self, side: Side) -> bool:
        """Whether there is anything else than this side still, be it on its way out: it may have endpoints."""
        return any(one.there or one.leaving or one.failed for other, one in self.counts.items() if other != side)

    def floor(self, strategy: Strategy) -> int:
        """The ready instances that nothing planned goes below."""
        return min(self.wished, max(self.wished - strategy.max_unavailable, self.spec.min_available))

    def surge(self, strategy: Strategy) -> int:
        """The instances above the wished number. Where none may be missing there must be one, or nothing could move."""
        return max(strategy.max_surge, 1 if self.floor(strategy) >= self.wished else 0)

    def gives_up(self, artifact: str, since: float) -> bool:
        """Whether it failed so often since that instant that nothing more is tried."""
        return is_given_up(self.retries.get(artifact), since)


def new_side(deployment: Deployment) -> Side:
    """The side that the deployment is on its way to, or is at."""
    return Side(deployment.artifact, deployment.template)


def old_side(deployment: Deployment) -> Side | None:
    """The side that served before."""
    return Side(deployment.previous, deployment.previous_template) if deployment.previous else None


def enough(look: Look, side: Side, strategy: Strategy) -> bool:
    """Whether the side can take all calls alone."""
    return look.of(side).ready >= max(1, look.floor(strategy))


def can_split(old: Side, look: Look, strategy: Strategy) -> bool:
    """Whether all calls can be left to the old side, and then shares of them be given away."""
    alone = not any(count.ready for _, count in look.others(old))
    return enough(look, old, strategy) or (alone and look.of(old).ready > 0)
