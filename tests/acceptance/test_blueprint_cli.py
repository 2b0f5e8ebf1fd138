"""`hostler blueprint` against a running server: from a file to its plan, its status, its history and its end.

Nothing decides behind the server: what leader and nodes would write, the test writes.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from api_server import serving
from blueprint_scene import SaidArtifacts

from hostler.engine.request import HOSTLER
from hostler.entry.cli import main
from hostler.entry.cli.blueprint import rollout
from hostler.keys.families import ALERT, BLUEPRINT, DEPLOYMENT, RETRIES, SLICE, SLICE_OWNER
from hostler.model.deployment import AlertMetric, AlertRule, SliceInstance, SliceRecord, SliceState
from hostler.model.rollout import Alert, AlertState, Deployment, Phase, Retries, RolloutControl

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from api_server import Api

TOML = """
[[slices]]
artifact = "org.example:cart:1.0.0"
instances = 3

[slices.strategy]
type = "canary"
stages = [{ weight = 25, hold = 5 }]
"""


class Place:
    """A server in a thread of its own, and the command line in this one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._there, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.api: Api
        self._loop: asyncio.AbstractEventLoop
        self._thread.start()
        assert self._there.wait(30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with serving(artifacts=SaidArtifacts("org.example:lost:1.0.0"), sockets=True) as self.api:
            for node in ("n1", "n2"):
                await self.api.node(node)
            self._there.set()
            await self._end.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    def do(self, doing: Callable[[Api], Coroutine[Any, Any, Any]]) -> Any:
        """On the server's side."""
        return asyncio.run_coroutine_threadsafe(doing(self.api), self._loop).result(30)

    def hostler(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """Standard output and standard error of a command."""
        self._capsys.readouterr()
        found = main([str(argument) for argument in arguments])
        told = self._capsys.readouterr()
        assert found == code, (arguments, found, told)
        assert "Traceback" not in told.err
        return told.out, told.err

    def json(self, *arguments: object) -> Any:
        return json.loads(self.hostler(*arguments, "-o", "json")[0])


@pytest.fixture
def place(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    place = Place(capsys)
    monkeypatch.setenv("HOSTLER_SERVER", place.api.url)
    monkeypatch.setenv("HOSTLER_TOKEN", place.api.admin)
    try:
        yield place
    finally:
        place.close()


def runs(
    version: str, phase: Phase = Phase.DONE, /, failures: int = 0, previous: str = "", refused: str = "", **on: int
) -> Any:
    """What leader and nodes write of `cart` once there are so many of a version on each node."""
    artifact = f"org.example:cart:{version}"

    async def write(api: Api) -> None:
        store, view = api.services.store, api.services.view
        owner = view.owners.get(base="org.example:cart")
        assert owner is not None
        record = Deployment(
            blueprint="shop",
            number=owner.value.number,
            artifact=artifact,
            strategy=(await api.services.blueprints.get(HOSTLER, "shop")).slices[0].strategy,
            phase=phase,
            previous=previous,
            control=RolloutControl(answer=refused),
            started_at=1.0,
            changed_at=1.0,
            why=f"{artifact} failed {failures} times: start raised" if failures else "",
        )
        for put in (
            *(SLICE.put(_record(count), node=node, artifact=artifact) for node, count in on.items()),
            RETRIES.put(Retries(failures=failures, given_up=failures > 4, why="start raised"), artifact=artifact),
            DEPLOYMENT.put(record, base="org.example:cart"),
        ):
            await store.put(put.key, put.value)
        await view.refresh(view.slices, view.deployments, view.retries)

    return write


def _record(count: int) -> SliceRecord:
    instances = {number: SliceInstance(state=SliceState.ACTIVE) for number in range(1, count + 1)}
    return SliceRecord(state=SliceState.ACTIVE, timestamp=5, instances=instances)


async def gone(api: Api) -> None:
    """What the leader does of a slice of which nothing is left."""
    await api.services.store.delete_prefix(SLICE.prefix())
    await api.services.store.delete(SLICE_OWNER.fill(base="org.example:cart"))
    await api.services.view.refresh(api.services.view.slices, api.services.view.owners)


def test_a_blueprint_from_its_file_to_nothing(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(TOML)
    out, _ = place.hostler("blueprint", "validate", file)
    assert "1 slice, 3 instances" in out
    out, _ = place.hostler("blueprint", "plan", file)
    assert out.splitlines()[0] == "+ org.example:cart 1.0.0 × 3: starts at once"
    assert "load    n1 × 2, n2" in out or "load    n1, n2 × 2" in out
    assert "shop: 3 to load" in out
    assert place.hostler("blueprint", "list") == (
        "",
        "no blueprints; apply one: hostler blueprint apply FILE\n",
    )

    out, _ = place.hostler("blueprint", "apply", file, "--yes")
    assert "+ org.example:cart" in out
    assert "shop: applied as number 1; follow it: hostler blueprint status shop" in out
    place.do(runs("1.0.0", n1=2, n2=1))
    out, _ = place.hostler("blueprint", "apply", file, "--wait")
    assert "shop: nothing to do, it matches the file" in out
    assert out.splitlines()[-1] == "shop: ready, 3/3 ready"
    out, _ = place.hostler("blueprint", "status", "shop")
    assert "ready" in out
    [row] = [line for line in out.splitlines() if line.startswith("org.example:cart")]
    assert row.split() == [
        *("org.example:cart", "1.0.0", "ready", "3/3", "3", "active", "n1", "×", "2,", "n2"),
    ]
    assert place.hostler("blueprint", "list")[0].splitlines()[1].split() == ["shop", "1", "ready", "3/3", "1"]

    file.write_text(TOML.replace("1.0.0", "1.1.0"))
    planned = place.json("blueprint", "apply", file, "--plan")
    assert [one["what"] for one in planned["slices"]] == ["upgrade"]
    out, _ = place.hostler("blueprint", "plan", file)
    how = "canary: 25 % for 5 s and at least 50 calls each, then all; rollback if more than 1 %"
    assert f"~ org.example:cart 1.0.0 → 1.1.0 × 3: {how}" in out
    assert "unload  n1 × 2, n2" in out
    assert place.json("blueprint", "get", "shop")["slices"][0]["artifact"] == "org.example:cart:1.0.0"
    applied = place.json("blueprint", "apply", file)
    assert (applied["number"], applied["phase"]) == (2, "changing")
    place.do(runs("1.1.0", Phase.FAILED, failures=5))
    out, err = place.hostler("blueprint", "apply", file, "--plan")
    assert "org.example:cart:1.1.0 was given up, and would be tried again" in err
    _, err = place.hostler("blueprint", "rollback", "shop", "--to", 2, "--wait", "--timeout", "1s", code=11)
    assert "work continues: hostler blueprint status shop" in err
    place.do(runs("1.1.0", Phase.FAILED, failures=5))
    out, err = place.hostler("blueprint", "status", "shop")
    assert "failed: org.example:cart: org.example:cart:1.1.0 failed 5 times: start raised" in out
    assert "see the output: hostler slice logs org.example:cart" in err

    out, _ = place.hostler("blueprint", "rollback", "shop")
    assert out == "shop: rolled back, as number 4\n"
    place.do(runs("1.0.0", n1=2, n2=1))
    out, _ = place.hostler("blueprint", "history", "shop")
    lines = [line.split() for line in out.splitlines()[1:]]
    assert [(line[0], line[-4:]) for line in lines] == [
        ("4", ["cart", "1.0.0", "×", "3"]),
        ("3", ["cart", "1.1.0", "×", "3"]),
        ("2", ["cart", "1.1.0", "×", "3"]),
        ("1", ["cart", "1.0.0", "×", "3"]),
    ]
    assert "rolled back to 1" in out
    old = place.json("blueprint", "get", "shop", "--number", 2)
    again = tmp_path / "again.json"
    again.write_text(json.dumps(old))
    assert "~ org.example:cart 1.0.0 → 1.1.0" in place.hostler("blueprint", "plan", again)[0], "it names itself"

    assert place.hostler("blueprint", "delete", "shop", "--yes")[0] == "shop: deleted; its slices end\n"
    out, _ = place.hostler("blueprint", "status", "shop")
    assert "removing: it was deleted; 1 slice still to go" in out
    tell = rollout._Watched.tell

    def told(watched: rollout._Watched, now: Any) -> None:
        tell(watched, now)
        place.do(gone)

    monkeypatch.setattr(rollout._Watched, "tell", told)
    out, _ = place.hostler("blueprint", "status", "shop", "--watch")
    first, *_, last = out.splitlines()
    assert first.endswith("ready: it was deleted; 1 slice still to go")
    assert last == "shop: gone"
    _, err = place.hostler("blueprint", "status", "shop", code=3)
    assert "blueprint shop: not found" in err


def test_what_is_refused_says_where_and_why(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(TOML.replace("instances = 3", "instances = 0"))
    for verb in ("validate", "plan", "apply"):
        _, err = place.hostler("blueprint", verb, file, code=2)
        assert f"{file}: slices[0].instances: expected int >= 1, not 0" in err
    file.write_text(TOML.replace("instances = 3", "instances = 3\nmin_available = 4\nneeds = ['org.example:cart']"))
    _, err = place.hostler("blueprint", "apply", file, code=2)
    assert f"{file}: slices[0].min_available: 4 is more than instances, 3" in err
    assert f"{file}: slices[0].needs[0]: org.example:cart cannot need itself" in err
    assert "2 mistakes\n  next: correct them" in err
    file.write_text(TOML.replace("cart", "lost"))
    _, err = place.hostler("blueprint", "apply", file, "--yes", code=4)
    assert "! blueprint shop: slices[0].artifact: org.example:lost:1.0.0 is not in the repository" in err
    assert "hostler slice push" in err
    assert place.do(lambda api: BLUEPRINT.list(api.services.store)).entries == ()
    _, err = place.hostler("blueprint", "apply", tmp_path / "none.toml", code=2)
    assert "No such file" in err


def test_at_a_terminal_one_is_asked(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(TOML)
    asked: list[str] = []

    def refuse(text: str, **_: Any) -> bool:
        import click

        asked.append(text)
        raise click.Abort

    monkeypatch.setattr("hostler.entry.cli.blueprint.change.click.confirm", refuse)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    main(["blueprint", "apply", str(file)])
    assert asked == ["Apply it?"]
    assert place.do(lambda api: BLUEPRINT.list(api.services.store)).entries == ()
    for count in (3, 4, 4):
        file.write_text(TOML.replace("instances = 3", f"instances = {count}"))
        place.hostler("blueprint", "apply", file, "--yes")
    out, _ = place.hostler("blueprint", "rollback", "shop", code=130)
    assert asked[1:] == ["Roll back to number 1?"]
    assert "× 4 → 3" in out
    place.hostler("blueprint", "rollback", "shop", "--to", "2", code=130)
    assert asked[2:] == ["Roll back to number 2?"]
    assert place.json("blueprint", "get", "shop")["slices"][0]["instances"] == 4
    place.hostler("blueprint", "rollback", "shop", "--yes")
    assert place.json("blueprint", "get", "shop")["slices"][0]["instances"] == 3
    place.hostler("blueprint", "delete", "shop", "--yes")
    place.hostler("blueprint", "rollback", "shop", code=130)
    assert asked[3:] == ["Roll back to number 4?"]
    place.hostler("blueprint", "rollback", "none", code=3)


def test_where_nothing_runs_it_is_said_where_to_look(place: Place, tmp_path: Path) -> None:
    assert "apply a blueprint" in place.hostler("slice", "list")[1]
    file = tmp_path / "shop.toml"
    file.write_text(TOML)
    place.hostler("blueprint", "apply", file, "--yes")
    for words in (("org.example:cart",), ("org.example:cart:1.0.0",), ("org.example:cart", "--node", "n1")):
        assert "hostler blueprint status shop" in place.hostler("slice", "list", *words)[1]
    assert "no blueprint has this slice" in place.hostler("slice", "list", "nope:x")[1]
    assert "no slices on n1; list all: hostler slice list" in place.hostler("slice", "list", "--node", "n1")[1]
    place.hostler("slice", "list", "--node", "nonode", code=3)


def test_d31_an_aether_file_is_applied_with_warnings_and_deleted(place: Place, tmp_path: Path) -> None:
    """Nothing leads here, so the test removes what a leader would remove while `delete --wait` waits."""
    file = tmp_path / "shop.toml"
    file.write_text(
        'id = "org.example:shop:1.0.0"\n[[slices]]\nartifact = "org.example:cart:1.0.0"\ninstances = 1\n'
        'minAvailable = 1\ncolour = "red"\n'
    )
    out, err = place.hostler("blueprint", "apply", file, "--yes")
    assert "colour" in out + err
    name = place.json("blueprint", "list")[0]["name"]

    async def gone_once_deleted(api: Api) -> None:
        while (await BLUEPRINT.list(api.services.store)).entries:
            await asyncio.sleep(0.01)
        await gone(api)

    leading = threading.Thread(target=place.do, args=(gone_once_deleted,))
    leading.start()
    place.hostler("blueprint", "delete", name, "--yes", "--wait", "--timeout", "20s")
    leading.join()


def test_d33_orders_for_an_upgrade_that_is_under_way(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(TOML)
    place.hostler("blueprint", "apply", file, "--yes")
    place.do(runs("1.0.0", n1=2, n2=1))
    _, err = place.hostler("blueprint", "pause", "shop", code=4)
    assert "cannot pause: no rollout is in progress" in err
    file.write_text(TOML.replace("1.0.0", "1.1.0"))
    place.hostler("blueprint", "apply", file, "--yes")
    place.do(runs("1.1.0", Phase.CANARY, previous="org.example:cart:1.0.0", n1=1))
    out, _ = place.hostler("blueprint", "pause", "shop")
    assert "org.example:cart 1.1.0: waiting: paused by" in out
    assert "paused by" in place.hostler("blueprint", "status", "shop")[0]
    _, err = place.hostler("blueprint", "promote", "shop", code=4)
    assert "resume it first" in err
    _, err = place.hostler("blueprint", "approve", "shop", "--slice", "org.example:cart", code=4)
    assert "the rollout is paused" in err
    found = place.json("blueprint", "resume", "shop")
    assert found["slices"][0]["rollout"]["actions"] == ["promote", "pause", "abort"]
    _, err = place.hostler("blueprint", "abort", "shop", "--slice", "org:none", "--yes", code=3)
    assert "it has no slice org:none" in err
    refused = "not promoted: 5 of 10 calls failed"
    place.do(runs("1.1.0", Phase.CANARY, previous="org.example:cart:1.0.0", refused=refused, n1=1))
    assert refused in place.hostler("blueprint", "status", "shop")[0]


def test_d41_alerts_that_fire_are_shown(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(TOML + '[[slices.alerts]]\nname = "slow"\nmetric = "p95_ms"\nabove = 500\n')
    place.hostler("blueprint", "apply", file, "--yes")
    place.do(runs("1.0.0", n1=2, n2=1))
    assert "alert" not in place.hostler("blueprint", "status", "shop")[0]
    why = "alert slow of org.example:cart fires: p95_ms is 812 ms, above 500 ms for 60 s"

    async def fires(api: Api) -> None:
        rule = AlertRule(name="slow", metric=AlertMetric.P95_MS, above=500.0)
        alert = Alert(blueprint="shop", rule=rule, state=AlertState.FIRING, value=812.0, at=1.0, why=why)
        put = ALERT.put(alert, base="org.example:cart", alert="slow")
        await api.services.store.put(put.key, put.value)
        await api.services.view.refresh(api.services.view.alerts)

    place.do(fires)
    assert why in place.hostler("blueprint", "status", "shop")[0].splitlines()
    assert "alerts: org.example:cart slow" in place.hostler("blueprint", "list")[0]
    assert place.json("blueprint", "status", "shop")["slices"][0]["alerts"][0]["firing"] is True
