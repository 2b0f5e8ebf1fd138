"""An archive in the format that the kernel unpacks at boot (`newc`), written without root and without tools.

Owner, mode and device numbers are given by the caller. Nothing depends on the host or on the time.
"""

from __future__ import annotations

import stat
from pathlib import PurePosixPath

MODES = 0o7777


class Archive:
    """Files by their path from `/`. Missing parent folders are added with mode 0755, owned by root."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._paths: set[str] = set()
        self._size = 0
        self._number = 0

    def file(self, path: str, content: bytes, mode: int = 0o644, *, uid: int = 0, gid: int = 0) -> None:
        """Add a regular file; `mode` may contain the set-uid bit."""
        self._entry(path, stat.S_IFREG | mode & MODES, content, uid=uid, gid=gid)

    def folder(self, path: str, mode: int = 0o755, *, uid: int = 0, gid: int = 0) -> None:
        """Add an empty folder."""
        self._entry(path, stat.S_IFDIR | mode & MODES, b"", uid=uid, gid=gid)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def device(self, path: str, mode: int, major: int, minor: int) -> None:
        """Add a character device, such as the console that init needs before it has mounted anything."""
        self._entry(path, stat.S_IFCHR | mode & MODES, b"", device=(major, minor))

    def __contains__(self, path: str) -> bool:
        return _relative(path) in self._paths

    def packed(self) -> bytes:
        """Return the complete archive with its trailer; call it once."""
        self._write("TRAILER!!!", 0, b"", uid=0, gid=0, device=(0, 0))
        self._parts.append(b"\0" * (-self._size % 512))
        return b"".join(self._parts)

    def _entry(
        self,
        path: str,
        mode: int,
        content: bytes,
        *,
        uid: int = 0,
        gid: int = 0,
        device: tuple[int, int] = (0, 0),
    ) -> None:
        name = _relative(path)
        if name in self._paths:
            raise ValueError(f"{path}: already in the archive")
        for parent in reversed(PurePosixPath(name).parents):
            if str(parent) != "." and str(parent) not in self._paths:
                self._paths.add(str(parent))
                self._write(str(parent), stat.S_IFDIR | 0o755, b"", uid=0, gid=0, device=(0, 0))
        self._paths.add(name)
        self._write(name, mode, content, uid=uid, gid=gid, device=device)

    def _write(self, name: str, mode: int, content: bytes, *, uid: int, gid: int, device: tuple[int, int]) -> None:
        self._number += 1
        links = 2 if stat.S_ISDIR(mode) else 1
        text = name.encode() + b"\0"
        fields = (self._number, mode, uid, gid, links, 0, len(content), 0, 0, *device, len(text), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + text
        self._append(head)
        self._append(content)

    def _append(self, data: bytes) -> None:
        padded = data + b"\0" * (-len(data) % 4)
        self._parts.append(padded)
        self._size += len(padded)


def _relative(path: str) -> str:
    name = path.strip("/")
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{path!r}: not a plain path")
    return name
