"""`hostler image`: what people see of the images of a data folder."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from hostler.entry.cli import main
from hostler.entry.cli.image import megabytes, progress_line


class Cli:
    """Runs `hostler image … --data` on one folder."""

    def __init__(self, data: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.data, self._capture = data, capture
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        ended = main(["image", *arguments, "--data", str(self.data)])
        shown = self._capture.readouterr()
        self.err = shown.err
        assert ended == code, self.err
        assert "Traceback" not in self.err
        return shown.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json"))


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("HOSTLER_IMAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "data", capsys)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "my disk"
    content = bytearray(2**20)
    content[1080:1082] = b"\x53\xef"
    path.write_bytes(content)
    return path


def test_an_empty_folder_says_what_to_do_and_stays_empty(cli: Cli) -> None:
    assert "hostler image build tiny" in cli("list")
    assert cli.json("list") == []
    assert not cli.data.exists()


def test_an_added_image_is_listed_with_what_was_said_of_it(cli: Cli, disk: Path) -> None:
    sha256 = hashlib.sha256(disk.read_bytes()).hexdigest()
    told = cli("add", "mine", "my disk", "--sha256", sha256, "--user", "ada", "--memory", "1G", "--boot-seconds", "2m")
    assert "at least 1 GiB" in told
    (one,) = cli.json("list")
    assert one["name"] == "mine"
    assert one["default"] is False
    assert one["image"]["files"] == {"disk": sha256}
    assert (one["image"]["user"], one["image"]["memory_mib"], one["image"]["boot_seconds"]) == ("ada", 1024, 120.0)
    assert one["image"]["source"] == str(disk)
    row = cli("list").splitlines()[1]
    assert row.split()[:2] == ["mine", one["image"]["digest"][:12]]
    assert "default image 'tiny': not found" in cli.err


def test_an_image_that_cannot_be_read_is_named_beside_the_others(cli: Cli, disk: Path) -> None:
    cli("add", "good", str(disk))
    cli("add", "bad", str(disk), "--user", "ada")
    digest = next(one["image"]["digest"] for one in cli.json("list") if one["name"] == "bad")
    (cli.data / "images" / digest / "image.json").unlink()
    assert [row.split()[0] for row in cli("list").splitlines()[1:]] == ["good"]
    assert "'bad' is damaged" in cli.err
    assert "remove the image and add it again" in cli.err
    assert [one["name"] for one in cli.json("list")] == ["good"]
    assert "'bad' is damaged" in cli.err
    cli("remove", "bad")
    cli("list")
    assert "damaged" not in cli.err


def test_the_default_image_has_a_star(cli: Cli, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("add", "tiny", str(disk))
    assert cli("list").splitlines()[1].startswith("tiny*")
    assert cli.err == ""
    monkeypatch.setenv("HOSTLER_IMAGE", "other")
    assert cli("list").splitlines()[1].startswith("tiny ")


def test_compressed_images_and_limits(cli: Cli, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "packed.gz").write_bytes(gzip.compress(disk.read_bytes() * 3))
    assert cli.json("add", "mine", "packed.gz")["image"]["disk_bytes"] == 3 * 2**20
    cli("add", "mine", "packed.gz", "--max-size", "2M", code=2)
    assert "--max-size" in cli.err


def test_what_is_refused_is_two_clear_lines_and_the_code_says_which_kind(cli: Cli, disk: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no disk")
    for code, *arguments in (
        (1, "add", "mine", "text"),
        (1, "add", "mine", str(disk), "--sha256", "0" * 64),
        (2, "add", "mine", str(disk), "--sha256", "short"),
        (2, "add", "My Image", str(disk)),
        (2, "add", "mine", "https://example.com/disk"),
        (2, "add", "mine", str(disk), "--append", "quiet"),
        (3, "add", "mine", "nowhere"),
        (3, "remove", "mine"),
        (3, "warm", "mine"),
    ):
        assert cli(*arguments, code=code) == ""  # type: ignore[arg-type]
        lines = cli.err.splitlines()
        assert len(lines) == 2, cli.err
        assert lines[0].startswith("hostler: ")
        assert lines[1].startswith("  next: ")


def test_an_image_in_use_names_its_machine_and_goes_once_that_is_gone(cli: Cli, disk: Path) -> None:
    cli("add", "mine", str(disk))
    machine = cli.data / "machines" / "local-1" / "vms" / "hello"
    machine.mkdir(parents=True)
    digest = cli.json("list")[0]["image"]["digest"]
    (machine / "base").hardlink_to(cli.data / "images" / digest / "disk")
    assert cli.json("list")[0]["used_by"] == 1
    cli("remove", "mine", code=1)
    assert "in use by hello" in cli.err
    (machine / "base").unlink()
    assert cli("remove", "mine") == "mine: removed\n"
    assert cli.json("list") == []


def test_progress_is_a_line() -> None:
    assert progress_line("checking", 0, None) == "checking …"
    assert progress_line("loading", 2_500_000, None) == "loading: 2.5 MB"
    assert progress_line("loading", 2_500_000, 10_000_000) == "loading: 2.5 of 10.0 MB (25 %)"
    assert (megabytes(5_300_000), megabytes(53 * 10**9)) == ("5 MB", "53.0 GB")
