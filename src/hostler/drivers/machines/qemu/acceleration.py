"""Finds out whether guests can run under KVM, by booting one.

A device that opens proves nothing: on some hosts it opens and guests hang. So the probe boots the kernel of the tiny
guest under KVM, for some seconds at most, and waits for its boot message. The probe runs with the rights of a machine,
under a separate user where machines have one: the access of the agent proves nothing about theirs, and the kernel of an
image is not trusted. The verdict is stored next to the images with everything it depends on. When one of those changes,
the probe runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu.command import BINARY, MACHINE, SANDBOX
from hostler.drivers.machines.qemu.images.folder import link_file
from hostler.drivers.machines.qemu.privileges import accelerator_groups, own_files
from hostler.drivers.privileges import Privileges, rights_for
from hostler.errors import HostlerError, Unavailable
from hostler.kit.processes import command_ending_with_us, end_process, environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FILE = "acceleration.json"
LOCK = "acceleration.lock"
STAGE = "acceleration.probe"
"""Working folder of the probe. Only the holder of the lock creates it, so an existing one was left by a kill."""
DEVICE = "/dev/kvm"
SAYS = b"hostler booted"
WITHIN = 5.0
WITHIN_UNDER_LOAD = 10.0
LOOK_EVERY = 0.1
MEMORY_MIB = 128
GUEST = ("kernel", "initrd")
NO_IMAGE = "not probed: no image with a kernel"


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a verdict depends on, except the guest that was tried."""

    qemu: str
    """Size and modification time of the QEMU program."""
    kernel: str
    processor: str
    users: bool
    """Whether guests run as separate users."""
    device: bool
    """Whether the user that runs guests may open the device."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `acceleration.json`."""

    accelerator: str
    """`kvm` or `tcg`."""
    why: str
    at: float
    """Time of the probe, in seconds since 1970."""
    host: Host
    guests: tuple[str, ...] = ()
    """Guests that were tried. One that boots is proof; one that does not may itself be faulty."""


def with_device(rights: Privileges, accelerator: str) -> Privileges:
    """Return the rights of a guest's process under that accelerator. Ask at each start: the first may run the probe."""
    groups = () if rights.uid is None else accelerator_groups(accelerator, DEVICE)
    return msgspec.structs.replace(rights, groups=groups)


def stored_verdict(folder: Path, *, uids: range | None) -> Verdict | None:
    """Return the stored verdict if this host has not changed and guests have such users; None: no verdict."""
    try:
        verdict = msgspec.json.decode((folder / FILE).read_bytes(), type=Verdict)
        return verdict if verdict.host == _host(uids) else None
    except (OSError, msgspec.MsgspecError, Unavailable):
        return None


async def verdict(folder: Path, files: Path | None, *, uids: range | None) -> Verdict:
    """Return the stored verdict, or probe with the `kernel` and `initrd` in the folder `files`.

    Guests run as users among `uids`, or as the agent's user if None. Without files the verdict is `tcg` and is not
    stored. Unavailable: QEMU is not installed.
    """
    guest = await asyncio.to_thread(_guest, files) if files is not None else None
    host = await asyncio.to_thread(_host, uids)
    known = _usable_verdict(folder, guest, uids)
    if known is not None:
        return known
    if not host.device:
        return _store_verdict(folder, host, "tcg", f"{DEVICE} {_device_fault(uids)}", ())
    if guest is None or files is None:
        return Verdict(accelerator="tcg", why=NO_IMAGE, at=time.time(), host=host)
    async with _alone(folder):
        known = _usable_verdict(folder, guest, uids)  # another process may have probed during the wait
        if known is not None:
            return known
        before = stored_verdict(folder, uids=uids)
        why = await _try_guest(folder / STAGE, files, uids)
        tried = (*(before.guests if before else ()), guest)
        if why:
            return _store_verdict(folder, host, "tcg", why, tried)
        return _store_verdict(folder, host, "kvm", "a guest booted", tried)


def _usable_verdict(folder: Path, guest: str | None, uids: range | None) -> Verdict | None:
    """Return the stored verdict, unless a probe with this guest might change it."""
    known = stored_verdict(folder, uids=uids)
    if known is None or known.accelerator == "kvm" or not known.host.device or guest is None:
        return known
    return known if guest in known.guests else None


async def _try_guest(stage: Path, files: Path, uids: range | None) -> str:
    """Return why a guest does not boot under KVM; empty: it boots."""
    try:
        rights = await asyncio.to_thread(_lay, stage, files, uids)
        return await _boot_guest(stage, rights)
    except (HostlerError, OSError) as error:
        return f"cannot start the probe: {error}"
    finally:
        await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)


def _lay(stage: Path, files: Path, uids: range | None) -> Privileges:
    """Set up the probe's folder like a machine's; return the rights of a machine's process there."""
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(mode=0o700)
    for name in GUEST:
        link_file(files / name, stage / name)
    rights = with_device(rights_for(stage, os.fspath(stage), 0, uids), "kvm")
    own_files(rights, stage, writes=(), reads=())
    return rights


async def _boot_guest(stage: Path, rights: Privileges) -> str:
    loaded = os.getloadavg()[0] > (os.cpu_count() or 1)
    within = WITHIN_UNDER_LOAD if loaded else WITHIN
    argv = [
        *(BINARY, "-machine", MACHINE, "-accel", "kvm", "-cpu", "host", "-m", str(MEMORY_MIB), "-smp", "1"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", SANDBOX, "-serial", "stdio"),
        *("-kernel", "kernel", "-initrd", "initrd", "-append", "console=ttyS0 quiet panic=-1 hostler.probe"),
    ]
    process = await asyncio.create_subprocess_exec(
        *rights.wrap(command_ending_with_us(argv)),  # if the agent is killed, no guest stays behind
        cwd=stage,
        env=environment(),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(within):
            said, errors = await _read_until_booted(process)
    except TimeoutError:
        return f"a guest under KVM did not boot within {within:.0f} s"
    finally:
        await end_process(process)
    if SAYS in said:
        return ""
    return f"a guest under KVM ended before it booted: {_last_line(errors) or _last_line(said) or 'it said nothing'}"


async def _read_until_booted(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Return the output up to the boot message, or up to the end."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    assert process.stderr is not None  # noqa: S101 - as above
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        said = b""
        while SAYS not in said and (more := await process.stdout.read(4096)):
            said = (said + more)[-65_536:]
        return said, b"" if SAYS in said else await errors
    finally:
        errors.cancel()


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"{folder / LOCK}: cannot be opened: {error.strerror}; fix the cause and try again") from None


@contextlib.asynccontextmanager
async def _alone(folder: Path) -> AsyncIterator[None]:
    """Let one process at a time probe in this folder."""
    descriptor = _lock(folder)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(LOOK_EVERY)
        yield
    finally:
        os.close(descriptor)


def _store_verdict(folder: Path, host: Host, accelerator: str, why: str, guests: tuple[str, ...]) -> Verdict:
    found = Verdict(accelerator=accelerator, why=why, at=time.time(), host=host, guests=guests)
    draft = folder / f".{FILE}.{os.getpid()}"
    try:
        draft.write_bytes(msgspec.json.encode(found))
        draft.chmod(0o600)
        draft.replace(folder / FILE)
    except OSError:
        draft.unlink(missing_ok=True)  # the next call probes again
    return found


def _guest(files: Path) -> str | None:
    """Identify a guest by size and time of its files, which hard links share."""
    try:
        parts = [(files / name).stat() for name in GUEST]
    except OSError:
        return None
    return "-".join(f"{part.st_size}.{part.st_mtime_ns}" for part in parts)


def _host(uids: range | None) -> Host:
    path = shutil.which(BINARY)
    if path is None:
        raise Unavailable(f"{BINARY}: not installed; install qemu-system-x86 and try again")
    about = Path(path).stat()
    return Host(
        qemu=f"{about.st_size}.{about.st_mtime_ns}",
        kernel=os.uname().release,
        processor=_processor(),
        users=uids is not None,
        device=_may_open(uids),
    )


@functools.cache
def _processor() -> str:
    """Return the processor's name; it does not change while the process runs."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else "unknown"


def _may_open(uids: range | None) -> bool:
    """Return whether guests may open the device. For separate users its mode decides: they do not own it."""
    if uids is None:
        return os.access(DEVICE, os.R_OK | os.W_OK)
    try:
        mode = Path(DEVICE).stat().st_mode
    except OSError:
        return False
    return mode & 0o006 == 0o006 or bool(accelerator_groups("kvm", DEVICE))


def _device_fault(uids: range | None) -> str:
    if not Path(DEVICE).exists():
        return "does not exist"
    if uids is None:
        return "may not be opened by this user"
    return "may not be opened by the users of the machines; give it a separate group (chgrp kvm, chmod 660)"


def _last_line(text: bytes) -> str:
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""
