"""Images: what machines are made of. Kept on the node that uses them, by their content."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from hostler.model.record import Record

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Probe(enum.StrEnum):
    """What an image promises, and how that is seen. A machine is available once it was."""

    SSH = "ssh"
    """The server inside answers with the host key that was made for the machine."""
    TCP = "tcp"
    """Something inside answers a connection with a first byte."""
    AGENT = "agent"
    """The guest said on its channel that it is ready."""
    NONE = "none"
    """Nothing: its process runs."""


class Seeding(enum.StrEnum):
    """How a machine learns who it is."""

    FIRMWARE = "firmware"
    """Files of QEMU's firmware channel, read by an init of ours (docs/images.md)."""
    CLOUD_INIT = "cloud-init"
    """A NoCloud disk."""
    NONE = "none"


class Image(Record, frozen=True, kw_only=True):
    """`image.json` beside the files that it is about."""

    digest: Digest
    """Of everything that makes it: the digests of its files and what is said of them here."""
    files: dict[str, Digest]
    """`disk` (always, qcow2 or raw), `kernel` and `initrd`."""
    disk_format: str = "qcow2"
    disk_bytes: int
    """What the guest sees."""
    append: str = ""
    """The kernel's arguments, where there is a kernel."""
    user: str
    """Who logs in."""
    seeding: Seeding
    probe: Probe
    warm: bool = False
    """The guest can be kept booted without an identity, and takes one when it is told to (docs/images.md)."""
    memory_mib: int = 128
    """Least memory that it boots with."""
    boot_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """Deadline of each step from its process to its user."""
    source: str
    """Where it came from, for people."""
    made_at: float
