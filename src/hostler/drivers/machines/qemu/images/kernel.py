"""Kernels of packages: the image that QEMU starts without a boot loader, and the modules that a guest needs."""

from __future__ import annotations

import lzma
import shutil
import struct
import subprocess
import zlib
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.images import elf
from hostler.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAGIC = b"HdrS"


def unpacked(image: bytes) -> bytes:
    """Return the ELF file inside a bzImage, which saves the time for unpacking it in an emulated machine.

    If it cannot be extracted, or cannot be started directly, return the image unchanged: it boots too, only later.
    """
    if len(image) < 0x250 or image[0x202:0x206] != _MAGIC:
        raise Refused("kernel: not a Linux kernel for x86; use another package")
    setup = (image[0x1F1] or 4) + 1
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = setup * 512 + offset
    inner = _decompressed(image[start : start + length])
    try:
        return inner if inner is not None and elf.boots_directly(inner) else image
    except elf.NotElf:
        return image


def _decompressed(data: bytes) -> bytes | None:
    try:
        if data.startswith(b"\xfd7zXZ\0"):
            return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(data)
        if data.startswith(b"\x5d\0\0"):
            return lzma.LZMADecompressor(lzma.FORMAT_ALONE).decompress(data)
        if data.startswith(b"\x1f\x8b"):
            return zlib.decompressobj(31).decompress(data)
    except (lzma.LZMAError, zlib.error):
        return None
    for magic, tool in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\x02\x21\x4c\x18", "lz4")):
        if data.startswith(magic) and shutil.which(tool):
            # The stream is followed by its size: the tool complains about that, after it has written everything.
            return subprocess.run([tool, "-dc"], input=data, capture_output=True, check=False).stdout
    return None


def in_order(modules: Mapping[str, bytes], builtin: Iterable[str], wanted: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return the wanted modules with their dependencies, in loading order, without built-in ones."""
    known = {_plain(path): content for path, content in modules.items()}
    inside = {_plain(path) for path in builtin}
    order: dict[str, bytes] = {}

    def take(name: str) -> None:
        if name in order or name in inside:
            return
        if name not in known:
            raise Refused(f"kernel: module {name}, which the guest needs, is missing; use another kernel")
        content = known[name]
        if content.startswith(b"\xfd7zXZ\0"):
            content = lzma.decompress(content)
        for other in elf.module_facts(content).get("depends", "").split(","):
            if other:
                take(_plain(other))
        order[name] = content

    for name in wanted:
        take(_plain(name))
    return list(order.items())


def _plain(path: str) -> str:
    """Return a module's name as the kernel spells it: `kernel/…/virtio-rng.ko.xz` is `virtio_rng`."""
    name = path.rsplit("/", 1)[-1]
    return name.split(".ko", 1)[0].replace("-", "_")
