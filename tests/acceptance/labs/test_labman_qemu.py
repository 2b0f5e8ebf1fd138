"""A front end that knows Redis alone, and real guests behind it, logged into at port 22 of their own address."""

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
async def test_the_four_scenarios_on_real_guests_and_what_is_left_where_they_cannot_have_an_address(
    tmp_path: Path,
) -> None:
    """In namespaces of its own, which end with the process."""
    found = await run_apart(Path(__file__).parent / "qemu_process.py", tmp_path, within=patience(40))
    assert found["refused"].startswith("labs are not taken from Redis: network bridge: a bridge needs CAP_NET_ADMIN")
    assert found["left in the queue"] == 1, "what nobody takes waits for somebody who does"
