"""Labs on QEMU are logged into as their interface says: as their user, at port 22 of an IPv6 address."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm_image import warm_images

from hostler.testing.servers import find_binary

WITHIN = 300.0


@pytest.fixture(scope="module")
def _images() -> None:
    warm_images()


@pytest.mark.timeout(WITHIN)
@pytest.mark.usefixtures("_images")
async def test_a_lab_is_logged_into_as_its_user_at_its_own_address_whether_it_booted_or_was_warm(
    tmp_path: Path,
) -> None:
    """In namespaces of its own, which end with the process."""
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *(find_binary("unshare"), *namespaces, sys.executable, str(here / "lab_process.py"), tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        async with asyncio.timeout(WITHIN - 10):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode()
    assert process.returncode == 0, text
    found = json.loads(text.splitlines()[-1])
    network, why, *bridges = found.pop("refused")
    assert (network, bridges) == ("user", [])
    assert "network bridge: a bridge takes CAP_NET_ADMIN" in why
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
