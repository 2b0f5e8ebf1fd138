"""Labs on QEMU are logged into as their interface says: as their user, at port 22 of an IPv6 address."""

from __future__ import annotations

from pathlib import Path

import pytest
from apart import run_apart
from harness.pace import patience
from warm_image import warm_images


@pytest.fixture(scope="module")
def _images() -> None:
    warm_images()


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_images")
async def test_a_lab_is_logged_into_as_its_user_at_its_own_address_whether_it_booted_or_was_warm(
    tmp_path: Path,
) -> None:
    """In namespaces of its own, which end with the process."""
    found = await run_apart(Path(__file__).parent / "lab_process.py", tmp_path, within=patience(30))
    network, why, *bridges = found.pop("refused")
    assert (network, bridges) == ("user", [])
    assert "network bridge: a bridge needs CAP_NET_ADMIN" in why
    assert "run it as root or with that capability" in why
    cold, warm = found.pop("cold"), found.pop("warm")
    seconds = {"cold": cold.pop("seconds"), "warm": warm.pop("seconds")}
    for vm, told, waked in (("cold", cold, "0"), ("warm", warm, "1")):
        assert told == {
            "said": ["student", "/home/student", "0", vm, "student 600", waked, "student"],
            "mac": True,
            "access": ["student", 22, True],
            "the image's own user": "refused",
        }
    assert seconds["warm"] < seconds["cold"]
    assert found == {
        "twice": {"names": ["hostler0", "hs", 10], "address": True, "up": True},
        "network": "bridge hostler0",
        "members": True,
        "left standing": True,
    }
