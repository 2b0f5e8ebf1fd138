"""Parts of the command line and of `up` that need no server: values, which server, folder, log, watchdog."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner
from harness.pace import check, patience

from hostler.engine.self_fencing import GRACE
from hostler.engine.service import Pipeline
from hostler.entry.cli import main
from hostler.entry.cli.options import Server, chosen_server, server_options
from hostler.entry.cli.show import Duration, Mebibytes, labels, size
from hostler.entry.control_plane import OPEN_METRICS, check_listen
from hostler.entry.data_dir import DataFolder
from hostler.entry.process import RotatingFile, Watchdog
from hostler.errors import Conflict, HostlerError, Invalid, NotFound, Unauthenticated
from hostler.kit.clock import SystemClock
from hostler.settings import load
from hostler.settings.option import METRICS

if TYPE_CHECKING:
    pass

# Values


def test_the_server_knows_everybody_whom_the_settings_let_read_the_figures() -> None:
    assert OPEN_METRICS.keys() == set(METRICS) - {"auto"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("0.5h", 1800)],
)
def test_a_duration_is_written_as_people_write_it(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "0", "0s", "1x", "1h30", "11000000000s", "1 h", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "mebibytes"), [("512", 512), ("512M", 512), ("2G", 2048), ("2GiB", 2048), ("1T", 2**20)]
)
def test_a_size_is_written_as_people_write_it(text: str, mebibytes: int) -> None:
    assert Mebibytes().convert(text, None, None) == mebibytes
    assert Mebibytes().convert(size(mebibytes), None, None) == mebibytes


@pytest.mark.parametrize("text", ["", "much", "1.5G", "2K", "G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Mebibytes().convert(text, None, None)


def test_labels_have_a_name_and_a_value() -> None:
    assert labels(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    for text in ("a", "=b", ""):
        with pytest.raises(click.BadParameter):
            labels([text])


# Server and account


def reached(folder: Path, *arguments: str, **environ: str) -> Server | HostlerError:
    found: list[Server | HostlerError] = []

    @click.command()
    @server_options
    def command() -> None:
        try:
            found.append(chosen_server())
        except HostlerError as error:
            found.append(error)

    clean = {name: None for name in os.environ if name.startswith("HOSTLER_")}
    done = CliRunner().invoke(command, arguments, env=clean | {"HOSTLER_DATA": str(folder)} | environ)
    assert done.exit_code == 0, done.output
    return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "server").write_text("http://127.0.0.1:7070\n")
    (tmp_path / "admin.token").write_text("hst_admin\n")
    return tmp_path


def test_without_anything_it_is_the_up_of_the_data_folder_and_its_administrator(folder: Path) -> None:
    server = reached(folder)
    assert isinstance(server, Server)
    assert (server.url, server.token) == ("http://127.0.0.1:7070", "hst_admin")


def test_flags_beat_variables_and_these_beat_the_folder(folder: Path) -> None:
    (folder / "t").write_text("from file")
    environ = {"HOSTLER_SERVER": "https://b", "HOSTLER_TOKEN": "env"}
    cases: list[tuple[tuple[str, ...], dict[str, str], tuple[str, str]]] = [
        ((), environ, ("https://b", "env")),
        (("--server", "https://c/", "--token", "flag"), environ, ("https://c", "flag")),
        (("--token-file", str(folder / "t")), environ, ("https://b", "from file")),
        ((), {"HOSTLER_TOKEN_FILE": str(folder / "t")}, ("http://127.0.0.1:7070", "from file")),
    ]
    for arguments, variables, (url, token) in cases:
        server = reached(folder, *arguments, **variables)
        assert isinstance(server, Server)
        assert (server.url, server.token) == (url, token)


def test_the_administrators_token_is_shown_to_no_other_server(folder: Path) -> None:
    for other in ("http://127.0.0.1:7071", "https://elsewhere", "http://127.0.0.1:7070.evil.example"):
        assert isinstance(reached(folder, "--server", other), Unauthenticated)
        assert isinstance(reached(folder, HOSTLER_SERVER=other), Unauthenticated)


def test_on_the_machine_of_a_replica_it_is_that_replica(tmp_path: Path) -> None:
    (tmp_path / "admin.token").write_text("hst_admin\n")
    cluster = {"HOSTLER_STORE": "etcds://10.0.0.1:2379", "HOSTLER_LISTEN": "10.0.0.1:7070"}
    tls = {"HOSTLER_TLS_CERT": "/c.pem", "HOSTLER_TLS_KEY": "/c.key"}
    server = reached(tmp_path, **cluster, **tls)
    assert isinstance(server, Server)
    assert (server.url, server.token) == ("https://10.0.0.1:7070", "hst_admin")
    server = reached(tmp_path, **cluster | {"HOSTLER_LISTEN": "0.0.0.0:7070"}, HOSTLER_TOKEN="t")
    assert isinstance(server, Server)
    assert server.url == "http://127.0.0.1:7070"
    # without a certificate another program could have taken the port
    assert isinstance(reached(tmp_path, **cluster | {"HOSTLER_LISTEN": "127.0.0.1:7070"}), Unauthenticated)
    assert isinstance(reached(tmp_path, HOSTLER_LISTEN="10.0.0.1:7070"), NotFound)


def test_what_is_missing_is_told(tmp_path: Path, folder: Path) -> None:
    assert isinstance(reached(tmp_path / "none"), NotFound)
    assert isinstance(reached(folder, "--server", "ftp://x"), Invalid)
    assert isinstance(reached(folder, "--token-file", str(folder / "none")), Invalid)
    (folder / "empty").write_text("\n")
    assert isinstance(reached(folder, "--token-file", str(folder / "empty")), Invalid)


# Where it may listen


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.8.8:1", "[::1]:1", "localhost:1"])
def test_loopback_needs_no_certificate(listen: str) -> None:
    check_listen(load({"listen": listen}, {"HOME": "/h"}, toml=""))


@pytest.mark.parametrize("listen", ["0.0.0.0:1", ":1", "10.0.0.1:1", "[::]:1", "example.org:1", "localhost.example:1"])
def test_an_address_that_others_reach_needs_a_certificate_or_force(listen: str) -> None:
    with pytest.raises(Invalid, match="--insecure"):
        check_listen(load({"listen": listen}, {"HOME": "/h"}, toml=""))
    check_listen(load({"listen": listen, "insecure": True}, {"HOME": "/h"}, toml=""))
    check_listen(load({"listen": listen, "tls_cert": "/c", "tls_key": "/k"}, {"HOME": "/h"}, toml=""))


# The folder


def test_a_folder_is_held_by_one_process_at_a_time_and_says_by_whom(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "a" / "b")
    assert folder.holder() is None
    with folder.held():
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert folder.holder() == os.getpid()
        with pytest.raises(Conflict, match=f"process {os.getpid()}"), DataFolder(folder.path).held():
            pass
        assert folder.holder() == os.getpid(), "who was refused must not take the name away"
    assert folder.holder() is None


def test_a_folder_with_things_in_it_keeps_its_rights_and_what_is_written_is_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "something").write_text("of mine")
    folder = DataFolder(tmp_path)
    with folder.held():
        folder.write(folder.token_file, "secret")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert stat.S_IMODE(folder.token_file.stat().st_mode) == 0o600
    assert folder.read(folder.token_file) == "secret"
    assert folder.read(tmp_path / "none") is None


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere")):
        with pytest.raises(Invalid, match="give --data"), DataFolder(path).held():
            pass


@pytest.fixture(autouse=True)
def same_umask() -> Any:
    before = os.umask(0o022)
    yield
    os.umask(before)


# The log


def test_a_full_log_moves_on_and_only_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = RotatingFile(path, size_bytes=100, kept=2)
    for number in range(100):
        log.write(f"line {number:04d}\n")
    log.close()
    assert {file.name for file in tmp_path.iterdir()} == {"log", "log.1", "log.2"}
    for file in tmp_path.iterdir():
        assert file.stat().st_size <= 100
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = "".join((tmp_path / name).read_text() for name in ("log.2", "log.1", "log")).splitlines()
    assert lines == [f"line {number:04d}" for number in range(100 - len(lines), 100)]
    again = RotatingFile(path, size_bytes=100, kept=2)
    again.write("x" * 95 + "\n")
    again.close()
    assert path.read_text() == "x" * 95 + "\n", "what was there before counts"


# The watchdog


class Leadership(SimpleNamespace):
    """As much of one as a killer looks at."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def lost(ago: float, ttl: float) -> Any:
    now = SystemClock().now()
    return Leadership(key="k", ttl=ttl, deadline=now - ago, lost_at=None, released=False)


SHORT, LONG = 0.4, 40.0
"""Lives of leaderships: one whose grace is over soon, and one whose grace no machine is too slow for."""


class Looks(SystemClock):
    """A clock that tells how often it was looked at."""

    def __init__(self) -> None:
        self._left = threading.Semaphore(0)

    def now(self) -> float:
        self._left.release()
        return super().now()

    def wait_for(self, number: int) -> None:
        for _ in range(number):
            assert self._left.acquire(timeout=patience(5))


class Watched:
    """A watchdog that says what it would have ended."""

    def __init__(self, leadership: Any) -> None:
        self.clock, self.ended = Looks(), threading.Event()
        self.began = time.monotonic()
        self.watchdog = Watchdog(self.clock, end=lambda _: self.ended.set())
        self.watchdog.guard(leadership)

    def over(self) -> bool:
        """Whether the process would have been ended. Nothing is watched any more when this returns."""
        for thread in threading.enumerate():
            if thread.name == "hostler watchdog":
                thread.join(patience(5))
                assert not thread.is_alive(), "it still watches"
        return self.ended.is_set()


def test_work_that_does_not_stop_ends_the_process_when_its_grace_is_over() -> None:
    """Whether the leadership was lost this moment, or an hour ago while the machine slept."""
    for ago in (0.0, 3600.0):
        watched = Watched(lost(ago, SHORT))
        assert watched.ended.wait(patience(5))
        took = time.monotonic() - watched.began
        assert took >= SHORT / GRACE, "it was ended at once: nobody could have stopped in time"
        check(took, SHORT / GRACE * 2 + 0.1, since=watched.began, what="the grace")
        watched.watchdog.stopped()
        assert watched.over()


def test_work_that_stopped_ends_nothing() -> None:
    watched = Watched(lost(3600, LONG))
    watched.clock.wait_for(1)
    watched.watchdog.stopped()
    assert not watched.over()


def test_a_leadership_that_stands_or_was_given_up_ends_nothing() -> None:
    standing = Watched(lost(-60, SHORT))
    standing.clock.wait_for(10)  # it would end the process at the fifth look
    standing.watchdog.stopped()
    assert not standing.over()
    released = lost(5, LONG)
    released.released = True
    assert not Watched(released).over()


class Slow:
    """A controller that does not stop before something has happened."""

    name = "slow"

    def __init__(self, before: threading.Event) -> None:
        self._before = before

    async def start(self, standing: Any) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        async with asyncio.timeout(patience(5)):
            while not self._before.is_set():
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("stops", [True, False])
async def test_the_work_is_over_when_the_last_controller_has_stopped_whatever_comes_after(stops: bool) -> None:
    """Tidying up after that takes as long as it takes: nothing is watched any more."""
    watched = Watched(lost(0, LONG if stops else SHORT))
    at_once = threading.Event()
    at_once.set()
    pipeline = Pipeline((watched.watchdog, Slow(at_once if stops else watched.ended)), lambda _: None)
    await pipeline.start(None)  # type: ignore[arg-type]
    await pipeline.stop()
    assert await asyncio.to_thread(watched.over) is not stops


# Signals

STUBBORN = """
import asyncio
from hostler.entry.process import asked_to_end
async def main():
    with asked_to_end() as asked:
        print("here", flush=True)
        await asked.wait()
        print("asked", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_asks_and_the_second_ends_at_once(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "here\n"
            process.send_signal(number)
            assert process.stdout.readline() == "asked\n"
            process.send_signal(number)
            assert process.wait(60) == 128 + number
        finally:
            process.kill()


# config show


def test_the_settings_are_shown_with_their_places_and_without_secrets(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOSTLER_TOKEN", "hst_verysecret")
    monkeypatch.setenv("HOSTLER_STORE", "etcd://h:1?user=u&password=s3cret")
    (tmp_path / "hostler.toml").write_text("nodes = 4\n[labels]\nzone = 'a'\n")
    for output in ("table", "json", "yaml"):
        assert main(["config", "show", "-o", output]) == 0
        shown = capsys.readouterr().out
        assert "s3cret" not in shown
        assert "verysecret" not in shown
        assert "HOSTLER_STORE" in shown
        assert "hostler.toml: nodes" in shown
    monkeypatch.setenv("HOSTLER_" + "LISTNE", "x")
    assert main(["config", "show"]) == 2
    assert "did you mean HOSTLER_LISTEN" in capsys.readouterr().err


def test_a_setting_of_several_values_is_shown_as_a_variable_would_hold_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostler.toml").write_text("power_command = ['/bin/off', '-m', 'a b', '{node}']\n")
    monkeypatch.setenv("HCLOUD_DEFAULT_LOCATION", "fsn1,nbg1")
    assert main(["config", "show"]) == 0
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " fsn1,nbg1 " in shown["hcloud_location"]
    assert " /bin/off -m 'a b' '{node}' " in shown["power_command"]
    assert shown["hcloud_ssh_key"].split() == ["hcloud_ssh_key", "default"]


def test_every_command_has_help_and_loads(capsys: pytest.CaptureFixture[str]) -> None:
    from hostler.entry.cli.app import LazyGroup, app

    def walk(command: click.Command, path: list[str]) -> None:
        assert main([*path, "--help"]) == 0, path
        assert "Usage" in capsys.readouterr().out
        if isinstance(command, LazyGroup):
            for name in command.list_commands(click.Context(command)):
                child = command.get_command(click.Context(command), name)
                assert child is not None
                walk(child, [*path, name])

    walk(app, [])
