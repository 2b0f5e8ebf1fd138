"""From nothing to a shell in a machine, as a person does it: programs only, and one guest."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import running
from harness.pace import patience

from hostler.drivers.machines.qemu.images.folder import ImageFolder

SOME = 40.0
"""Seconds, at most, for a command that may have to wait for a guest."""


class Person:
    """Somebody at a terminal, with a home of their own."""

    def __init__(self, home: Path) -> None:
        self.home, self.data = home, home / "data"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("HOSTLER_", "SSH_"))},
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "HOSTLER_DATA": str(self.data),
        }

    def run(self, *words: str, stdin: bytes = b"", code: int = 0, **environ: str) -> bytes:
        """What a command says, and how it must end; it is forked, with a home, an environment and streams as given."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin)
            given.seek(0)
            process = running.fork_server().start(
                list(words),
                environ=self.environ | environ,
                cwd=str(self.home),
                stdin=given.fileno(),
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
            try:
                ended = process.wait(patience(SOME))
            finally:
                process.kill()
                process.wait()
            for stream in (out, err):
                stream.seek(0)
            said, complained = out.read(), err.read()
        assert ended == code, f"{words}: {ended}: {said.decode()} {complained.decode()}"
        assert b"Traceback" not in complained
        return said


@pytest.fixture
def person(images: ImageFolder, tmp_path: Path) -> Iterator[Person]:
    home = tmp_path / "home"
    home.mkdir()
    who = Person(home)
    who.data.mkdir(mode=0o700)
    shutil.copytree(images.path, who.data / "images", ignore=shutil.ignore_patterns("cache", "warm"))
    try:
        yield who
    finally:
        if not (who.data / "server").exists():
            who.run("up", "--machines", "qemu", "--listen", "127.0.0.1:0", "--detach")
        listed = json.loads(who.run("vm", "list", "-o", "json"))
        if listed:
            who.run("vm", "delete", "--yes", "--wait", *(vm["id"] for vm in listed))
        assert who.run("down") == b"ended\n"  # no machine runs on
        assert not list((who.data / "machines").glob("*/vms/*")), "machines were left behind"


@pytest.mark.timeout(300)
def test_from_nothing_to_a_shell_and_back(person: Person) -> None:
    up = ("up", "--machines", "qemu", "--nodes", "1", "--listen", "127.0.0.1:0", "--detach")
    said = person.run(*up, "--first-vm").decode()
    assert "vm ssh hello" in said, said
    assert "hello, running on local-1, available" in said

    # A command: its output, its errors, its code; bytes as they are; not the machine's name but its own key counts.
    assert person.run("vm", "ssh", "hello", "echo out; exit 7", code=7) == b"out\n"
    data = random.Random(5).randbytes(400_000)
    assert person.run("vm", "ssh", "hello", "--", "cat", stdin=data) == data

    # Files, there and back.
    (person.home / "tree" / "deep").mkdir(parents=True)
    (person.home / "tree" / "deep" / "a file").write_bytes(data)
    (person.home / "tree" / "link").symlink_to("deep/a file")
    person.run("vm", "cp", "tree", "hello:")
    digest = hashlib.sha256(data).hexdigest().encode()
    assert person.run("vm", "ssh", "hello", "sha256sum < tree/link").startswith(digest)
    person.run("vm", "cp", "hello:tree", "back")
    assert (person.home / "back" / "deep" / "a file").read_bytes() == data
    assert os.readlink(person.home / "back" / "link") == "deep/a file"

    # What is told of it, and the console, at which nobody needs a key.
    view = json.loads(person.run("vm", "show", "hello", "-o", "json"))
    assert view["available"]
    assert view["access"]["host_keys"][0].startswith("ssh-ed25519 ")
    assert b"echo hi there" in person.run("vm", "console", "hello", stdin=b"\recho hi there\r")
    node = json.loads(person.run("node", "show", "local-1", "-o", "json"))
    assert node["facts"]["acceleration"].startswith(("tcg", "kvm"))
    assert "tiny" in node["images"]
    findings = {each["of"]: each for each in json.loads(person.run("doctor", "-o", "json"))}
    assert findings["qemu"]["level"] == "ok"
    assert "tiny (1 machine)" in findings["images"]["what"]

    # Another process serves, and the machine is reached through the agent of this one.
    with _replica(person) as server:
        token = (person.data / "admin.token").read_text().strip()
        elsewhere = {"HOSTLER_SERVER": server, "HOSTLER_TOKEN": token}
        assert person.run("vm", "ssh", "hello", "--", "echo", "from afar", **elsewhere) == b"from afar\n"

    # The control plane goes and comes; the guest does not notice.
    boot = person.run("vm", "ssh", "hello", "cat /proc/sys/kernel/random/boot_id")
    person.run("down")
    person.run(*up)
    assert person.run("vm", "ssh", "hello", "cat /proc/sys/kernel/random/boot_id") == boot


class _replica:  # noqa: N801 - used as a verb
    """`hostler replica` on the same store."""

    def __init__(self, person: Person) -> None:
        self._person = person

    def __enter__(self) -> str:
        store = f"sqlite://{self._person.data}/hostler.db"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hostler", "replica", "--store", store, "--listen", "127.0.0.1:0"],
            env=self._person.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if " serving " in line:
                return line.split()[-1]
        raise AssertionError("the replica did not serve")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=patience(10))
