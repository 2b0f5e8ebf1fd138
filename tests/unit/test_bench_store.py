"""`python -m bench store` adds the bare engine and a million keys to `hostler bench store`, and what moved is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dose import rotates

from bench import store
from bench.__main__ import COMMANDS, main
from bench.bare import open_bare
from bench.bare_etcd import BareEtcd
from hostler.entry.cli import main as hostler
from hostler.entry.cli.bench import REMOVED

SHORT = ("--seconds", "0.1", "--clients", "1")


@pytest.mark.parametrize(
    ("place", "endpoint"), [("host", "host:2379"), ("host:1", "host:1"), ("[::1]", "[::1]:2379"), ("a,b:2", "a:2379")]
)
def test_bare_etcd_has_the_same_default_port_as_the_store(place: str, endpoint: str) -> None:
    bare = open_bare(f"etcd://{place}")
    assert isinstance(bare, BareEtcd)
    assert bare._endpoint == endpoint


@pytest.mark.parametrize(
    "url", ["memory://", "file:///state.json", "etcd://host?user=a", "etcds://host", "sqlite://x.db"]
)
def test_nothing_is_below_the_other_stores(url: str) -> None:
    assert open_bare(url) is None


@pytest.mark.slow
@rotates(3, "bench", "src/hostler/entry/store_benchmark.py", "src/hostler/entry/cli/bench.py")
def test_a_store_stands_beside_its_bare_engine_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "MILLION", 2_000)
    monkeypatch.chdir(tmp_path)  # the parts of --million are processes of their own, started from anywhere
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    url = f"sqlite://{tmp_path}/store.db"
    assert main(["store", url, *SHORT, "--million", "--json", str(found), "--markdown", str(page)]) == 0
    data = json.loads(found.read_text())
    beside = {row["name"]: row["ratio"] for row in data["rows"] if row["against"] == "bare engine"}
    assert list(beside) == ["put", "get", "txn of 3", "range of 1,000"]
    assert all(ratio > 0 for ratio in beside.values())
    assert data["million"]["keys"] == 2_000
    assert "| opening 2,000 keys |" in page.read_text()
    assert "opening 2,000 keys" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.bare*"))


def test_a_million_keys_are_for_sqlite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "memory://", "--million"]) == 2
    assert "is for sqlite stores" in capsys.readouterr().err


@pytest.mark.parametrize("words", [*([name] for name in REMOVED), ["plane", "--help"], ["sim", "--blades", "20"]])
def test_a_benchmark_that_moved_says_where_it_is(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert hostler(["bench", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"hostler: bench {words[0]}: is not in the installed package"
    assert said[1].startswith(f"  next: run `python -m bench {words[0]}` in a checkout")
    assert words[0] in COMMANDS


def test_so_does_the_option_that_moved(capsys: pytest.CaptureFixture[str]) -> None:
    assert hostler(["bench", "store", "--million"]) == 2
    assert "run `python -m bench store --million` in a checkout" in capsys.readouterr().err


def test_help_names_only_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert hostler(["bench", "--help"]) == 0
    said = capsys.readouterr().out
    assert "store" in said
    assert not any(name in said for name in REMOVED)
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert "Usage: python -m bench " in said
    assert all(name in said for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_can_be_asked_for_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"Usage: python -m bench {name} " in capsys.readouterr().out
