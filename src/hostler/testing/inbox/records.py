"""Records of users' labs, as seen by readers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid
from hostler.model.lab import LabEvent, LabNews, LabServer, LabStatus
from hostler.ports.inbox import Published, Shown
from hostler.testing.claim import refused
from hostler.testing.inbox.claim import claim

if TYPE_CHECKING:
    from hostler.testing.inbox.claim import InboxTrial


def server(user: str, lab: int = 5) -> LabServer:
    """Return a record."""
    return LabServer(
        user="student",
        address="fd00::1",
        status=LabStatus.RUNNING,
        available=True,
        cloud_status="running",
        server_id="machine-1",
        expires_at="2026-01-02T03:04:05Z",
        web_user_id=user,
        lab_id=lab,
    )


def change(user: str, revision: int, lab: int | None = 5, *news: int, since: float | None = None) -> Published:
    """Return a change, with news of these numbers."""
    return Published(
        user=user,
        revision=revision,
        server=None if lab is None else server(user, lab),
        waits_since=since,
        news=tuple(LabNews(number=n, at=1.5e9 + n, event=LabEvent.STARTED, lab_id=5, reason="a b") for n in news),
    )


@claim
async def what_is_published_is_seen_by_all_and_what_is_taken_back_is_not(t: InboxTrial) -> None:
    assert await t.board.servers() == {}
    assert await t.board.publish([change("ada", 10), change("bob", 11, 7)]) == 2
    async with t.front_end.board() as other:
        assert await other.servers() == {"ada": server("ada"), "bob": server("bob", 7)}
    assert await t.board.publish([change("ada", 12, None)]) == 1
    assert await t.board.servers() == {"bob": server("bob", 7)}


@claim
async def publishing_again_changes_nothing(t: InboxTrial) -> None:
    changes = [change("ada", 10, 5, 1, 2, since=3.5), change("bob", 11, None)]
    assert await t.board.publish(changes) == 1
    assert await t.board.publish(changes) == 0
    assert await t.board.publish([]) == 0


@claim
async def an_older_state_never_replaces_a_newer_one(t: InboxTrial) -> None:
    await t.board.publish([change("ada", 10, 5, 1)])
    assert await t.board.publish([change("ada", 9, 4, 1, 2, since=1.0)]) == 0
    assert await t.board.servers() == {"ada": server("ada", 5)}
    assert await t.front_end.news("ada") == [(1, "started")]
    assert await t.front_end.waiting() == []
    await t.board.publish([change("ada", 12, None)])
    assert await t.board.publish([change("ada", 11, 4)]) == 0
    assert await t.board.publish([change("ada", 9, 5)]) == 0
    assert await t.board.servers() == {}, "a deleted record came back"
    big = 2**52
    assert await t.board.publish([change("ada", big + 1, 6)]) == 1
    assert await t.board.publish([change("ada", big, 7)]) == 0
    assert await t.board.servers() == {"ada": server("ada", 6)}


@claim
async def each_piece_of_news_is_told_once_and_in_order(t: InboxTrial) -> None:
    await t.board.publish([change("ada", 1, 5, 1, 2)])
    await t.board.publish([change("ada", 2, 5, 1, 2, 3), change("bob", 2, 5, 9)])
    await t.board.publish([change("ada", 3, None, 2, 3, 4, 5)])
    await t.board.publish([change("ada", 3, None, 2, 3, 4, 5)])
    assert await t.front_end.news("ada") == [(number, "started") for number in (1, 2, 3, 4, 5)]
    assert await t.front_end.news("bob") == [(9, "started")]


@claim
async def only_the_last_news_is_kept(t: InboxTrial) -> None:
    for start in range(1, 400, 16):
        await t.board.publish([change("ada", start, 5, *range(start, start + 16))])
    news = await t.front_end.news("ada")
    assert 16 <= len(news) < 300
    assert [number for number, _ in news] == list(range(400 - len(news) + 1, 401))


@claim
async def who_waits_stands_in_the_order_of_asking(t: InboxTrial) -> None:
    times = {"ada": 1790000000.25, "bob": 1790000000.125, "carl": 1790000000.5}
    await t.board.publish([change(user, 1, since=since) for user, since in times.items()])
    assert await t.front_end.waiting() == ["bob", "ada", "carl"]
    assert await t.board.publish([change("bob", 2)]) == 1
    assert await t.board.publish([change("ada", 2, None)]) == 1
    assert await t.front_end.waiting() == ["carl"]


@claim
async def a_record_of_nothing_is_withdrawn_unless_there_is_a_newer_one(t: InboxTrial) -> None:
    await t.board.publish([change("ada", 10, since=1.0)])
    assert await t.board.withdraw("ada", 9) is False
    assert await t.board.servers() == {"ada": server("ada")}
    assert await t.board.withdraw("ada", 20) is True
    assert await t.board.withdraw("ada", 20) is False
    assert await t.board.servers() == {}
    assert await t.front_end.waiting() == []
    assert await t.board.publish([change("ada", 19)]) == 0
    assert await t.board.publish([change("ada", 21)]) == 1


@claim
async def what_another_store_published_is_forgotten_and_nothing_else(t: InboxTrial) -> None:
    await t.board.publish([change("ada", 50, 5, 7, since=1.0), change("bob", 40), change("cleo", 60, None)])
    assert await t.board.shown() == {"ada": Shown(50, 7), "bob": Shown(40, 0), "cleo": Shown(60, 0)}
    assert not await t.board.forget("ada", 49)
    assert not await t.board.forget("nobody", 50)
    assert await t.board.servers() == {"ada": server("ada"), "bob": server("bob")}
    assert await t.board.forget("ada", 50)
    assert await t.board.forget("cleo", 60)
    assert not await t.board.forget("ada", 50)
    assert await t.board.servers() == {"bob": server("bob")}
    assert await t.front_end.waiting() == []
    assert await t.board.publish([change("ada", 3, 7, 1), change("cleo", 4)]) == 2
    assert await t.front_end.news("ada") == [(1, "started")]
    assert await t.board.shown() == {"ada": Shown(3, 1), "bob": Shown(40, 0), "cleo": Shown(4, 0)}


@claim
async def those_without_a_record_are_told_when_lives_are_renewed(t: InboxTrial) -> None:
    await t.board.publish([change("ada", 1), change("bob", 1), change("carl", 1, None)])
    assert list(await t.board.refresh(["zoe", "ada", "carl", "bob"])) == ["zoe", "carl"]
    assert await t.board.refresh([]) == []


@claim
async def the_epoch_is_another_once_everything_was_lost(t: InboxTrial) -> None:
    epoch = await t.board.epoch()
    await t.board.publish([change("ada", 5, 5, 1, 2)])
    async with t.front_end.board() as other:
        assert await other.epoch() == epoch == await t.board.epoch()
    await t.front_end.flush()
    assert await t.board.epoch() != epoch
    assert await t.board.publish([change("ada", 5, 5, 1, 2)]) == 1
    assert await t.board.servers() == {"ada": server("ada")}
    assert await t.front_end.news("ada") == [(1, "started"), (2, "started")]


@claim
async def many_are_published_read_and_renewed_at_once(t: InboxTrial) -> None:
    users = [f"user {n} ä" for n in range(2500)]
    assert await t.board.publish([change(user, 1, 5, 1) for user in users]) == 2500
    assert await t.board.servers() == {user: server(user) for user in users}
    assert await t.board.refresh([*users, "nobody"]) == ["nobody"]


@claim
async def a_user_who_cannot_stand_in_a_name_is_refused(t: InboxTrial) -> None:
    for user in ("", "a\nb", "a\u2028b", "x" * 256):
        with refused(Invalid):
            await t.board.publish([change("ada", 1), change(user, 1)])
    assert await t.board.servers() == {}
