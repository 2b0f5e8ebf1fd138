"""Everything but real guests runs without what only Linux has: proven by hiding it (`without_linux`)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from up_process import START, Done, until
from without_linux import make_environment

from hostler.entry.cli.slice.project import make
from hostler.testing.servers import ServerProcess

HIDDEN = """
import os, signal, socket, time
names = [(os, "pidfd_open"), (os, "splice"), (time, "CLOCK_BOOTTIME"), (socket, "SO_PEERCRED")]
assert not [name for module, name in names if hasattr(module, name)]
for look in (os.stat, open, os.listdir, os.readlink):
    try:
        look("/proc/self")
    except FileNotFoundError:
        continue
    raise SystemExit(f"{look} sees /proc")
print("hidden")
"""
SCENARIO = "scenarios/agent-killed-while-creating.yaml"


class Elsewhere:
    """A system without Linux, and the commands that a user runs there."""

    def __init__(self, folder: Path) -> None:
        self.python, programs = make_environment(folder / "venv")
        # Longer than a socket address may be: there is no way through a descriptor.
        self.data = folder / "a-data-folder-with-a-long-name" / ("deep-" * 12) / "data"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HOSTLER", "PYTHON"))},
            "PATH": str(programs),
            "HOSTLER_DATA": str(self.data),
            "HOSTLER_SLICE_USERS": "owner",
        }

    def up(self, log: Path) -> ServerProcess:
        command = ["env", "-i", *(f"{name}={value}" for name, value in self.environ.items()), str(self.python)]
        return ServerProcess([*command, "-m", "hostler", "up", "--listen", "127.0.0.1:0", "--nodes", "2"], log)

    def run(self, *arguments: object) -> Done:
        command = [str(self.python), *map(str, arguments)]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=240, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    def hostler(self, *arguments: object) -> Done:
        """Run a command that must succeed."""
        done = self.run("-m", "hostler", *arguments)
        assert done.code == 0, f"{arguments}: {done}"
        assert "Traceback" not in done.err, done
        return done


def workers() -> list[int]:
    """Return the workers of the slice."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [int(name)] if b"org.elsewhere:greeting:1.0.0#1" in words else []
    return found


@pytest.fixture
def elsewhere(tmp_path: Path) -> Elsewhere:
    return Elsewhere(tmp_path)


def test_linux_is_hidden_from_every_python_of_that_system(elsewhere: Elsewhere) -> None:
    for isolated in ([], ["-I"]):
        done = elsewhere.run(*isolated, "-c", HIDDEN)
        assert done.out == "hidden\n", done


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_machines_slices_doctor_and_the_simulator_run_there(elsewhere: Elsewhere, tmp_path: Path) -> None:
    log, shop = tmp_path / "up.out", tmp_path / "shop.toml"
    shop.write_text('[[slices]]\nartifact = "org.elsewhere:greeting:1.0.0"\ninstances = 1\n')
    source = make("greeting", "org.elsewhere", tmp_path / "greeting")
    up = elsewhere.up(log)
    try:
        await until(lambda: re.search("ready http", log.read_text()) or not up.running, 2 * START, log.read_text)
        assert up.running, log.read_text()
        elsewhere.hostler("vm", "create", "web", "--wait")
        assert [vm["name"] for vm in elsewhere.hostler("vm", "list", "-o", "json").json] == ["web"]

        elsewhere.hostler("slice", "push", source)
        elsewhere.hostler("blueprint", "apply", shop, "--name", "shop", "--yes", "--wait")
        said = elsewhere.hostler("invoke", "org.elsewhere:greeting", "greet", "name=you")
        assert "you" in said.out, said
        (first,) = workers()
        os.kill(first, 9)  # its end is noticed without a pidfd, and it is started again
        await until(lambda: workers() not in ([], [first]), 2 * START, lambda: f"{workers()} {log.read_text()}")
        examined = elsewhere.run("-m", "hostler", "doctor")
        assert "Traceback" not in examined.err, examined
        assert "FAIL" not in examined.out.upper().replace("0 FAIL", ""), examined
        elsewhere.hostler("blueprint", "delete", "shop", "--yes", "--wait")
        assert workers() == []
        assert "passed" in elsewhere.hostler("sim", "run", SCENARIO, "--seed", "1").out
        up.signal(signal.SIGTERM)
        await until(lambda: not up.running, START, log.read_text)
        assert "Traceback" not in log.read_text()
    finally:
        up.kill()

    again = elsewhere.up(tmp_path / "again.out")
    try:
        await until(lambda: "ready http" in (tmp_path / "again.out").read_text(), 2 * START, log.read_text)
        assert [vm["name"] for vm in elsewhere.hostler("vm", "list", "-o", "json").json] == ["web"]
    finally:
        again.kill()
