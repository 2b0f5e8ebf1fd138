"""Secrets of blueprints, and what slices printed, do not get out by the side doors: events, traces, failed calls."""

from __future__ import annotations

import msgspec
from blueprint_scene import blueprint, changed, spec
from service_scene import ADMIN, Scene, play

from hostler.engine.decision_history import TraceService
from hostler.engine.deployments.redaction import plain, unspoken
from hostler.engine.idempotent_writer import instants
from hostler.engine.invocation.endpoints import Why
from hostler.engine.request import Caller
from hostler.entry.server.feed import item_of
from hostler.keys.families import BLUEPRINT, DEPLOYMENT, RETRIES, SLICE_OWNER, TRACE
from hostler.model.access import ROLES, Role
from hostler.model.deployment import SliceSettings
from hostler.model.rollout import Deployment, Phase, Retries, SliceOwner
from hostler.model.trace import Trace
from hostler.ports.slices import LAST_WORDS
from hostler.ports.store import Event, KeyValue, Put

VIEWER_OF_ALL = Caller("vera", ROLES[Role.VIEWER], ("*",))
WHY = f"it was killed by SIGKILL, {LAST_WORDS}s3cret"
SECRETS = SliceSettings(environment={"KEY": "s3cret"})
DEPLOYMENT_OF_DB = Deployment(
    blueprint="base",
    number=1,
    artifact="org:db:1",
    settings=SECRETS,
    previous_settings=SECRETS,
    phase=Phase.FAILED,
    why=WHY,
    started_at=0.0,
    changed_at=0.0,
)


def test_what_follows_the_last_words_goes_with_them() -> None:
    assert unspoken(WHY) == "it was killed by SIGKILL"
    assert unspoken("a; its last words: b\nc; d") == "a"
    assert unspoken("a; its words: b") == "a; its words: b"
    assert plain([{"why": 1, "environment": "none"}, None]) == [{"why": 1, "environment": "none"}, None]


def test_events_name_variables_and_not_their_values() -> None:
    """They are for everybody who has signed in, and one text is for all."""
    puts = (
        BLUEPRINT.put(blueprint(changed(spec("db:1"), settings=SECRETS)), blueprint="base"),
        DEPLOYMENT.put(DEPLOYMENT_OF_DB, base="org:db"),
    )
    for put in puts:
        item = item_of(Event("put", KeyValue(put.key, put.value, 3, 3, 1)), (3, 0))
        assert item is not None
        assert b"s3cret" in put.value
        assert b"s3cret" not in item.text
        told = msgspec.json.decode(item.text.split(b"data: ")[1])["record"]
        settings = told["slices"][0]["settings"] if "slices" in told else told["settings"]
        assert settings["environment"] == {"KEY": "…"}


def test_traces_and_failed_calls_do_not_tell_what_slices_printed() -> None:
    async def story(scene: Scene) -> None:
        key = DEPLOYMENT.fill(base="org:db")
        at = scene.clock.wall()
        name = "/".join(instants(at)) + "-x"
        trace = Trace(id=name, actor="deployments", what="retry", subject=key, at=at, why=WHY)
        await scene.raw.txn(
            [],
            [
                DEPLOYMENT.put(DEPLOYMENT_OF_DB, base="org:db"),
                SLICE_OWNER.put(SliceOwner(blueprint="base", number=1), base="org:db"),
                RETRIES.put(Retries(failures=5, given_up=True, why=WHY), artifact="org:db:1"),
                Put(TRACE.prefix() + name, TRACE.encode(trace)),
            ],
        )
        await scene.settle()
        traces = TraceService(scene.store, scene.view, clock=scene.clock)
        for caller, hidden in ((ADMIN, False), (VIEWER_OF_ALL, True)):
            told = await traces.why(caller, "slice/org:db")
            assert [("s3cret" in text) for text in (told.state, told.steps[0].why)] == [not hidden] * 2
            assert "SIGKILL" in told.steps[0].why
        error = str(await Why(scene.store, scene.view).nowhere("org:db", None, (), ()))
        assert "SIGKILL" in error
        assert "s3cret" not in error
        assert error.endswith("; see hostler blueprint status base")

    play(story)
