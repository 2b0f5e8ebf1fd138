"""The system of the tiny guest, as an initrd: programs of Debian's packages, and the scripts of `guest`.

/init                 the kernel's first program
/system               lower layer of the machine's root; the disk stores only the differences
/system/lib/modules   early: equal for all machines; identity: modules that read a machine's own properties when loaded

The kernel is one of a package: the image that QEMU starts without a boot loader, and the modules that a guest needs.
"""

from __future__ import annotations

import lzma
import re
import shutil
import struct
import subprocess
import zlib
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.images import formats, guest
from hostler.drivers.machines.qemu.images.formats import Archive
from hostler.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAGIC = b"HdrS"


def unpack_kernel(image: bytes) -> bytes:
    """Return the ELF file inside a bzImage, which saves the time for unpacking it in an emulated machine.

    If it cannot be extracted, or cannot be started directly, return the image unchanged: it boots too, only later.
    """
    if len(image) < 0x250 or image[0x202:0x206] != _MAGIC:
        raise Refused("kernel: not a Linux kernel for x86; use another package")
    setup = (image[0x1F1] or 4) + 1
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = setup * 512 + offset
    inner = _decompress(image[start : start + length])
    try:
        return inner if inner is not None and formats.boots_directly(inner) else image
    except formats.NotElf:
        return image


def _decompress(data: bytes) -> bytes | None:
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


def modules_in_order(
    modules: Mapping[str, bytes], builtin: Iterable[str], wanted: Iterable[str]
) -> list[tuple[str, bytes]]:
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
        for other in formats.module_facts(content).get("depends", "").split(","):
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


EARLY = ("virtio_pci", "virtio_net", "overlay", "button", "evdev")
"""Modules that are equal for all machines. A template is saved with these loaded."""
IDENTITY = ("qemu_fw_cfg", "virtio_blk")
"""Modules that read the machine's own properties when they are loaded: its identity, the size of its disk."""
USER = "hostler"
USER_ID = 1000

LIBRARY = re.compile(r"/lib(64)?/.*\.so(\.[^/]*)?$")
_SERVERS = ("dropbear", "dropbearkey", "dropbearconvert")
_FOLDERS = ("dev", "proc", "sys", "run", "mnt", "var/log", "usr/local/bin", "usr/lib", "home")
_SETTINGS = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{USER_ID}:{USER_ID}::/home/{USER}:/bin/sh\n",
    "group": f"root:x:0:\ntty:x:5:\n{USER}:x:{USER_ID}:\n",
    "shells": "/bin/sh\n/bin/ash\n",
    "hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost\n",
    "profile": "export PATH=/bin:/usr/local/bin\n",
    "os-release": 'NAME="Hostler tiny"\nID=hostler-tiny\nPRETTY_NAME="Hostler tiny, made of packages of Debian"\n',
}


def initrd(
    files: Mapping[str, bytes], modules: Mapping[str, bytes], applets: Iterable[str], compiled: Mapping[str, bytes]
) -> bytes:
    """Build the initrd.

    From package files by path, files of the kernel's package, busybox's applet names, and `guest.COMPILED` by name.
    """
    archive = Archive()
    for name in ("dev", "proc", "sys", "disk", "root"):
        archive.folder(name)
    archive.device("dev/console", 0o600, 5, 1)
    archive.device("dev/null", 0o666, 1, 3)
    archive.file("init", guest.text("init"), 0o755)
    for name in ("bin", "lib", "lib64"):
        archive.link(name, f"system/{name}")
    _add_modules(archive, modules)
    _add_programs(archive, files, applets, compiled)
    _add_settings(archive)
    return archive.packed()


def executable(files: Mapping[str, bytes], name: str) -> bytes:
    """Return a program of the packages."""
    for path, content in files.items():
        if path.endswith(f"bin/{name}") and content:
            return content
    raise Refused(f"tiny image: no package has the program {name}; use a newer release of Hostler")


def libraries_of(files: Mapping[str, bytes], programs: Iterable[bytes]) -> dict[str, bytes]:
    """Return the shared libraries by name that the programs need, directly or not, including the loader."""
    known = {path.rsplit("/", 1)[-1]: content for path, content in files.items() if LIBRARY.search(path)}
    found: dict[str, bytes] = {}
    wanted = [name for content in programs for name in formats.needed_libraries(content)]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        if name not in known:
            raise Refused(f"tiny image: no package has the library {name}; use a newer release of Hostler")
        found[name] = known[name]
        wanted += formats.needed_libraries(known[name])
    return dict(sorted(found.items()))


def _add_modules(archive: Archive, files: Mapping[str, bytes]) -> None:
    modules = {path: content for path, content in files.items() if ".ko" in path.rsplit("/", 1)[-1]}
    listed = next((content for path, content in files.items() if path.endswith("/modules.builtin")), b"")
    builtin = listed.decode().split()
    early = modules_in_order(modules, builtin, EARLY)
    done = {name for name, _ in early}
    rest = [(name, data) for name, data in modules_in_order(modules, builtin, IDENTITY) if name not in done]
    for stage, chosen in (("early", early), ("identity", rest)):
        archive.folder(f"system/lib/modules/{stage}")
        for number, (name, content) in enumerate(chosen):  # the shell lists them in this order
            archive.file(f"system/lib/modules/{stage}/{number:02}-{name}.ko", content)


def _add_programs(
    archive: Archive, files: Mapping[str, bytes], applets: Iterable[str], compiled: Mapping[str, bytes]
) -> None:
    ours = {name: content for name, content in compiled.items() if name != "sudo"}
    theirs = {name: executable(files, name) for name in _SERVERS}
    archive.file("system/bin/busybox", executable(files, "busybox"), 0o755)
    for name, content in {**ours, **theirs}.items():
        archive.file(f"system/bin/{name}", content, 0o755)
    archive.file("system/bin/sudo", compiled["sudo"], 0o4750, gid=USER_ID)
    for name in applets:
        if f"system/bin/{name}" not in archive:
            archive.link(f"system/bin/{name}", "busybox")
    loader = formats.interpreter(theirs["dropbear"]) or ""
    for name, content in libraries_of(files, theirs.values()).items():
        path = loader if loader.endswith(f"/{name}") else f"/lib/x86_64-linux-gnu/{name}"
        archive.file(f"system{path}", content, 0o755)
    for name in guest.PROGRAMS:
        archive.file(f"system/lib/hostler/{name}", guest.text(name), 0o755)


def _add_settings(archive: Archive) -> None:
    for name in _FOLDERS:
        archive.folder(f"system/{name}")
    archive.link("system/sbin", "bin")
    archive.link("system/usr/bin", "../bin")
    archive.link("system/usr/sbin", "../bin")
    archive.folder("system/disk", 0o700)
    archive.folder("system/root", 0o700)
    archive.folder("system/var/lib/hostler", 0o700)
    archive.folder("system/tmp", 0o1777)
    archive.folder(f"system/home/{USER}", 0o755, uid=USER_ID, gid=USER_ID)
    for name, text in _SETTINGS.items():
        archive.file(f"system/etc/{name}", text.encode())
    archive.file("system/etc/inittab", guest.text("inittab"))
    archive.file("system/etc/shadow", f"root:*:19000::::::\n{USER}:*:19000::::::\n".encode(), 0o600)
    archive.file("system/etc/acpi/PWRF/00000080", b"#!/bin/sh\nexec /lib/hostler/off\n", 0o755)
