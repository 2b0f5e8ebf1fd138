"""The system of the tiny guest, as an initrd: programs of Debian's packages, and the scripts of `guest`.

/init                 the kernel's first program
/system               lower layer of the machine's root; the disk stores only the differences
/system/lib/modules   early: equal for all machines; identity: modules that read a machine's own properties when loaded
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.images import elf, guest, kernel
from hostler.drivers.machines.qemu.images.cpio import Archive
from hostler.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    wanted = [name for content in programs for name in elf.needed(content)]
    while wanted:
        name = wanted.pop()
        if name in found:
            continue
        if name not in known:
            raise Refused(f"tiny image: no package has the library {name}; use a newer release of Hostler")
        found[name] = known[name]
        wanted += elf.needed(known[name])
    return dict(sorted(found.items()))


def _add_modules(archive: Archive, files: Mapping[str, bytes]) -> None:
    modules = {path: content for path, content in files.items() if ".ko" in path.rsplit("/", 1)[-1]}
    listed = next((content for path, content in files.items() if path.endswith("/modules.builtin")), b"")
    builtin = listed.decode().split()
    early = kernel.in_order(modules, builtin, EARLY)
    done = {name for name, _ in early}
    rest = [(name, data) for name, data in kernel.in_order(modules, builtin, IDENTITY) if name not in done]
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
    loader = elf.interpreter(theirs["dropbear"]) or ""
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
