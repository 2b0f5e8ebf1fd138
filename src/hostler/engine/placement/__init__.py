"""Which node a machine goes to: filter, then score. No I/O, no clock, no randomness: values in, a decision out.

`Cluster` knows the nodes and what stands on them, `place` chooses, `judge` says what it thinks of each node. How a node
is chosen, with the figures: docs/placement.md.
"""

from hostler.engine.placement.cluster import Cluster
from hostler.engine.placement.explain import judge, objections
from hostler.engine.placement.image import image_problems, not_run
from hostler.engine.placement.request import (
    Decision,
    NodeState,
    Wanted,
    must_join,
    node_state,
    wanted_of,
    wanted_of_command,
)
from hostler.engine.placement.select import place

__all__ = [
    "Cluster",
    "Decision",
    "NodeState",
    "Wanted",
    "image_problems",
    "judge",
    "must_join",
    "node_state",
    "not_run",
    "objections",
    "place",
    "wanted_of",
    "wanted_of_command",
]
