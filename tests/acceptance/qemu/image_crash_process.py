"""Does one thing to a folder of images, and kills itself at the N-th step that touches it.

    python image_crash_process.py VERB FOLDER SOURCE

Reads step numbers from standard input, one a line; for each, a child of its own does the thing. Writes a line:
`killed`, `done`, or what was refused. Steps are what Python tells its audit hooks of: files that are opened, made,
renamed, removed, locked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from hostler.drivers.machines.qemu.images import add as _loaded_before_the_fork  # noqa: F401
from hostler.drivers.machines.qemu.images.folder import ImageFolder

STEPS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.truncate", "fcntl.flock"}


def die_at(step: int) -> None:
    """Kill this process, without a word, right before its N-th step."""
    left = step

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event not in STEPS or (event == "open" and "images" not in str(arguments[0])):
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


async def act(verb: str, folder: Path, source: str) -> None:
    images = ImageFolder(folder / "images", machines=folder / "machines")
    if verb == "add":
        await images.add("new", source, sha256=None, options={}, progress=lambda *_: None)
    elif verb == "link":
        await images.link_into("old", Path(source))
    else:
        await images.remove("old")


def main() -> None:
    verb, folder, source = sys.argv[1:]
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            die_at(int(line))
            try:
                asyncio.run(act(verb, Path(folder), source))
            except BaseException as error:  # noqa: BLE001 - the test reads it
                os.write(1, f"{type(error).__name__}: {error}\n".encode())
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            os.write(1, b"killed\n")
        elif os.WEXITSTATUS(status) == 0:
            os.write(1, b"done\n")


if __name__ == "__main__":
    main()
