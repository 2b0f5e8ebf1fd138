"""One system, for real: a pdu fails, and what follows from it happens in order, to real guests, and tells why.

The same in virtual time, for racks of several blades: tests/sim/test_demo_pdu.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from apart import run_apart
from harness.pace import patience
from warm_image import warm_images

SCRIPT = Path(__file__).parents[1] / "labs" / "demo_pdu_process.py"
STEPS = (
    r"lab 5: its machine is running, it is available \(labs,",
    r"placed on r2-b1: score [\d.]+, the best of 1 that will do, of 2 \(machines,",
    r"taken from r1-b1: it is off, confirmed by hostler \(machines,",
    r"node r1-b1: it was unreachable for \d+ s, and was switched off \(nodes,",
    r"node r1-b1: it became unreachable: no heartbeat came before its lease ended, \d+ s ago;"
    r" it depends on pdu r1/pdu1,",
    r"placed on r1-b1: score [\d.]+, the best of 1 that will do, of 1 \(machines,",
    r"lab 5 is started \(labs,",
    r"lab 5 requested through the queue \(ada,",
)
"""From what is back to where it began."""


@pytest.fixture(scope="module")
def _images() -> None:
    warm_images()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_images")
async def test_a_pdu_fails_its_lab_and_machine_go_on_elsewhere_and_every_step_tells_why(tmp_path: Path) -> None:
    """In namespaces of its own, which end with the process."""
    found = await run_apart(SCRIPT, tmp_path, within=patience(60))
    assert found["switched off while it runs"] == 1, "nobody is believed to be off who is not"
    assert (found["nodes"], found["in order"], found["twice"]) == (["r2-b1", "r2-b1"], True, [])

    before, after = found["records"]
    assert found["hostname"] == "lab-5-1", "who logs in at the new address is in the lab"
    for same in ("user", "status", "available", "cloudStatus", "expiresAt", "webUserId", "labId"):
        assert after[same] == before[same]
    for other in ("address", "serverId"):
        assert after[other] != before[other]

    lab, web = found["why"], found["why of the other"]
    assert re.search(".*\n.*".join(STEPS), lab, re.DOTALL), lab
    assert re.search(".*\n.*".join((*STEPS[1:6], "requested by admin")), web, re.DOTALL), web

    assert re.search(r"^b1 +unreachable \(on duty\) .* pdu1:1 +tor1:1 +0/", found["dark"], re.MULTILINE), found["dark"]
    assert re.search(r"^b1 +on duty .* pdu1:1 +tor1:1 +0/", found["lit"], re.MULTILINE), found["lit"]
    assert found["undisturbed"], "who comes back starts nothing, and takes nothing away from who has it"
    told = [what for what in found["of the node"] if what in ("silent", "switched_off", "returned")]
    assert told == ["returned", "switched_off", "silent"]
