"""The namespace options hold for replicas as for everything else."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import running

if TYPE_CHECKING:
    from pathlib import Path


def test_a_replica_in_a_test_namespace_leaves_production_alone(tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/store.db"
    environ = {**os.environ, "HOSTLER_USE_TEST_NAMESPACE": "true"}
    server = running.fork_server()
    with server.start(
        ["replica", "--demonstration", "--store", url, "--ttl", "30"], environ=environ, stdout=subprocess.PIPE
    ) as leads:
        assert leads.stdout is not None
        assert any(b"leading" in line for line in leads.stdout)
        keys = server.run(["store", "list", "--keys-only", "-o", "json", "--store", url]).stdout
        seen = server.run(["leader", "-o", "json", "--store", url], environ=environ).stdout
        leads.terminate()
    found = [entry["key"] for entry in json.loads(keys)["items"]]
    assert "/CloudChamber/V0.1/Test/Standard/sysvvm/1/1" in found
    assert all(key.startswith("/CloudChamber/V0.1/Test/Standard/") for key in found)
    assert '"fence": 1' in seen


def test_a_test_namespace_on_something_that_is_no_store_is_refused() -> None:
    environ = {**os.environ, "HOSTLER_USE_TEST_NAMESPACE": "true"}
    program = ["replica", "--demonstration", "--store", "redis://127.0.0.1:1/0"]
    done = running.fork_server().run(program, environ=environ)
    assert done.returncode != 0
    assert "test namespaces need a store" in done.stderr
