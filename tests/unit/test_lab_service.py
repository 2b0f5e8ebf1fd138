"""The lab service: each request is one transaction with its audit and its answer; and who may see what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from environment import env_on
from service_scene import ADMIN, STRANGER, Scene, asked, play

from hostler.engine.labs import state_machine
from hostler.engine.labs.service import LabService, check_use
from hostler.engine.request import Caller
from hostler.errors import Conflict, Forbidden, Invalid, KeyReused, NotFound, Stale, Unavailable
from hostler.keys.families import HANDLE, VM
from hostler.keys.lab import LAB
from hostler.model.access import ROLES, Role
from hostler.model.lab import POOL_ORG, LabCatalogue, LabEvent, LabPhase, LabTemplate, LabUser
from hostler.model.vm import MachineState, Readiness, Step, VirtualMachine, VmHandle, VmSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.model.lab_api import LabAnswer

T = TypeVar("T")
MIA = Caller("mia", ROLES[Role.MEMBER], ("labs/mia",), source="10.0.0.9")
TEACHER = Caller("tom", ROLES[Role.MEMBER], ("labs",))
VIEWER = Caller("vera", ROLES[Role.VIEWER], ("labs",))
CATALOGUE = LabCatalogue(
    labs={
        "3": LabTemplate(title="Files", user_data="secret"),
        "5": LabTemplate(title="Rights", warm=2),
        "12": LabTemplate(),
    },
    at_once=20,
)


def with_labs(story: Callable[[Scene, LabService], Awaitable[T]], **more: Any) -> T:
    async def whole(scene: Scene) -> T:
        fields: dict[str, Any] = {"catalogue": lambda: CATALOGUE, **more}
        return await story(scene, LabService(scene.store, scene.writer, scene.view, env_on(scene.clock), **fields))

    return play(whole)


async def record(scene: Scene, user: str) -> LabUser:
    entry = await LAB.get(scene.raw, user=user)
    assert entry is not None
    return entry.value


async def put(scene: Scene, changed: LabUser) -> None:
    operation = LAB.put(changed, user=changed.user)
    await scene.raw.put(operation.key, operation.value)
    await scene.settle()


async def runs(scene: Scene, user: str) -> None:
    """The user's lab has a machine."""
    await put(scene, state_machine.admit(await record(scene, user), f"vm-{user}", LabTemplate(), scene.clock.wall()))


def test_a_lab_is_asked_for_and_seen_and_stopped() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        done = await labs.start(asked(MIA), "mia", 3)
        assert (done.value.news.event, done.value.news.number) == (LabEvent.REQUESTED, 1)
        assert done.value.lab is not None
        assert (done.value.lab.title, done.value.lab.phase) == ("Files", LabPhase.WAITING)
        assert done.value.lab.revision == done.value.revision == done.revision > 0
        assert await labs.get(MIA, "mia") == done.value.lab
        await scene.settle()
        assert await labs.get(MIA, "mia", stale=True) == done.value.lab
        await runs(scene, "mia")
        longer = (await labs.extend(asked(MIA), "mia", 10.0)).value
        assert longer.news.event is LabEvent.EXTENDED
        assert longer.lab is not None
        assert longer.lab.expires_at == pytest.approx(scene.clock.wall() + 1800 + 600, abs=1)
        assert longer.lab.position is None
        stops = (await labs.stop(asked(MIA), "mia", 3)).value
        assert (stops.news.event, stops.lab and stops.lab.phase) == (LabEvent.STOPPING, LabPhase.STOPPING)
        page = await labs.news(MIA, "mia")
        assert [news.event.value for news in page.items] == ["requested", "started", "extended", "stopping"]
        audits = await scene.audits()
        assert [(audit.who, audit.verb) for audit in audits] == [
            ("mia", "lab.start"),
            ("mia", "lab.extend"),
            ("mia", "lab.stop"),
        ]
        assert {audit.subject for audit in audits} == {LAB.fill(user="mia")}

    with_labs(story)


def test_what_is_refused_or_ignored_is_news_too() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        refused = (await labs.start(asked(MIA), "mia", 9)).value
        assert (refused.news.event, refused.lab) == (LabEvent.REFUSED, None)
        await labs.start(asked(MIA), "mia", 3)
        ignored = (await labs.stop(asked(MIA), "mia", 5)).value
        assert (ignored.news.event, ignored.news.number) == (LabEvent.IGNORED, 3)
        assert len((await record(scene, "mia")).news) == 3

    with_labs(story)


def test_who_has_no_lab_gets_no_record_by_stopping_or_extending_it() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        async def refused() -> None:
            with pytest.raises(NotFound, match="lab of mia: there is no lab; start one"):
                await labs.stop(asked(MIA), "mia")
            with pytest.raises(NotFound, match="lab of mia: there is no lab; start one"):
                await labs.extend(asked(MIA), "mia", 5.0)
            with pytest.raises(NotFound, match="lab of mia: not found"):
                await labs.get(MIA, "mia")

        await refused()
        assert await LAB.get(scene.store, user="mia") is None
        await labs.start(asked(MIA), "mia", 3)
        await labs.stop(asked(MIA), "mia")
        before = await record(scene, "mia")
        await refused()
        assert await record(scene, "mia") == before

    with_labs(story)


@pytest.mark.parametrize(("switch", "event"), [(False, LabEvent.REFUSED), (True, LabEvent.STOPPING)])
def test_another_lab_makes_room_only_where_that_was_chosen(switch: bool, event: LabEvent) -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        await labs.start(asked(MIA), "mia", 3)
        await runs(scene, "mia")
        answer = (await labs.start(asked(MIA), "mia", 5)).value
        assert answer.news.event is event
        assert answer.lab is not None
        assert answer.lab.again == (5 if switch else None)

    with_labs(story, switch=switch)


def test_a_request_with_a_key_is_done_once() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        request = asked(MIA, key="k", fingerprint="f")
        first = await labs.start(request, "mia", 3)
        await labs.stop(asked(MIA), "mia")
        again = await labs.start(request, "mia", 3)
        assert again.replayed
        assert (again.value, again.revision) == (first.value, first.revision)
        assert (await record(scene, "mia")).lab is None
        with pytest.raises(KeyReused):
            await labs.start(asked(MIA, key="k", fingerprint="g"), "mia", 5)

    with_labs(story)


@pytest.mark.parametrize("kind", ["lost", "never"])
def test_a_lost_answer_is_looked_up_and_a_repeated_request_is_done_once(kind: Any) -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        scene.store.script("txn", kind, prefix=LAB.prefix())
        request = asked(MIA, key="k", fingerprint="f")
        for _ in range(3):
            try:
                await labs.start(request, "mia", 3)
                break
            except Exception as error:  # noqa: BLE001 - it tells what to do: repeat it
                assert "repeat it with the same Idempotency-Key" in str(error)  # noqa: PT017
        assert [news.event for news in (await record(scene, "mia")).news] == [LabEvent.REQUESTED]

    with_labs(story)


def test_many_at_once_for_one_user_leave_one_lab_and_each_its_news() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        scene.store.faults.slow, scene.store.faults.slowest = 1.0, 0.1  # so that they come in between one another
        asking = [labs.start(asked(TEACHER), "mia", lab_id) for lab_id in (3, 5, 12)]
        results = await asyncio.gather(*asking, return_exceptions=True)
        answers: list[LabAnswer] = [done.value for done in results if not isinstance(done, BaseException)]
        assert all(isinstance(done, Conflict) for done in results if isinstance(done, BaseException))
        assert sorted(answer.news.number for answer in answers) == list(range(1, len(answers) + 1))
        assert [answer.news.event for answer in answers].count(LabEvent.REQUESTED) == 1
        assert (await record(scene, "mia")).generation == 1

    with_labs(story)


def test_if_match_holds_only_for_the_present_revision() -> None:
    async def story(_scene: Scene, labs: LabService) -> None:
        with pytest.raises(Stale):
            await labs.stop(asked(MIA, if_match=7), "mia")
        revision = (await labs.start(asked(MIA), "mia", 3)).revision
        with pytest.raises(Stale, match=f"revision {revision - 1} is not the present one, {revision}"):
            await labs.stop(asked(MIA, if_match=revision - 1), "mia")
        assert (await labs.stop(asked(MIA, if_match=revision), "mia")).value.lab is None

    with_labs(story)


@pytest.mark.parametrize("user", ["", "a\nb", "x" * 256, "x" * 10_000, "a\u200bb"])
def test_a_name_that_no_user_can_have_writes_nothing(user: str) -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        with pytest.raises(Invalid, match="webuserid"):
            await labs.start(asked(ADMIN), user, 3)
        with pytest.raises(Invalid, match="webuserid"):
            await labs.get(ADMIN, user)
        assert not (await LAB.list(scene.raw)).entries
        assert not await scene.audits()

    with_labs(story)


def test_who_does_not_see_a_lab_is_told_what_is_told_where_there_is_none() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        await labs.start(asked(TEACHER), "mia", 3)
        other = Caller("ben", ROLES[Role.MEMBER], ("labs/ben",))
        for caller in (other, STRANGER):
            for ask in (
                lambda caller=caller: labs.get(caller, "mia"),
                lambda caller=caller: labs.get(caller, "mia", stale=True),
                lambda caller=caller: labs.news(caller, "mia"),
                lambda caller=caller: labs.start(asked(caller), "mia", 5),
                lambda caller=caller: labs.stop(asked(caller), "mia"),
                lambda caller=caller: labs.extend(asked(caller), "mia", 1.0),
                lambda caller=caller: labs.message(asked(caller), "mia", "hello"),
            ):
                with pytest.raises(NotFound, match=r"^lab of mia: not found; see the list of labs$"):
                    await ask()
        for write in (labs.start(asked(VIEWER), "mia", 3), labs.stop(asked(VIEWER), "mia")):
            with pytest.raises(Forbidden):
                await write
        assert (await labs.get(VIEWER, "mia")).lab_id == 3
        assert len((await record(scene, "mia")).news) == 1

    with_labs(story)


def test_a_student_starts_and_stops_the_own_lab_without_a_right_and_nothing_else() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        mia = Caller("mia", ROLES[Role.VIEWER], ("labs/Mia",))  # accounts are known by their folded names
        assert (await labs.start(asked(mia), "Mia", 3)).value.news.event is LabEvent.REQUESTED
        entry = await LAB.get(scene.store, user="Mia")
        lab = None if entry is None else entry.value.lab
        assert lab is not None
        assert lab.own, "so its time comes out of the day's"
        await runs(scene, "Mia")
        for write in (labs.extend(asked(mia), "Mia", 1.0), labs.message(asked(mia), "Mia", "hello")):
            with pytest.raises(Forbidden, match="modify_workloads"):
                await write
        with pytest.raises(NotFound):  # called alike is not enough: the project must be theirs
            await labs.start(asked(mia), "mia", 3)
        parent = Caller("pa", ROLES[Role.VIEWER], ("labs/Mia",))
        with pytest.raises(Forbidden, match="modify_workloads"):
            await labs.stop(asked(parent), "Mia")
        assert (await labs.stop(asked(mia), "Mia")).value.news.event is LabEvent.STOPPING

    with_labs(story)


def test_a_name_alone_is_nobodys_lab_for_users_are_told_apart_by_case_and_accounts_are_not() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        for name, memberships, users in (
            ("vera", ("labs",), ("vera", "Vera", "VERA")),
            ("vall", ("*",), ("vall", "Vall")),
            ("weiss", ("labs", "labs/weiss"), ("Weiß", "WEISS", "Weiss")),
        ):
            watcher = Caller(name, ROLES[Role.VIEWER], memberships)
            for user in users:
                await labs.start(asked(TEACHER), user, 3)
                for write in (labs.start(asked(watcher), user, 3), labs.stop(asked(watcher), user)):
                    with pytest.raises(Forbidden, match="modify_workloads"):
                        await write
                with pytest.raises(Forbidden, match="modify_workloads"):
                    check_use(watcher, user)  # as the terminal does
                assert (await labs.get(watcher, user)).user == user
        check_use(Caller("weiss", ROLES[Role.VIEWER], ("labs/Weiß",)), "Weiß")

    with_labs(story)


def test_what_a_teacher_says_is_among_the_news_and_in_the_audit() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        await labs.start(asked(MIA), "mia", 3)
        before = await labs.get(MIA, "mia")
        done = (await labs.message(asked(TEACHER), "mia", "  Save your work: größe €  ")).value
        assert (done.news.event, done.news.reason, done.news.lab_id) == (
            LabEvent.MESSAGE,
            "Save your work: größe €",
            3,
        )
        assert (await labs.news(MIA, "mia")).items[-1] == done.news
        after = await labs.get(MIA, "mia")
        assert (after.phase, after.position, after.generation) == (before.phase, before.position, before.generation)
        assert [(audit.who, audit.verb) for audit in await scene.audits()][-1] == ("tom", "lab.message")
        for text in ("", "  ", "a\nb", "a\x1b[2Jb", "a\u2028b", "a\u202eb", "a\x9bb", "\u200b", "\u2800", "a\u061cb"):
            with pytest.raises(Invalid, match=r"^message: "):
                await labs.message(asked(TEACHER), "mia", text)
        with pytest.raises(NotFound, match="there is no lab"):
            await labs.message(asked(TEACHER), "ben", "hello")
        assert [len(kept) for kept in ((await record(scene, "mia")).news, (await record(scene, "mia")).messages)] == [
            1,
            1,
        ]

    with_labs(story)


@pytest.mark.parametrize("stale", [False, True])
def test_labs_are_listed_in_pages_and_only_to_who_sees_them(stale: bool) -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        users = [f"u{number:02d}" for number in range(7)]
        for user in reversed(users):
            await labs.start(asked(TEACHER), user, 3)
        await labs.stop(asked(TEACHER), "u03")
        await scene.settle()
        listed: list[str] = []
        after: str | None = None
        for _ in range(5):
            page = await labs.list(VIEWER, limit=2, after=after, stale=stale)
            assert page.revision > 0
            listed += [view.user for view in page.items]
            after = page.after
            if after is None:
                break
        assert listed == [user for user in users if user != "u03"]
        few = Caller("ann", ROLES[Role.MEMBER], ("labs/u05", "labs/u01", "labs/nobody", "labs/a:b", "acme"))
        page = await labs.list(few, limit=1, stale=stale)
        assert ([view.user for view in page.items], page.after) == (["u01"], "u01")
        page = await labs.list(few, limit=1, after="u01", stale=stale)
        assert ([view.user for view in page.items], page.after) == (["u05"], None)
        assert (await labs.list(STRANGER, stale=stale)).items == ()
        with pytest.raises(Invalid, match="limit 0"):
            await labs.list(VIEWER, limit=0)

    with_labs(story)


def test_the_position_is_the_rank_among_all_that_wait() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        for number, user in enumerate(("cleo", "abel", "bert")):
            answer = (await labs.start(asked(TEACHER), user, (3, 5, 3)[number])).value
            assert answer.lab is not None
            assert answer.lab.position == number + 1
            await scene.clock.sleep(1.0)

        async def positions() -> dict[str, int | None]:
            return {view.user: view.position for view in (await labs.list(VIEWER)).items}

        assert await positions() == {"abel": 2, "bert": 3, "cleo": 1}
        await runs(scene, "abel")
        assert await positions() == {"abel": None, "bert": 2, "cleo": 1}
        await labs.stop(asked(TEACHER), "cleo")
        await scene.settle()
        assert await positions() == {"abel": None, "bert": 1}
        found = await labs.offers(VIEWER)
        counts = {offer.lab_id: (offer.running, offer.waiting) for offer in found.items}
        assert counts == {3: (0, 1), 5: (1, 0), 12: (0, 0)}
        assert (found.running, found.waiting, found.at_once) == (1, 1, 20)
        await labs.stop(asked(TEACHER), "abel")
        await put(scene, state_machine.gone(await record(scene, "abel"), 1.0, CATALOGUE))
        assert (await labs.offers(VIEWER)).running == 0

    with_labs(story)


def test_positions_are_known_of_labs_that_were_there_before() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        await labs.start(asked(TEACHER), "abel", 3)
        await scene.clock.sleep(1.0)
        await labs.start(asked(TEACHER), "bert", 3)
        await scene.settle()
        later = LabService(scene.store, scene.writer, scene.view, env_on(scene.clock), catalogue=LabCatalogue)
        assert (await later.get(VIEWER, "bert")).position == 2

    with_labs(story)


def test_the_catalogue_tells_how_it_stands_and_no_secrets() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        for number, (lab_id, step) in enumerate([("5", Step.AVAILABLE), ("5", Step.SSH), ("12", None)]):
            ids = {"org": POOL_ORG, "project": lab_id, "vm": f"vm-{number}"}
            vm = VirtualMachine(
                id=ids["vm"], name="w", org=POOL_ORG, project=lab_id, spec=VmSpec(cpus=1, memory_mib=64), created_at=1.0
            )
            wished = VM.put(vm, **ids)
            await scene.raw.put(wished.key, wished.value)
            if step is not None:
                ready = Readiness(step=step, since=1.0)
                handle = VmHandle(id=vm.id, node="n", state=MachineState.RUNNING, readiness=ready, seen_at=1.0)
                seen = HANDLE.put(handle, **ids)
                await scene.raw.put(seen.key, seen.value)
        await scene.settle()
        found = await labs.offers(MIA)
        assert [(offer.lab_id, offer.warm) for offer in found.items] == [(3, 0), (5, 1), (12, 0)]
        assert b"secret" not in found.encode()
        await scene.raw.delete(VM.fill(org=POOL_ORG, project="5", vm="vm-0"))
        await scene.settle()
        assert (await labs.offers(MIA)).items[1].warm == 0
        with pytest.raises(Forbidden, match="sees no labs"):
            await labs.offers(STRANGER)

    with_labs(story)


def test_without_a_catalogue_there_is_one_offer_for_every_id() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        await labs.start(asked(MIA), "mia", 77)
        await scene.settle()
        (offer,) = (await labs.offers(MIA)).items
        assert (offer.lab_id, offer.waiting, offer.running, offer.warm) == (None, 1, 0, 0)

    with_labs(story, catalogue=LabCatalogue)


def test_while_the_store_is_out_of_reach_old_news_is_told_and_nothing_is_written() -> None:
    async def story(scene: Scene, labs: LabService) -> None:
        await labs.start(asked(MIA), "mia", 3)
        await scene.settle()
        scene.store.down()
        assert (await labs.get(MIA, "mia", stale=True)).lab_id == 3
        assert [view.user for view in (await labs.list(VIEWER, stale=True)).items] == ["mia"]
        with pytest.raises(Unavailable):
            await labs.stop(asked(MIA), "mia")
        with pytest.raises(Unavailable):
            await labs.get(MIA, "mia")

    with_labs(story)
