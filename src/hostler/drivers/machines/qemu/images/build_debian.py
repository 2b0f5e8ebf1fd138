"""Builds a Debian guest: systemd, cloud-init, OpenSSH.

    kernel   the cloud kernel, uncompressed, so that it starts at once
    initrd   generated here: it finds the disk and switches to Debian's init
    disk     an ext4 with what mmdebstrap installs; it grows with the machine's disk

mmdebstrap needs root, or user namespaces with a range of subordinate users. Its mounts are not visible outside.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import re
import shutil
import signal
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu.images import debian, initrd
from hostler.drivers.machines.qemu.images.build import KERNEL
from hostler.drivers.machines.qemu.images.formats import Archive
from hostler.drivers.machines.qemu.images.layout import as_subordinate_root
from hostler.drivers.machines.qemu.images.packages import Packages
from hostler.errors import Refused, Unavailable
from hostler.kit.processes import command_ending_with_us, end_process
from hostler.model.image import Probe, Seeding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostler.drivers.machines.qemu.images.layout import Scratch
    from hostler.drivers.machines.qemu.images.packages import Package
    from hostler.ports.machine_driver import Progress

RECIPE = 2
"""Increased when this module builds another image from the same packages and files."""
SUITE = "bookworm"
BUSYBOX = "busybox-static"
INCLUDE = (
    *("ca-certificates", "cloud-init", "dbus", "init", "iproute2", "iputils-ping", "kmod", "less", "netbase"),
    *("openssh-server", "procps", "sudo", "systemd-resolved", "udev", "vim-tiny"),
)
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
APPEND = "root=/dev/vda ro console=ttyS0 quiet mitigations=off cryptomgr.notests no_timer_check panic=-1 net.ifnames=0"
DISK_BYTES = 2 * 2**30
USER = "hostler"
INITRD_MODULES = ("virtio_pci", "virtio_blk")
APPLETS = ("sh", "insmod", "mount", "switch_root", "usleep", "poweroff")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCES = f"""\
Types: deb
URIs: http://deb.debian.org/debian
Suites: {SUITE} {SUITE}-updates
Components: main
Signed-By: {KEYRING}

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: {SUITE}-security
Components: main
Signed-By: {KEYRING}
"""
TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "qemu-img": "qemu-utils",
    "tar": "tar",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "apt-get": "apt",
}
"""Required programs, and the package of each."""
_KERNEL_FILE = re.compile(r"^/boot/vmlinuz-")
_MODULE = re.compile(r"^/lib/modules/")
_BUSYBOX_FILE = re.compile(r"bin/busybox$")
_INSTALLED = re.compile(r"^Inst (\S+) \((\S+)", re.MULTILINE)
_UUID = "5d3bd2fc-5e0c-4f0e-8d1e-64656269616e"


class DebianBuild:
    """One build, in a scratch folder."""

    def __init__(self, scratch: Scratch, progress: Progress, *, cache: Path) -> None:
        """Set up the build. Packages of the boot files are kept in `cache`. Refused: a tool is missing."""
        _refuse_without_tools()
        self._path, self._lock, self._progress = scratch.path, scratch.lock, progress
        self._packages = Packages(cache)
        self._source = ""

    async def source(self) -> str:
        """Return what it would be built from now: the release, its packages, and this recipe."""
        if self._source:
            return self._source
        self._progress("looking for packages", 0, None)
        image, _ = await self._boot_packages()
        output = await self._mmdebstrap("--simulate", "--verbose", target="/dev/null")
        found = sorted(set(_INSTALLED.findall(output)))
        if not found:
            raise Unavailable("debian image: mmdebstrap lists no packages; run it again, or check apt's sources")
        recipe = [*(debian.text(name) for name in sorted(debian.FILES.values())), debian.text("init"), APPEND.encode()]
        text = repr((RECIPE, image.version, found, LEFT_OUT, DISK_BYTES, recipe))
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._source = f"packages of Debian {SUITE}: {image} and {len(found)} others ({mark})"
        return self._source

    async def build(self) -> dict[str, Any]:
        """Write `disk`, `kernel` and `initrd`; return their properties as fields of `Image`."""
        source = await self.source()
        image, busybox = await self._boot_packages()
        self._progress("kernel", 0, None)
        files = await self._packages.files(image, _KERNEL_FILE, _MODULE)
        programs = await self._packages.files(busybox, _BUSYBOX_FILE)
        version = await asyncio.to_thread(self._write_boot, files, next(iter(programs.values())))
        self._progress("installing packages", 0, None)
        await self._mmdebstrap(
            '--customize-hook=rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/hostname "$1"/etc/apt/sources.list.d/*',
            '--customize-hook=rm -f "$1"/etc/apt/sources.list',
            *("--customize-hook=tar-in extra.tar /", f'--customize-hook=chroot "$1" depmod {version}'),
            '--customize-hook=: > "$1"/etc/machine-id',
            '--customize-hook=chroot "$1" systemctl --quiet enable systemd-networkd hostler-ready',
            target="root.tar",
        )
        self._progress("disk", 0, None)
        await self._make_disk()
        return {
            "disk_format": "qcow2",
            "disk_bytes": DISK_BYTES,
            "append": APPEND,
            "user": USER,
            "seeding": Seeding.CLOUD_INIT,
            "probe": Probe.SSH,
            "memory_mib": 256,
            "boot_seconds": 240.0,
            "source": source,
        }

    async def _boot_packages(self) -> tuple[Package, Package]:
        """Return the packages of the kernel and of the initramfs's program."""
        async with self._packages.locked():
            image, others = await self._packages.find(KERNEL, [BUSYBOX])
            busybox = next(package for package in others if package.name == BUSYBOX)
            await self._packages.fetch([image, busybox], lambda done, total: self._progress("packages", done, total))
        return image, busybox

    def _write_boot(self, files: Mapping[str, bytes], busybox: bytes) -> str:
        """Write `kernel`, `initrd`, and `extra.tar` with files besides the packages; return the kernel's version."""
        packed = next(path for path in files if path.startswith("/boot/vmlinuz-"))
        version = packed.removeprefix("/boot/vmlinuz-")
        (self._path / "kernel").write_bytes(initrd.unpack_kernel(files[packed]))
        modules = {path: content for path, content in files.items() if ".ko" in path.rsplit("/", 1)[-1]}
        builtin = files[f"/lib/modules/{version}/modules.builtin"].decode().split()
        (self._path / "initrd").write_bytes(_initrd(initrd.modules_in_order(modules, builtin, INITRD_MODULES), busybox))
        extra = {path: debian.text(name) for path, name in debian.FILES.items()}
        extra["/etc/apt/sources.list.d/debian.sources"] = SOURCES.encode()
        extra["/etc/fstab"] = b"/dev/vda / ext4 defaults,errors=remount-ro 0 1\n"
        extra |= {f"/usr{path}": content for path, content in files.items() if _MODULE.match(path)}
        with tarfile.open(self._path / "extra.tar", "w") as archive:
            for path, content in extra.items():
                entry = tarfile.TarInfo(path.lstrip("/"))
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
        return version

    async def _mmdebstrap(self, *arguments: str, target: str) -> str:
        own = _sources_here()
        if own is None:
            (self._path / "debian.sources").write_text(SOURCES, encoding="ascii")
        outside = self._path / "tmp"
        outside.mkdir(exist_ok=True)
        # Without root it runs in a namespace that cannot enter this folder.
        env = {"TMPDIR": str(outside)} if os.geteuid() == 0 else {}
        return await self._run(
            *_with_own_mounts(),
            *("mmdebstrap", "--variant=minbase", f"--include={','.join(INCLUDE)}", "--format=tar"),
            *(option for path in LEFT_OUT for option in (f"--dpkgopt=path-exclude={path}",)),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            '--aptopt=APT::Sandbox::User "root"',
            *arguments,
            *(SUITE, target, own or "debian.sources"),
            env=env,
        )

    async def _make_disk(self) -> None:
        """Make the disk from `root.tar`. Without root, a user namespace preserves the owners of files."""
        (self._path / "tree").mkdir()
        raw = self._path / "disk.raw"
        with raw.open("wb") as file:
            file.truncate(DISK_BYTES)
        script = (
            "tar --extract --file root.tar --directory tree --preserve-permissions --numeric-owner --xattrs"
            " --xattrs-include='*' --exclude='./dev/*' && chmod 755 tree"
            f" && mke2fs -q -F -t ext4 -b 4096 -m 1 -L hostler -U {_UUID} -E hash_seed={_UUID} -d tree disk.raw"
            "; code=$?; rm -rf tree; exit $code"
        )
        await self._run(*as_subordinate_root(), "sh", "-c", script)
        (self._path / "root.tar").unlink()
        convert = ("qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-c", "-o", "compression_type=zstd")
        await self._run(*convert, "disk.raw", "disk")
        raw.unlink()

    async def _run(self, *argv: str, env: Mapping[str, str] | None = None) -> str:
        """Run a program and return its output.

        It holds the scratch folder's lock, and is ended when this process ends.
        """
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        process = await asyncio.create_subprocess_exec(
            *command_ending_with_us(argv, signal.SIGTERM),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self._path,
            env={**os.environ, "LC_ALL": "C", "PATH": path, **(env or {})},
            pass_fds=(self._lock,),
            limit=2**20,
        )
        assert process.stdout is not None  # noqa: S101 - requested above
        assert process.stderr is not None  # noqa: S101
        try:
            output, errors = await asyncio.gather(process.stdout.read(), self._read_progress(process.stderr))
            await process.wait()
        finally:
            await end_process(process, signal.SIGTERM)
        if process.returncode:
            raise _failure_of(argv, errors.decode(errors="replace"))
        return (output + errors).decode(errors="replace")

    async def _read_progress(self, errors: asyncio.StreamReader) -> bytes:
        """Collect standard error, and report the progress that mmdebstrap prints there."""
        lines = []
        async for line in errors:
            lines.append(line)
            if line.startswith(b"I: "):
                self._progress(line[3:].decode(errors="replace").strip(), 0, None)
        return b"".join(lines)


def _with_own_mounts() -> Sequence[str]:
    """Return the command prefix that gives mmdebstrap, as root, its own mounts, which end with it in any case.

    It mounts devices of this host into the new system: left behind, they would be removed together with the scratch
    folder.
    """
    return ("unshare", "--mount", "--propagation", "private", "--") if os.geteuid() == 0 else ()


def _refuse_without_tools() -> None:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    needed = TOOLS if os.geteuid() == 0 else TOOLS | {"newuidmap": "uidmap"}
    missing = {tool: package for tool, package in needed.items() if shutil.which(tool, path=path) is None}
    if missing:
        raise Refused(
            f"debian image: {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing;"
            f" install {' '.join(sorted(set(missing.values())))}, or build tiny"
        )
    if not Path(KEYRING).exists():
        raise Refused(f"debian image: {KEYRING} is missing; install debian-archive-keyring, or build tiny")


def _sources_here() -> str | None:
    """Return this host's own package sources for that release: it may not reach others."""
    for path in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        if any(SUITE in line.split() for line in lines if not line.lstrip().startswith("#")):
            return str(path)
    return None


def _initrd(modules: Sequence[tuple[str, bytes]], busybox: bytes) -> bytes:
    archive = Archive()
    archive.file("init", debian.text("init"), 0o755)
    archive.file("bin/busybox", busybox, 0o755)
    for applet in APPLETS:
        archive.link(f"bin/{applet}", "busybox")
    for name, content in modules:
        archive.file(f"lib/modules/{name}.ko", content)
    archive.file("lib/modules/order", " ".join(name for name, _ in modules).encode() + b"\n")
    for folder in ("proc", "sys", "root"):
        archive.folder(folder)
    archive.device("dev/console", 0o600, 5, 1)
    return archive.packed()


def _failure_of(argv: Sequence[str], errors: str) -> Refused | Unavailable:
    tool = next((word for word in argv if word in TOOLS), argv[0])
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    told = next((line for line in lines if line.startswith("E:")), last)  # the others follow from the first
    text = f"debian image: {tool} failed: {told}"
    if re.search(r"fetch|resolve|connect|timed out|No space", errors, re.IGNORECASE):
        return Unavailable(f"{text}; check the network and the free space, then try again")
    return Refused(f"{text}; correct that, or build tiny")
