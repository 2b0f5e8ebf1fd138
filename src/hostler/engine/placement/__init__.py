"""Placement: filters and scores nodes for a machine. No I/O, no clock, no randomness: values in, a decision out.

`Cluster` holds the nodes and their machines, `place` chooses, `judge` explains the verdict for each node. How a node is
chosen, with the figures: docs/placement.md.
"""

from hostler.engine.placement.cluster import Cluster
from hostler.engine.placement.constraints import image_problems, not_run
from hostler.engine.placement.explain import judge, objections
from hostler.engine.placement.request import (
    Decision,
    NodeState,
    PlacementRequest,
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
    "PlacementRequest",
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
