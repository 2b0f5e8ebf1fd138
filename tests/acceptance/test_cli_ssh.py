"""`hostler vm ssh` and `vm cp`, as programs, to a real SSH server through the API of a real server."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import pty
import random
import signal
import stat
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import msgspec
import running
from api_server import Api, run_machine, serving
from doubles import DoorMachines, Guest
from harness import pace

from hostler.drivers.machines.simulated import MemoryHost, SimulatedMachines
from hostler.entry.ssh import own_key, own_public, public_text, terminal_key
from hostler.keys.families import HANDLE
from hostler.kit.clock import SystemClock
from hostler.model.lab import LabPhase
from hostler.model.vm import Access
from hostler.ports.machines import ChannelKind


class Ran:
    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code, self.out, self.err = code, out, err


class Place:
    """A server with the machine `one`, in which a real SSH server answers, and our command line beside it."""

    def __init__(self, api: Api, guest: Guest, vm: str, home: Path, where: tuple[str, str]) -> None:
        self.api, self.guest, self.vm, self.home = api, guest, vm, home
        self.org, self.project = where
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "HOSTLER_SERVER": api.url,
            "HOSTLER_TOKEN": api.admin,
            "HOSTLER_ORG": "acme",
            "HOSTLER_PROJECT": "web",
            "TERM": "vt220",
        }

    def arguments(self, *words: str, group: str = "vm") -> list[str]:
        return [sys.executable, "-m", "hostler", group, *words]

    async def run(self, *words: str, group: str = "vm") -> Ran:
        """Run the command, forked, to its end."""
        done = await asyncio.to_thread(
            running.fork_server().run, [group, *words], environ=self.environ, cwd=self.home, timeout=pace.patience(30)
        )
        assert "Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout.encode(), done.stderr)

    async def run_on_pipes(self, *words: str, stdin: bytes) -> Ran:
        """Start an interpreter with the command, give it that through a pipe, and wait for its end."""
        process = await asyncio.create_subprocess_exec(
            *self.arguments(*words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environ,
            cwd=self.home,
        )
        try:
            async with asyncio.timeout(pace.patience(30)):
                out, err = await process.communicate(stdin)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert "Traceback" not in err.decode()
        return Ran(process.returncode or 0, out, err.decode())

    async def told(self, **changes: object) -> None:
        """The machine's record says otherwise."""
        entry = await HANDLE.get(self.api.store, org=self.org, project=self.project, vm=self.vm)
        assert entry is not None
        await HANDLE.replace(self.api.store, entry, msgspec.structs.replace(entry.value, **changes))


@asynccontextmanager
async def placed(tmp_path: Path, org: str = "acme", project: str = "web") -> AsyncIterator[Place]:
    home, inside = tmp_path / "home", tmp_path / "guest"
    home.mkdir()
    inside.mkdir()
    doubles = DoorMachines({})
    async with (
        SimulatedMachines(MemoryHost(), clock=SystemClock(), rng=random.Random(1)) as simulated,
        Guest(str(inside)) as guest,
        serving(machines_of=lambda node: doubles if node == "n1" else None, sockets=True) as api,
    ):
        vm = await run_machine(api, simulated, org, project)
        doubles.ports[vm, ChannelKind.SSH] = guest.port
        place = Place(api, guest, vm, home, (org, project))
        guest.allow(public_text(own_key(home / "state" / "hostler" / "ssh" / "id_ed25519")))
        await place.told(access=Access(host="127.0.0.1", port=22, user="user", host_keys=(guest.public_key,)))
        yield place


async def test_a_command_runs_there_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        ran = await place.run("ssh", "one", "--", "printf", "%s|", "a b", "$HOME", "it's")
        assert (ran.code, ran.out, ran.err) == (0, b"a b|$HOME|it's|", "")
        ran = await place.run("ssh", "one", "echo out; echo err >&2; exit 7")
        assert (ran.code, ran.out, ran.err) == (7, b"out\n", "err\n")
        ran = await place.run("ssh", "one", "kill -KILL $$")
        assert ran.code == 128 + signal.SIGKILL
        assert place.guest.terms == [None, None, None]


async def test_bytes_go_both_ways_untouched_and_the_end_of_input_is_passed_on(tmp_path: Path) -> None:
    data = random.Random(7).randbytes(3_000_000)
    async with placed(tmp_path) as place:
        ran = await place.run_on_pipes("ssh", "one", "cat", stdin=data)
        assert (ran.code, ran.err) == (0, "")
        assert hashlib.sha256(ran.out).digest() == hashlib.sha256(data).digest()
        ran = await place.run_on_pipes("ssh", "one", stdin=b"without a command it is a shell")  # the double's is cat
        assert ran.out == b"without a command it is a shell"


async def test_whoever_answers_with_another_host_key_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
        await place.told(access=Access(host="h", port=22, user="user", host_keys=(other,)))
        ran = await place.run("ssh", "one", "--", "touch", "evil")
        assert ran.code == 255
        assert "another host key" in ran.err
        assert place.guest.terms == []
        await place.told(access=Access(host="h", port=22, user="user"))
        ran = await place.run("ssh", "one", "--", "touch", "evil")
        assert ran.code == 255
        assert "host key is not known" in ran.err
        await place.told(access=None)
        assert "no" in (await place.run("ssh", "one", "--", "true")).err
        assert place.guest.terms == []


async def test_keys_are_ours_or_those_that_are_named_and_nobody_is_asked(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        named = asyncssh.generate_private_key("ssh-ed25519")
        secret = place.home / "key"
        named.write_private_key(secret)
        secret.chmod(0o600)
        ran = await place.run("ssh", "one", "-i", str(secret), "--", "true")
        assert ran.code == 255
        assert "login of user was refused with all keys of" in ran.err
        place.guest.allow(public_text(named))
        assert (await place.run("ssh", "one", "-i", str(secret), "--user", "root", "--", "true")).code == 0
        secret.chmod(0o644)
        assert "other users can read it" in (await place.run("ssh", "one", "-i", str(secret), "--", "true")).err
        locked = place.home / "locked"
        locked.write_bytes(named.export_private_key("pkcs8-pem", passphrase="words"))
        locked.chmod(0o600)
        assert "passphrase" in (await place.run("ssh", "one", "-i", str(locked), "--", "true")).err
        locked.write_text("no key at all")
        assert "not a private key" in (await place.run("ssh", "one", "-i", str(locked), "--", "true")).err
        ran = await place.run("ssh", "none", "--", "true")
        assert (ran.code, "none" in ran.err) == (255, True)


async def test_the_key_is_made_once_by_whoever_comes_first_and_is_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ssh" / "id_ed25519"
    keys = await asyncio.gather(*(asyncio.to_thread(own_key, path) for _ in range(8)))
    assert len({public_text(key) for key in keys}) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["id_ed25519"]
    assert own_public(path) == own_public(path) == public_text(keys[0])
    assert sorted(each.name for each in path.parent.iterdir()) == ["id_ed25519", "id_ed25519.pub"]


async def test_a_signal_ends_what_runs_there_and_tells_so(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        process = running.fork_server().start(
            ["vm", "ssh", "one", "echo $$ > pid; exec sleep 300"], environ=place.environ, cwd=place.home
        )
        pid_file = Path(place.guest.folder) / "pid"
        async with asyncio.timeout(pace.patience(20)):
            while not (pid_file.exists() and pid_file.read_text()):
                await asyncio.sleep(0.02)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait) == 128 + signal.SIGTERM
            while Path(f"/proc/{pid_file.read_text().strip()}").exists():
                await asyncio.sleep(0.02)


async def test_a_connection_that_is_lost_is_told(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        lost = asyncio.create_task(place.run("ssh", "one", "touch here; exec sleep 300"))
        async with asyncio.timeout(pace.patience(20)):
            while not (Path(place.guest.folder) / "here").exists():
                await asyncio.sleep(0.02)
        place.guest.cut()
        ran = await lost
        assert ran.code == 255
        assert "the connection was lost" in ran.err


async def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        line = f"{' '.join(place.arguments('ssh', 'one', 'yes'))} | head -n 2; echo ${{PIPESTATUS[0]}}"
        shell = await asyncio.create_subprocess_exec(
            "bash", "-c", line, env=place.environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(pace.patience(20)):
            out, err = await shell.communicate()
        assert (out, err) == (b"y\ny\n141\n", b"")


async def test_a_shell_on_a_terminal_is_raw_and_knows_its_size_and_kind(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 101, 0, 0))
        before = termios.tcgetattr(theirs)
        process = await asyncio.create_subprocess_exec(
            *place.arguments("ssh", "one", "-t", "resized"),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=place.environ,
            start_new_session=True,
        )
        async with asyncio.timeout(pace.patience(20)):
            while not place.guest.sizes:
                await asyncio.sleep(0.02)
            assert (place.guest.sizes, place.guest.terms) == ([(101, 31)], ["vt220"])
            while termios.tcgetattr(theirs) == before:
                await asyncio.sleep(0.02)
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
            process.send_signal(signal.SIGWINCH)
            assert await process.wait() == 0
        assert place.guest.sizes[-1] == (80, 40)
        assert termios.tcgetattr(theirs) == before
        os.close(ours)
        os.close(theirs)


async def test_tilde_and_dot_leave_a_shell_that_hangs(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        process = running.fork_server().start(
            ["vm", "ssh", "one"], stdin=theirs, stdout=theirs, stderr=theirs, environ=place.environ
        )
        async with asyncio.timeout(pace.patience(20)):
            while not place.guest.sizes or termios.tcgetattr(theirs) == before:  # typed earlier, it waits for a line
                await asyncio.sleep(0.02)
            os.write(ours, b"x\r~.")
            assert await asyncio.to_thread(process.wait) == 255
        os.close(ours)
        os.close(theirs)


# Copying


def tree(path: Path) -> dict[str, object]:
    return {
        str(each.relative_to(path)): os.readlink(each)
        if each.is_symlink()
        else None
        if each.is_dir()
        else (each.read_bytes(), stat.S_IMODE(each.stat().st_mode))
        for each in sorted(path.rglob("*"))
    }


async def test_folders_go_there_and_come_back_as_they_were(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        inside = Path(place.guest.folder)
        source = place.home / "site"
        (source / "deep" / "er").mkdir(parents=True)
        (source / "a file with 'quotes' and ünicode").write_bytes(random.Random(3).randbytes(700_000))
        (source / "run").write_text("#!/bin/sh\n")
        (source / "run").chmod(0o755)
        (source / "deep" / "er" / "-dash").write_text("x")
        (source / "empty").mkdir()
        (source / "link").symlink_to("deep/er")
        os.link(source / "run", source / "run2")
        os.mkfifo(source / "pipe")
        ran = await place.run("cp", "site/", "one:")
        assert (ran.code, ran.out.decode()) == (0, "site → one:./site\n")
        assert "pipe: neither a file nor a folder" in ran.err
        (source / "pipe").unlink()
        assert tree(inside / "site") == tree(source)
        ran = await place.run("cp", "one:site", "back")
        assert ran.code == 0, ran.err
        assert tree(place.home / "back") == tree(source)
        (place.home / "into").mkdir()
        assert (await place.run("cp", "one:site", "into")).code == 0
        assert tree(place.home / "into" / "site") == tree(source)
        ran = await place.run("cp", "site", "one:-new")
        assert (ran.code, tree(inside / "-new")) == (0, tree(source)), ran.err


async def test_files_are_copied_as_cp_would(tmp_path: Path) -> None:
    async with placed(tmp_path) as place:
        inside = Path(place.guest.folder)
        (place.home / "f").write_text("one")
        (inside / "folder").mkdir()
        (inside / "there").symlink_to("folder/f")
        for source, target, found in (("f", "one:g", "g"), ("./f", "one:folder", "folder/f"), ("f", "one:~/h", "h")):
            ran = await place.run("cp", source, target)
            assert ran.code == 0, ran.err
            assert (inside / found).read_text() == "one"
        (place.home / "old").write_text("old")
        for source, target, found in (("one:folder/f", "old", "old"), ("one:g", ".", "g"), ("one:there", "x", "x")):
            ran = await place.run("cp", source, target)
            assert ran.code == 0, ran.err
            assert (place.home / found).read_text() == "one"
            assert not (place.home / found).is_symlink()
        for source, target, words in (
            ("f", "one:no/where", "no such folder in the machine"),
            ("none", "one:", "no such local file or folder"),
            ("one:none", ".", "no such file or folder"),
            ("one:g", "no/where", "no such local folder"),
            ("one:folder", "f", "a folder cannot replace it"),
        ):
            ran = await place.run("cp", source, target)
            assert ran.code in (1, 3), ran.err
            assert words in ran.err
        assert (await place.run("cp", "a", "b")).code == 2
        assert (await place.run("cp", "one:a", "one:b")).code == 2


# Labs


async def test_a_lab_is_entered_by_its_user_with_the_key_of_the_terminal(tmp_path: Path) -> None:
    async with placed(tmp_path, "labs", "ada") as place:
        state = place.home / "state" / "hostler"
        place.guest.allowed.clear()
        ran = await place.run("ssh", "ada", "--", "true", group="lab")
        assert (ran.code, "lab of ada: not found" in ran.err) == (255, True)
        await place.api.lab("ada", phase=LabPhase.WAITING)
        ran = await place.run("ssh", "ada", "--", "true", group="lab")
        assert (ran.code, "no machine yet (waiting)" in ran.err) == (255, True)
        await place.api.lab("ada", vm=place.vm)
        ran = await place.run("ssh", "ada", "--", "true", group="lab")
        assert (ran.code, "was refused with all keys" in ran.err) == (255, True)
        place.guest.allow(terminal_key(state / "lab_ed25519")[1])
        ran = await place.run("ssh", "ada", "--", "sh", "-c", "echo in; exit 3", group="lab")
        assert (ran.code, ran.out, ran.err) == (3, b"in\n", "")
