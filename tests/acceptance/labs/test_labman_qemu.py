"""A front end that knows Redis alone, and real guests behind it, logged into at port 22 of their own address."""

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

WITHIN = 400.0


@pytest.fixture(scope="module")
def _images() -> None:
    warm_images()


@pytest.mark.timeout(WITHIN)
@pytest.mark.usefixtures("_images")
async def test_the_four_scenarios_on_real_guests_and_what_is_left_where_they_cannot_have_an_address(
    tmp_path: Path,
) -> None:
    """In namespaces of its own, which end with the process."""
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    here = Path(__file__).parent
    folders = [here, here.parent, here.parent / "qemu", here.parents[1]]
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *(find_binary("unshare"), *namespaces, sys.executable, str(here / "qemu_process.py"), tmp_path),
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
    assert found["seconds"] <= 1.0, f"of two machines that were ready neither was had within a second: {found}"
    assert found["refused"].startswith("labs are not taken from Redis: network bridge: a bridge takes CAP_NET_ADMIN")
    assert found["left in the queue"] == 1, "what nobody takes waits for somebody who does"
