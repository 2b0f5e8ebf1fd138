"""Images: the disks and kernels that machines are created from. A node stores its images by content digest."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from hostler.model.record import Record

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Probe(enum.StrEnum):
    """What an image promises, and how the node checks it. A machine is available once the check has passed."""

    SSH = "ssh"
    """The SSH server of the guest answers with the host key generated for the machine."""
    TCP = "tcp"
    """A server in the guest answers a TCP connection with a first byte."""
    AGENT = "agent"
    """The guest reports on its agent channel that it is ready."""
    NONE = "none"
    """No check: the machine is available while its process runs."""


class Seeding(enum.StrEnum):
    """How a machine receives its identity and configuration."""

    FIRMWARE = "firmware"
    """Files in QEMU's firmware channel, read by Hostler's own init (docs/images.md)."""
    CLOUD_INIT = "cloud-init"
    """A NoCloud disk."""
    NONE = "none"


class Image(Record, frozen=True, kw_only=True):
    """`image.json`, stored next to the files that it describes."""

    digest: Digest
    """Digest of the file digests and the fields of this record."""
    files: dict[str, Digest]
    """`disk` (always, qcow2 or raw), `kernel` and `initrd`."""
    disk_format: str = "qcow2"
    disk_bytes: int
    """Disk size that the guest sees."""
    append: str = ""
    """Kernel arguments, if the image has a kernel."""
    user: str
    """Login user."""
    seeding: Seeding
    probe: Probe
    warm: bool = False
    """The guest can be booted without an identity and accept one later (docs/images.md)."""
    memory_mib: int = 128
    """Minimum memory needed to boot."""
    boot_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Deadline of each boot step, from process start to login."""
    source: str
    """Origin of the image, for display."""
    made_at: float
