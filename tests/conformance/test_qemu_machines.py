"""Every claim of the machines suite, with real guests where it looks inside one."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tiny_image
from dose import part, rotates
from msgspec.structs import replace
from qemu_opened import empty_images
from warm_image import warm_images

from hostler.drivers.machines.qemu.acceleration import verdict
from hostler.drivers.privileges import users_here
from hostler.testing import MachineClaim, machine_claims

from .qemu import GUEST, NO_GUEST, qemu

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

COLD = {"a_machine_becomes_available_and_its_doors_lead_inside"}
"""These boot the guest. So do the others that look inside, wherever a machine is reset or has another shape."""
INSIDE = {
    "a_console_is_opened_again_and_again",
    "a_console_tells_something_when_typed_at",
    "a_disk_outlives_a_stop_a_reset_and_a_new_shape_but_not_its_machine",
    "a_machine_that_has_departed_goes_on_where_it_was_if_it_is_started",
    "a_machine_that_is_asked_to_stop_stops",
    "a_machine_that_is_handed_over_is_left_as_it_is_by_create",
    "a_machine_that_is_off_goes_with_its_disk_and_one_that_runs_does_not_go_so",
    "a_machine_that_ran_has_its_disk_when_it_is_reinstated",
    "a_machine_that_switches_itself_off_is_stopped_and_told_of",
    "a_machine_whose_other_place_cannot_be_reached_goes_on",
    "a_reset_is_done_once_for_each_number",
    "a_restored_disk_is_as_it_was_when_the_snapshot_was_taken",
    "a_running_machine_is_not_started_again",
    "a_running_machine_runs_on_when_it_is_marked",
    "a_running_machine_that_is_sent_goes_on_at_the_other_place",
    "a_send_that_was_done_is_done_when_it_is_repeated",
    "what_has_arrived_stays_though_it_is_received_again",
}
"""Here the guest is restored from a saved state."""
OTHERS = [claim.name for claim in machine_claims() if claim.name not in INSIDE | COLD]
"""These see a machine from outside. In `make soak` all have a guest; in `make test` some do, others with each commit,
and the rest has a disk that is empty: the same processes, files and sockets, without the work of a boot."""
WITH_GUEST = INSIDE | set(part(OTHERS, test=3))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageFolder]:
    tiny = tiny_image.tiny_images()
    empty = asyncio.run(empty_images(tmp_path_factory.mktemp("images")))
    return {"cold": tiny, "warm": warm_images(), "empty": empty}


@pytest.fixture(scope="session")
def accelerator(images: dict[str, ImageFolder]) -> str:
    """What guests run with here: tried once, for all folders."""
    found = verdict(tiny_image.FOLDER.parent, images["cold"].files(tiny_image.NAME), uids=users_here(None))
    return asyncio.run(found).accelerator


ROTATES = rotates(
    2, "src/hostler/drivers/machines/qemu", "src/hostler/testing/machines", "src/hostler/ports/machines.py"
)
CLAIMS = [pytest.param(each, marks=ROTATES if each.name in INSIDE else (), id=str(each)) for each in machine_claims()]
"""The claims that look inside a guest rotate: one in two, others with each commit."""


@pytest.mark.parametrize("claim", CLAIMS)
async def test_claim(claim: MachineClaim, images: dict[str, ImageFolder], accelerator: str, tmp_path: Path) -> None:
    kind = "cold" if claim.name in COLD else "warm" if claim.name in WITH_GUEST else "empty"
    setup = replace(
        NO_GUEST if kind == "empty" else GUEST,
        elsewhere=lambda: qemu(tmp_path / "elsewhere", images[kind], accelerator),
    )
    try:
        await claim.check(lambda: qemu(tmp_path / "node", images[kind], accelerator), setup=setup)
    finally:
        left = processes_in(tmp_path)
    assert left == [], "processes are left"
    assert [str(path) for path in tmp_path.glob("*/vms/*")] == [], "files are left"
    assert [str(path) for path in tmp_path.glob("*/retained/*")] == [], "files are left"


def test_what_looks_inside_is_a_claim() -> None:
    assert {claim.name for claim in machine_claims()} >= INSIDE | COLD


def processes_in(folder: Path) -> list[int]:
    """Those that work somewhere below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                inside = Path(os.readlink(entry / "cwd")).is_relative_to(folder)
            except OSError:  # it ended, or is none of ours
                continue
            if inside:
                found.append(int(entry.name))
    return found
