"""`hostler store`: the verbs of one store, on the embedded engine."""

from __future__ import annotations

import io
import json
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.entry.cli import main
from hostler.ports.store import MemberStatus, Status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Cli:
    """Runs `hostler store …` on one store."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[bytes]) -> None:
        self.url, self._capture = url, capture
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        return self.raw(*arguments, code=code).decode()

    def raw(self, *arguments: str, code: int = 0) -> bytes:
        ended = main(["store", "--store", self.url, *arguments])
        shown = self._capture.readouterr()
        self.err = shown.err.decode()
        assert ended == code, self.err
        assert "Traceback" not in self.err
        return shown.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))


@pytest.fixture
def cli(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Cli:
    return Cli(f"sqlite://{tmp_path}/store.db", capsysbinary)


def test_what_was_put_is_got(cli: Cli) -> None:
    assert cli("put", "/a", "hello") == "/a: put in revision 2\n"
    assert cli.json("get", "/a") == {
        "key": "/a",
        "value": "hello",
        "encoding": "text",
        "create_revision": 2,
        "mod_revision": 2,
        "version": 1,
    }
    assert cli("get", "/a").splitlines()[:2] == ["KEY       /a", "VALUE     hello"]
    assert cli.raw("get", "/a", "--raw") == b"hello"
    assert cli("get", "/a", "-o", "yaml").startswith("key: /a\nvalue: hello\n")


def test_bytes_go_in_and_out_unchanged(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = bytes(range(256))
    (tmp_path / "value").write_bytes(every)
    cli("put", "/file", "--file", str(tmp_path / "value"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(every)))
    cli("put", "/pipe", "-")
    assert cli.raw("get", "/file", "--raw") == cli.raw("get", "/pipe", "--raw") == every
    assert cli.json("get", "/file")["encoding"] == "base64"


def test_compare_and_set_refuses_with_code_4_and_says_where_the_key_stands(cli: Cli) -> None:
    cli("put", "/a", "1", "--if-absent")
    cli("put", "/a", "2", "--if-absent", code=4)
    assert "revision 2" in cli.err
    cli("put", "/a", "2", "--if-revision", "2")
    cli("put", "/a", "3", "--if-revision", "2", code=4)
    assert "revision 3" in cli.err
    cli("put", "/none", "3", "--if-revision", "2", code=4)
    assert cli.raw("get", "/a", "--raw") == b"2"


def test_a_key_with_a_lease_says_so(cli: Cli) -> None:
    assert "expires in 60 s" in cli("put", "/a", "1", "--lease", "60")
    assert cli.json("get", "/a")["lease"] > 0


def test_a_refused_put_leaves_no_lease_behind(cli: Cli) -> None:
    cli("put", "/a", "1")
    cli("put", "/a", "2", "--if-absent", "--lease", "60", code=4)
    assert cli.json("status")["details"]["leases"] == "0"


@pytest.mark.parametrize(
    "arguments",
    [
        ("put", "/a"),
        ("put", "/a", "x", "--file", "-"),
        ("put", "/a", "x", "--if-absent", "--if-revision", "2"),
        ("put", "", "x"),
        ("put", "/a", "x", "--lease", "0"),
        ("put", "/a", "x", "--lease", "nan"),
        ("get", "/a", "--revision", "0"),
        ("get", "/a", "--revision", "99"),
        ("list", "--limit", "0"),
        ("compact", "3", "--keep", "4"),
        ("compact", "99"),
        ("delete", "", "--prefix", "--yes"),
        ("get", "/a", "-o", "xml"),
    ],
)
def test_what_cannot_be_is_refused_with_code_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli("put", "/first", "1")
    cli(*arguments, code=2)
    assert cli.err
    assert [item["key"] for item in cli.json("list")["items"]] == ["/first"]


def test_what_is_not_there_ends_with_code_3(cli: Cli) -> None:
    cli("put", "/a", "1")
    for arguments in (("get", "/b"), ("delete", "/b"), ("delete", "/b", "--prefix", "--yes")):
        cli(*arguments, code=3)


@pytest.mark.parametrize("verb", [("get", "/a"), ("list",), ("watch",), ("status",), ("check",), ("backup", "FILE")])
def test_reading_never_creates_a_store(cli: Cli, tmp_path: Path, verb: tuple[str, ...]) -> None:
    cli(*(str(tmp_path / "x") if word == "FILE" else word for word in verb), code=3)
    assert "no such file" in cli.err
    assert list(tmp_path.iterdir()) == []


def test_a_list_is_whole_in_order_and_of_one_revision_in_every_format(cli: Cli) -> None:
    keys = [f"/k/{number:03d}" for number in range(5)]
    for key in reversed(keys):
        cli("put", key, f"v{key}")
    cli("put", "/other", "x")
    found = cli.json("list", "/k/")
    assert found["revision"] == 7
    assert [item["key"] for item in found["items"]] == keys
    assert [line.split()[2] for line in cli("list", "/k/").splitlines()[1:]] == keys
    assert cli.err == "5 keys at revision 7\n"
    assert cli("list", "/k/", "-o", "yaml").count("- key: /k/") == 5
    assert [item["key"] for item in cli.json("list", "/k/", "--limit", "2")["items"]] == keys[:2]
    assert "value" not in cli.json("list", "--keys-only")["items"][0]
    assert [item["key"] for item in cli.json("list", "--revision", "3")["items"]] == keys[-2:]


def test_an_empty_list_is_still_a_document(cli: Cli) -> None:
    cli("put", "/a", "1")
    assert cli.json("list", "/none") == {"revision": 2, "items": []}
    assert cli("list", "/none", "-o", "yaml") == "revision: 2\nitems: []\n"
    assert cli("list", "/none") == ""
    assert cli.err == "0 keys at revision 2\n"


def test_deleting_a_prefix_wants_yes_where_nobody_can_be_asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("/a/1", "/a/2", "/b"):
        cli("put", key, "x")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    cli("delete", "/a/", "--prefix", code=2)
    assert "2 keys" in cli.err
    assert len(cli.json("list")["items"]) == 3
    assert cli("delete", "/a/", "--prefix", "--yes") == "/a/: deleted 2 keys\n"
    assert cli("delete", "/b") == "/b: deleted\n"
    assert cli.json("list")["items"] == []


def test_a_watch_shows_the_past_from_a_revision_in_every_format(cli: Cli) -> None:
    cli("put", "/a", "1")
    cli("put", "/a", "2")
    cli("delete", "/a")
    assert cli("watch", "--from-revision", "2", "--count", "3") == (
        "2        PUT     /a  1\n3        PUT     /a  2\n4        DELETE  /a\n"
    )
    lines = cli("watch", "--from-revision", "3", "--count", "2", "-o", "json").splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["put", "delete"]
    assert json.loads(lines[0])["previous"]["value"] == "1"
    assert cli("watch", "--from-revision", "3", "--count", "2", "-o", "yaml").count("---\ntype: ") == 2


def test_compacting_forgets_the_past_and_keeps_the_present(cli: Cli) -> None:
    for number in range(5):
        cli("put", "/a", str(number))
    cli("compact")
    assert "nothing to discard" in cli.err
    assert cli("compact", "--keep", "2") == "history before revision 4 is discarded\n"
    cli("get", "/a", "--revision", "3", code=7)
    cli("watch", "--from-revision", "2", code=7)
    cli("compact", "4", code=7)
    assert cli.json("get", "/a", "--revision", "4")["value"] == "2"
    assert cli.raw("get", "/a", "--raw") == b"4"


def test_status_and_check_tell_how_the_store_is(cli: Cli) -> None:
    cli("put", "/a", "1")
    found = cli.json("status")
    assert (found["engine"], found["revision"]) == ("sqlite", 2)
    assert found["size_bytes"] > 0
    assert "ENGINE    sqlite" in cli("status")
    assert cli("check").endswith("no damage, 1 key read\n")


def test_the_store_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOSTLER_STORE", f"sqlite://{tmp_path}/env.db")
    assert main(["store", "put", "/a", "1"]) == 0
    assert (tmp_path / "env.db").exists()
    assert main(["store", "put", "--store", f"sqlite://{tmp_path}/flag.db", "/a", "1"]) == 0
    assert (tmp_path / "flag.db").exists()
    monkeypatch.delenv("HOSTLER_STORE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main(["store", "put", "/a", "1"]) == 0, capsys.readouterr().err
    assert list((tmp_path / "state").rglob("*.db"))


class Etcd(MemoryStore):
    """A store that keeps its history until it is compacted, and that may be full."""

    def __init__(self, size: int = 16, *alarms: str) -> None:
        super().__init__()
        self._size, self._alarms, self.did = size, alarms, list[str]()

    def oldest_needed(self) -> int | None:
        return None

    async def members(self) -> tuple[MemberStatus, ...]:
        return (MemberStatus(name="one", answers=True),)

    async def defragment(self, member: str) -> None:
        self.did.append(f"defragment {member}")

    async def disarm(self) -> None:
        self.did.append("disarm")

    async def compact(self, revision: int) -> None:
        self.did.append(f"compact {revision}")

    async def status(self) -> Status:
        return msgspec.structs.replace(
            await super().status(), size_bytes=self._size, quota_bytes=100, alarms=self._alarms
        )


ALL_OF_IT = ["compact 1", "defragment one", "disarm"]


@pytest.mark.parametrize(
    ("etcd", "options", "terminal", "did"),
    [
        (Etcd(), (), "", []),
        (Etcd(), (), "y\n", []),
        (Etcd(16, "CORRUPT"), (), "", []),
        (Etcd(), ("--force",), "n\n", []),
        (Etcd(), ("--force",), "y\n", ALL_OF_IT),
        (Etcd(), ("--force", "--yes"), "", ALL_OF_IT),
        (Etcd(60), (), "n\n", []),
        (Etcd(60), (), "y\n", ALL_OF_IT),
        (Etcd(60, "NOSPACE"), ("--yes",), "n\n", ALL_OF_IT),
        (Etcd(16, "NOSPACE"), (), "n\n", []),
        (Etcd(16, "NOSPACE"), (), "", ALL_OF_IT),  # a script has named what is to be done
    ],
)
def test_a_repair_forgets_history_only_where_etcd_is_full_or_it_was_asked_for(  # noqa: PLR0917 - a table
    etcd: Etcd,
    options: tuple[str, ...],
    terminal: str,
    did: list[str],
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def opened(*_: object, **__: object) -> AsyncIterator[Etcd]:
        async with etcd:
            yield etcd

    monkeypatch.setattr("hostler.entry.cli.store.write.open_chosen", opened)
    monkeypatch.setattr("hostler.entry.cli.progress.can_ask", lambda: bool(terminal))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(terminal.encode())))
    refused = terminal.startswith("n") and not did
    cli("repair", *options, code=130 if refused else 0)
    assert etcd.did == did
    if not did and not refused:
        assert "nothing was changed" in cli.err
        assert "--force" in cli.err
    if terminal and not refused and did and "--yes" not in options:
        assert "discard the history before revision 1" in cli.err
