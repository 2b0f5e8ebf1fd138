"""What tests of real machines share."""

from __future__ import annotations

import pytest
import tiny_image

from hostler.drivers.machines.qemu.images.folder import ImageFolder


@pytest.fixture(scope="session")
def images() -> ImageFolder:
    """Images with a `tiny` that was built for this run."""
    return tiny_image.tiny_images()
