"""A script in network, mount and process namespaces of its own, which end with it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hostler.testing.servers import find_binary

HERE = Path(__file__).parent


async def run_apart(program: Path | str, *arguments: object, within: float) -> Any:
    """What the last line of a script's or module's output says, which is JSON. It may import from the tests' folders,
    a script also from its own.
    """
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    what = ["-m", program] if isinstance(program, str) else [str(program)]
    own = [] if isinstance(program, str) else [program.parent]
    folders = [*own, HERE / "acceptance" / "qemu", HERE / "acceptance", HERE]
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *(find_binary("unshare"), *namespaces, sys.executable, *what, *map(str, arguments)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        async with asyncio.timeout(within):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = output.decode()
    print(text)
    assert process.returncode == 0, text
    return json.loads(text.splitlines()[-1])
