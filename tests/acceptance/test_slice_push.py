"""Artifacts through a running `hostler up`: published, shown, refused, and there after a restart."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from up_process import HostlerProcess, hostler, well

from hostler.entry.cli.slice.project import make

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


async def test_a_slice_that_one_machine_took_runs_on_all_machines(tmp_path: Path) -> None:
    store = ("--store", f"sqlite://{tmp_path / 'hostler.db'}")
    source = make("greeting", "org.example", tmp_path / "greeting")
    (tmp_path / "shop.toml").write_text('[[slices]]\nartifact = "org.example:greeting:1.0.0"\ninstances = 2\n')
    machine = [tmp_path / name for name in ("r", "a", "b")]
    api = ("--listen", "127.0.0.1:0")
    started = [HostlerProcess("replica", *store, "--data", machine[0], *api, folder=tmp_path)]
    try:
        for node, data in zip(("r1-a", "r1-b"), machine[1:]):
            started.append(HostlerProcess("agent", *store, "--data", data, "--node", node, folder=tmp_path))
        token = machine[0] / "admin.token"
        server = {"HOSTLER_SERVER": await started[0].url("serving"), "HOSTLER_TOKEN_FILE": str(token)}
        for agent in started[1:]:
            await agent.says("registered")
            assert "not registered" not in agent.text  # that it begins without is no news
        await well("slice", "push", source, **server)
        await well("blueprint", "apply", tmp_path / "shop.toml", "--name", "shop", "--yes", "--wait", **server)
        shown = (await well("slice", "list", "-o", "json", **server)).json
        assert {one["node"] for one in shown} == {"r1-a", "r1-b"}
        assert not any((data / "artifacts").exists() for data in machine[1:])
        for agent in started[1:]:  # it stops its slices
            agent.signal(signal.SIGTERM)
            assert await agent.ends() == 0
    finally:
        for process in started:
            process.kill()
