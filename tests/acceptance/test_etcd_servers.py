"""The servers that tests start: they serve, they can be hurt, and they never outlive the run."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hostler.testing.servers import EtcdCluster, EtcdPace, EtcdServer, ServerFailed, ServerMissing, port_is_free


def test_a_server_keeps_its_data_over_a_kill_and_leaves_nothing_when_it_stops() -> None:
    with EtcdServer() as etcd:
        etcd.ctl("put", "a", "kept")
        etcd.kill()
        etcd.restart()
        assert "kept" in etcd.ctl("get", "a")
        directory, pid = etcd.directory, etcd.pid()
    assert not directory.exists()
    assert not _runs(pid)


def test_a_cluster_that_loses_its_leader_finds_another() -> None:
    with EtcdCluster(pace=EtcdPace(heartbeat_ms=50, election_ms=500)) as etcd:
        first = etcd.leader()
        etcd.suspend(first)
        assert etcd.leader() != first
        etcd.resume(first)
        etcd.wait_healthy()
        assert len(etcd.endpoints) == 3


def test_a_server_dies_with_a_test_run_that_is_killed() -> None:
    program = (
        "import sys, time\n"
        "from hostler.testing.servers import EtcdServer\n"
        "with EtcdServer() as etcd:\n"
        "    print(etcd.pid(), etcd.directory, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pid, directory = run.stdout.readline().split()
        assert _runs(int(pid))
        run.send_signal(signal.SIGKILL)
        run.wait()
    _wait_gone(int(pid))
    subprocess.run(["rm", "-r", directory], check=True)


def test_ctrl_c_ends_the_server_and_deletes_its_data() -> None:
    program = (
        "import time\n"
        "from hostler.testing.servers import EtcdServer\n"
        "with EtcdServer() as etcd:\n"
        "    print(etcd.pid(), etcd.directory, flush=True)\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        pid, directory = run.stdout.readline().split()
        run.send_signal(signal.SIGINT)
        run.wait()
    assert not _runs(int(pid))
    assert not Path(directory).exists()


def test_a_missing_server_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLER_ETCD", "/nowhere/etcd")
    with pytest.raises(ServerMissing) as caught, EtcdServer():
        pass
    assert str(caught.value) == "/nowhere/etcd: not installed; run scripts/setup or set HOSTLER_ETCD"


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(ServerFailed, match="not defined.*not-an-option"), EtcdServer(arguments=["--not-an-option"]):
        pass


def test_a_port_that_is_listened_on_is_not_free() -> None:
    with EtcdServer() as etcd:
        assert not port_is_free(int(etcd.endpoints[0].rpartition(":")[2]))


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # before it was opened, or while it was read
        return False
    # A killed process whose new parent has not collected it yet is dead all the same.
    return stat.rpartition(")")[2].split()[0] != "Z"


def _wait_gone(pid: int) -> None:
    end = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.02)
