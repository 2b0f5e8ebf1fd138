"""A script in network, mount and process namespaces of its own, which end with it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import running

from hostler.testing.servers import find_binary

HERE = Path(__file__).parent


async def run_apart(program: Path | str, *arguments: object, within: float) -> Any:
    """What the last line of a script's or module's output says, which is JSON. It may import from the tests' folders,
    a script also from its own.
    """
    own = [] if isinstance(program, str) else [program.parent]
    folders = [*own, HERE / "acceptance" / "qemu", HERE / "acceptance", HERE]
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    if os.geteuid() == 0 and isinstance(program, Path):
        code, text = await _forked(program, arguments, environ, within)
    else:
        code, text = await _started(program, arguments, environ, within)
    print(text)
    assert code == 0, text
    return json.loads(text.splitlines()[-1])


async def _forked(
    program: Path, arguments: tuple[object, ...], environ: dict[str, str], within: float
) -> tuple[int, str]:
    """By this worker's fork server: no interpreter starts, and nothing is imported again."""
    with tempfile.TemporaryFile() as output:
        process = running.fork_server().start(
            arguments, script=program, apart=True, environ=environ, stdout=output.fileno(), stderr=output.fileno()
        )
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process, ended.set)
        try:
            async with asyncio.timeout(within):
                await ended.wait()
        finally:
            loop.remove_reader(process)
            process.kill()
            code = process.wait()
            output.seek(0)
            text = output.read().decode()
    return code, text


async def _started(
    program: Path | str, arguments: tuple[object, ...], environ: dict[str, str], within: float
) -> tuple[int, str]:
    namespaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        namespaces += ["--user", "--map-root-user"]
    what = ["-m", program] if isinstance(program, str) else [str(program)]
    process = await asyncio.create_subprocess_exec(
        *(find_binary("unshare"), *namespaces, sys.executable, *what, *map(str, arguments)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
    )
    try:
        async with asyncio.timeout(within):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()
