"""The kernel of a package: the image that QEMU starts without a boot loader, and the modules that a guest needs."""

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
    """The ELF inside a bzImage, which starts faster by all the time that unpacking takes in an emulated machine.

    Where it cannot be had, or could not be started directly, the image as it is: that boots too, only later.
    """
    if len(image) < 0x250 or image[0x202:0x206] != _MAGIC:
        raise Refused("kernel: it is no Linux kernel for x86; take another package")
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
            # What follows the stream (its size) is not of it: the tool says so, after it has written all.
            return subprocess.run([tool, "-dc"], input=data, capture_output=True, check=False).stdout
    return None


def in_order(modules: Mapping[str, bytes], builtin: Iterable[str], wanted: Iterable[str]) -> list[tuple[str, bytes]]:
    """The wanted modules and those that they need, each after what it needs; what is built in is left out."""
    known = {_plain(path): content for path, content in modules.items()}
    inside = {_plain(path) for path in builtin}
    order: dict[str, bytes] = {}

    def take(name: str) -> None:
        if name in order or name in inside:
            return
        if name not in known:
            raise Refused(f"kernel: it has no module {name}, which the guest needs; take another kernel")
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
    """A module's name as the kernel has it: `kernel/…/virtio-rng.ko.xz` is `virtio_rng`."""
    name = path.rsplit("/", 1)[-1]
    return name.split(".ko", 1)[0].replace("-", "_")
