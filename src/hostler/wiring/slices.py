"""The driver that runs the slices of a node, by the settings."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from hostler.wiring.calls import gateway

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.calling.gateway import Asks
    from hostler.drivers.slices.process.driver import ProcessSlices
    from hostler.kit.clock import Clock
    from hostler.ports.artifacts import Artifacts
    from hostler.settings import Settings

HEALTHY = 0.8
"""Share of the activation limit within which a slice must become healthy, so that the reason can still be reported."""


async def why_no_slice_users(settings: Settings) -> tuple[str, str]:
    """Return why slices have no separate users here, and what to do; empty: they have, or need none."""
    from hostler.drivers.machines.qemu.privileges import users_here
    from hostler.drivers.slices.process.privileges import Allowing

    required = settings.slice_users == "required"
    allowing = Allowing(
        str(settings.data), sys.executable, users_here(settings.driver_options["qemu_uids"]), required=True
    )
    why = await allowing.why_not()
    if not why and required and os.geteuid() != 0:
        why = "the agent is not root and cannot change users"
    if not why and settings.slice_users == "auto":
        why, advice = await allowing.why_not_confined()
        return (f"slices are refused: {why}", advice) if why else ("", "")
    return (why.replace("it runs", "slices run", 1), allowing.advice) if why else ("", "")


def open_slices(
    settings: Settings,
    folder: Path,
    artifacts: Artifacts,
    *,
    node: str,
    clock: Clock | None = None,
    ask: Asks | None = None,
) -> ProcessSlices:
    """Return the slices of one node, kept in `folder`, to be entered with `async with`; leaving it stops them.

    `artifacts`: where their files come from. `ask` handles their calls of other slices (`Router.ask`). One process at a
    time has a folder open. Instances that a killed process left running are adopted.
    """
    from hostler.drivers.machines.qemu.privileges import users_here
    from hostler.drivers.slices.process.driver import ProcessSlices

    return ProcessSlices(
        folder,
        artifacts,
        node=node,
        clock=clock,
        host=settings.slice_listen,
        packages=settings.slice_packages or "",
        uids=users_here(settings.driver_options["qemu_uids"]),
        users_required=settings.slice_users == "required",
        as_owner=settings.slice_users == "owner",
        hidden=settings.data,
        disk_mib=settings.slice_disk_mib,
        door=None if ask is None else lambda path, token: gateway(path, token, ask),
        healthy_within=HEALTHY * settings.slice_activating_limit,
    )
