"""D39: which slices a slice needs, through others."""

from __future__ import annotations

from hostler.engine.deployments.desired import transitive_needs
from hostler.model.deployment import SliceSpec


def slice_spec(name: str, *needs: str) -> SliceSpec:
    return SliceSpec(artifact=f"org:{name}:1", instances=1, needs=tuple(f"org:{need}" for need in needs))


def test_d39_needs_are_followed_through_other_slices_and_a_circle_ends() -> None:
    specs = {one.base: one for one in (slice_spec("a", "b"), slice_spec("b", "c"), slice_spec("c", "a"))}
    assert transitive_needs("org:a", specs) == {"org:a", "org:b", "org:c"}
    chain = {one.base: one for one in (slice_spec("a", "b"), slice_spec("b", "c"), slice_spec("c"))}
    assert transitive_needs("org:a", chain) == {"org:b", "org:c"}
    assert transitive_needs("org:c", chain) == set()
