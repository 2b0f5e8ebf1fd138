"""The committed stubs are those of the committed proto, and speak etcd's wire format."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hostler.drivers.store.etcd import rpc_pb2 as pb

ROOT = Path(__file__).parents[2]
FOLDER = "hostler/drivers/store/etcd"


def test_the_stubs_are_generated_from_the_proto_as_it_is(tmp_path: Path) -> None:
    command = [str(ROOT / "scripts" / "generate-stubs"), str(tmp_path)]
    subprocess.run(command, check=True, env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin"})
    for name in ("rpc_pb2.py", "rpc_pb2.pyi"):
        fresh, committed = tmp_path / FOLDER / name, ROOT / "src" / FOLDER / name
        assert fresh.read_text() == committed.read_text(), f"{name} is stale: run scripts/generate-stubs"


def test_another_client_may_register_etcds_own_names_in_this_process() -> None:
    assert pb.DESCRIPTOR.package == "hostler.etcd"
    assert pb.DESCRIPTOR.name == f"{FOLDER}/rpc.proto"


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (pb.RangeRequest(key=b"a", range_end=b"b", limit=3, revision=4, keys_only=True), "0a0161120162180320044001"),
        (pb.PutRequest(key=b"a", value=b"b", lease=3), "0a01611201621803"),
        (pb.DeleteRangeRequest(key=b"a", range_end=b"b"), "0a0161120162"),
        (pb.WatchCreateRequest(key=b"a", start_revision=3, progress_notify=True, prev_kv=True, watch_id=7), None),
        (pb.LeaseGrantRequest(TTL=5, ID=6), "08051006"),
    ],
)
def test_messages_have_etcds_field_numbers(message: object, wire: str | None) -> None:
    expected = wire if wire is not None else "0a01611803200130013807"
    assert message.SerializeToString().hex() == expected  # type: ignore[attr-defined]
