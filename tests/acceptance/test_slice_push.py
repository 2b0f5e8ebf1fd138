"""Artifacts through a running `hostler up`: published, shown, refused, and there after a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from up_process import HostlerProcess, hostler, well

from hostler.entry.cli.slice.new import make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], HostlerProcess]]:
    started: list[HostlerProcess] = []

    def up() -> HostlerProcess:
        found = HostlerProcess("up", "--data", tmp_path / "data", "--listen", "127.0.0.1:0", folder=tmp_path)
        started.append(found)
        found.wait_for("end: Ctrl-C")
        return found

    yield up
    for one in started:
        one.kill()


async def test_a_slice_from_nothing_to_the_repository(start: Callable[[], HostlerProcess], tmp_path: Path) -> None:
    data = {"HOSTLER_DATA": str(tmp_path / "data")}
    source = make("greeting", "org.example", tmp_path / "greeting")
    first = start()
    assert "published org.example:greeting:1.0.0" in (await well("slice", "push", source, **data)).out
    again = (await well("slice", "push", source, "-o", "json", **data)).json
    module = source / "greeting.py"
    module.write_text(module.read_text().replace("Hello", "Good day"))
    refused = await hostler("slice", "push", source, **data)
    assert (refused.code, "another" in refused.err) == (4, True), refused.err
    first.kill()
    start()
    assert "1.1.0" in (await well("slice", "push", source, "--version", "1.1.0", **data)).out
    shown = (await well("slice", "artifacts", "org.example:greeting", "-o", "json", **data)).json
    assert [one["artifact"] for one in shown] == ["org.example:greeting:1.0.0", "org.example:greeting:1.1.0"]
    assert shown[0] == again
