"""Accelerators and volumes in the files of the inventory and of workloads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostler.model.vm import HARDWARE_NAME, HARDWARE_NAME_RULE, MOST_ACCELERATORS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.kit.yaml import Piece

MOST_KINDS = 16
MOST_VOLUMES = 64


def accelerators_and_volumes(fields: Mapping[str, Piece]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Parse `accelerators: {gpu: 2}` and `volumes: [scratch]`. Errors are added to the doubts of the pieces."""
    found: dict[str, int] = {}
    volumes: dict[str, None] = {}
    if "accelerators" in fields:
        for kind, piece in fields["accelerators"].fields().items():
            _check(piece, kind)
            found[kind] = piece.whole(least=1, most=MOST_ACCELERATORS)
        if len(found) > MOST_KINDS:
            fields["accelerators"].doubt(f"must be at most {MOST_KINDS} kinds")
    for piece in fields["volumes"].items() if "volumes" in fields else ():
        name = piece.text(least=1, most=63)
        _check(piece, name)
        if name in volumes:
            piece.doubt(f"{name} is listed twice")
        volumes[name] = None
    if len(volumes) > MOST_VOLUMES:
        fields["volumes"].doubt(f"must be at most {MOST_VOLUMES}")
    return found, tuple(volumes)


def _check(piece: Piece, name: str) -> None:
    if not re.match(HARDWARE_NAME, name):
        piece.doubt(f"{name!r}: must be {HARDWARE_NAME_RULE}")
