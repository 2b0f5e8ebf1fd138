"""Namespaces of a slice's process: it sees no other process and, if it runs as the agent's user, few files.

The agent starts `unshare`, which starts a shell as the first process of the new namespaces, which starts the worker.
First the worker mounts what the slice may see (`Confinement`) and drops every privilege. The shell reaps orphaned
processes of the slice, and exits with the status of the worker; then the kernel kills all remaining processes.

If the slice runs as the agent's user, its root is an empty file system with the system's folders, Python and its own
code read-only, and its own two folders. No other file of the agent's user is visible: not the data folder, not the home
folder, no socket, and no system configuration that other users cannot read, such as passwords. Such a process must not
inherit a descriptor of a folder outside: it would lead out of the confinement.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.ports.worker_protocol import GATEWAY, Confinement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VISIBLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/sys", "/nix/store"),
    *("/run/systemd/resolve",),  # the target of /etc/resolv.conf on some systems
)
"""System folders that are visible, read-only."""
PRIVATE = ("/etc", "/opt", "/usr/local/etc")
"""Folders where the agent's user may have files that other users cannot read."""
MOST_LOOKED_AT = 50_000
"""Files to examine in one of them. A folder with more files is not shown, except /etc."""
_OLD, _NEW = Path("/old"), Path("/new")
_EMPTY_FILE = Path("/empty")
_EMPTY = "size=1m,mode=755"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_SHARED_MEMORY = "size=64m,mode=1777"
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - mount points for the slice's own folder
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC = 2, 4, 8, 4096, 16384
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = -100, 0x8000, 1
_MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
_libc = ctypes.CDLL(None, use_errno=True)


def enter(plan: str) -> None:
    """Confine this process, which already has its own namespaces, as `plan` says. OSError: it cannot be confined."""
    confinement = msgspec.json.decode(plan, type=Confinement)
    if confinement.own_root:
        _new_root(confinement)
    else:
        _private_folders(confinement)
    if confinement.work and confinement.own_root:
        os.chdir(confinement.work)
    _give_up_rights(confinement.uid)


# Visible files


def _new_root(plan: Confinement) -> None:
    real = {path: os.path.realpath(path) for path in (*VISIBLE, *plan.readable, plan.work, plan.temporary)}
    real[plan.gateway] = os.path.realpath(plan.gateway)
    concealed, too_many = _concealed_paths(plan)
    base = Path("/proc")  # any folder that always exists: it is covered temporarily
    _mount("tmpfs", base, "tmpfs", _MS_NOSUID | _MS_NODEV, _EMPTY)
    for name in ("old", "new"):
        (base / name).mkdir()
    _check(_libc.syscall(_number(), os.fsencode(base), os.fsencode(base / "old")), "pivot_root")
    os.chdir("/")
    _mount("tmpfs", _NEW, "tmpfs", _MS_NOSUID | _MS_NODEV, _EMPTY)
    covered = sorted([*concealed, plan.hidden] if plan.hidden else concealed, key=lambda path: path.count("/"))
    inside = [path for path in plan.readable if any(_is_below(path, folder) for folder in covered)]
    outside = (path for path in (*VISIBLE, *plan.readable) if path not in (*inside, *too_many))
    for path in sorted(outside, key=lambda path: path.count("/")):
        _show(path, real)
    empty = [_NEW]
    _EMPTY_FILE.touch(mode=0o000)
    for path in covered:
        target = _within(_NEW, path)
        if target.is_dir():
            _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, _EMPTY)
            empty.append(target)
        elif target.exists():
            _mount(str(_EMPTY_FILE), target, None, _MS_BIND)
    for path in inside:
        _show(path, real)
    for path, at in _own(plan):
        _put(real[path], at, writable=path != plan.gateway)
    _devices()
    for skeleton in empty:
        _read_only(skeleton, recursive=False)
    _mount("tmpfs", _NEW / "dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, _SHARED_MEMORY)
    os.chdir(_NEW)
    _check(_libc.syscall(_number(), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")
    with suppress(OSError):  # forbid new user namespaces, in which the slice could mount
        Path("/proc/sys/user/max_user_namespaces").write_text("0", encoding="ascii")


def _own(plan: Confinement) -> Iterator[tuple[str, str]]:
    """Yield the slice's own folders, each with its mount point."""
    if plan.work:
        yield plan.work, plan.work
    if plan.gateway:
        yield plan.gateway, GATEWAY
    if plan.temporary:
        yield plan.temporary, plan.temporary
        for path in _TEMPORARY:
            if not any(_is_below(one, path) for one in (*plan.readable, plan.work)):
                yield plan.temporary, path


def _devices() -> None:
    for name in ("proc", "dev"):
        (_NEW / name).mkdir()
    _mount("proc", _NEW / "proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    for name in _DEVICES:
        if (_OLD / "dev" / name).exists():
            (_NEW / "dev" / name).touch()
            _mount(str(_OLD / "dev" / name), _NEW / "dev" / name, None, _MS_BIND)
    (_NEW / "dev/shm").mkdir()
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (_NEW / "dev" / name).symlink_to(f"/proc/self/fd{target}")


def _private_folders(plan: Confinement) -> None:
    """Hide other processes and give private temporary files to a slice that has its own user."""
    _mount("proc", Path("/proc"), "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if Path("/dev/shm").is_dir():  # noqa: S108 - it is covered
        _mount("tmpfs", Path("/dev/shm"), "tmpfs", _MS_NOSUID | _MS_NODEV, _SHARED_MEMORY)  # noqa: S108 - as above
    for path in _TEMPORARY if plan.temporary else ():
        if Path(path).is_dir() and not any(_is_below(one, path) for one in plan.readable):
            _mount(plan.temporary, Path(path), None, _MS_BIND)


def _concealed_paths(plan: Confinement) -> tuple[list[str], list[str]]:
    """Return what is below `PRIVATE` that we can read and others cannot; and the folders of `PRIVATE` to leave out.

    What the worker needs stays visible, because it may be installed so that only its own user can read it.
    """
    found: list[str] = []
    too_many: list[str] = []
    for folder in PRIVATE:
        own, is_whole = unreadable_by_others(folder, MOST_LOOKED_AT)
        if not is_whole and folder != "/etc":
            too_many.append(folder)
        found += (path for path in own if not any(_is_below(path, one) for one in plan.readable))
    return found, too_many


def unreadable_by_others(folder: str, most: int) -> tuple[list[str], bool]:
    """Return what this user can read in the folder and others cannot; and whether all files were examined.

    The contents of a folder that others cannot enter are not listed separately.
    """
    found: list[str] = []
    folders = [folder]
    looked_at = 0
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:  # no permission, or gone
            for entry in entries:
                looked_at += 1
                if looked_at > most:
                    return found, False
                with suppress(OSError):
                    if entry.is_symlink():
                        continue
                    mode, is_folder = entry.stat(follow_symlinks=False).st_mode, entry.is_dir(follow_symlinks=False)
                    if mode & (stat.S_IXOTH if is_folder else stat.S_IROTH):
                        if is_folder:
                            folders.append(entry.path)
                    elif os.access(entry.path, os.X_OK if is_folder else os.R_OK):
                        found.append(entry.path)
    return found, True


def _show(path: str, real: Mapping[str, str]) -> None:
    """Mount a folder of the old root in the new one, read-only, if it exists and is not visible yet."""
    target = _within(_NEW, path)
    if path.count("/") == 1 and real[path] != path:  # a link such as /bin → usr/bin
        target.symlink_to(real[path].lstrip("/"))
    elif not target.exists() and _within(_OLD, real[path]).is_dir():
        _put(real[path], path, writable=False)


def _put(source: str, at: str, *, writable: bool) -> None:
    target = _within(_NEW, at)
    target.mkdir(parents=True, exist_ok=True)
    _mount(str(_within(_OLD, source)), target, None, _MS_BIND | _MS_REC)
    if not writable:
        _read_only(target, recursive=True)


def _within(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    found = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        flags,
        options.encode() or None,
    )
    _check(found, f"mount {target}")


def _read_only(path: Path, *, recursive: bool) -> None:
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    found = _libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes))
    _check(found, f"mount_setattr {path}")


def _number() -> int:
    machine = os.uname().machine
    try:
        return _PIVOT_ROOT[machine]
    except KeyError:
        raise OSError(f"pivot_root: the system call number is unknown for {machine}") from None


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# Privileges


def _give_up_rights(uid: int | None) -> None:
    """Drop all capabilities permanently."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails harmlessly for those that this kernel does not have
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header, none = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), bytes(24)
    _check(_libc.capset(header, none), "capset")
    _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)  # the change of user made /proc/self inaccessible
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
