"""Labs over HTTP: what each request answers, who may, and what is told of it elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from api_server import Api, serving
from harness import pace

import hostler
from hostler.errors import Conflict, NotFound, Stale, Unavailable
from hostler.model.access import Role
from hostler.model.lab import LabCatalogue, LabEvent, LabPhase, LabTemplate, lab_project

LABS = "/v1/labs"


def catalogue() -> LabCatalogue:
    return LabCatalogue(labs={"5": LabTemplate(title="Files", user_data="#secret"), "7": LabTemplate(at_once=3)})


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with serving(catalogue=catalogue()) as api:
        yield api


async def test_a_start_is_accepted_once_and_then_there_already(api: Api) -> None:
    first = await api.call("POST", LABS, json={"user": "a b", "labId": 5})
    assert first.status == 202
    assert first.headers["Location"] == "/v1/labs/a%20b"
    assert (first.json["news"]["event"], first.json["lab"]["phase"]) == ("requested", "waiting")
    assert (first.json["lab"]["position"], first.json["lab"]["title"]) == (1, "Files")
    shown = await api.call("GET", first.headers["Location"])
    assert shown.status == 200
    assert shown.headers["ETag"] == f'"{first.json["revision"]}"'
    assert shown.json == first.json["lab"]
    again = await api.call("POST", LABS, json={"user": "a b", "labId": 5})
    assert (again.status, again.json["news"]["event"]) == (200, "already")
    assert (await api.call("GET", LABS)).json["items"][0]["user"] == "a b"


@pytest.mark.parametrize(("lab_id", "why"), [(7, "lab 5 is active"), (9, "there is no lab 9")])
async def test_a_start_that_the_rules_do_not_allow_is_a_conflict_with_the_reason(
    api: Api, lab_id: int, why: str
) -> None:
    await api.call("POST", LABS, json={"user": "ada", "labId": 5})
    answer = await api.call("POST", LABS, json={"user": "ada", "labId": lab_id})
    assert (answer.status, answer.json["type"]) == (409, "about:hostler/lab-refused")
    assert why in answer.json["detail"]
    assert answer.json["next"]
    told = (await api.call("GET", f"{LABS}/ada/events")).json["items"]
    assert [news["event"] for news in told] == ["requested", "refused"]
    assert (await api.call("GET", f"{LABS}/ada")).json["labId"] == 5


async def test_a_stop_with_another_lab_id_changes_nothing(api: Api) -> None:
    await api.lab("ada", 5)
    other = await api.call("DELETE", f"{LABS}/ada?labId=7")
    assert (other.status, other.json["type"]) == (409, "about:hostler/lab-refused")
    stopped = await api.call("DELETE", f"{LABS}/ada?labId=5")
    assert (stopped.status, stopped.json["lab"]["status"]) == (202, "stopping")
    assert not stopped.json["lab"]["available"]
    again = await api.call("DELETE", f"{LABS}/ada")
    assert (again.status, again.json["news"]["event"]) == (200, "already")


async def test_a_lab_that_waits_is_gone_at_once_and_one_that_is_not_there_is_not_found(api: Api) -> None:
    await api.call("POST", LABS, json={"user": "ada", "labId": 5})
    gone = await api.call("DELETE", f"{LABS}/ada")
    assert (gone.status, gone.json["lab"], gone.json["news"]["event"]) == (200, None, "stopped")
    for user in ("ada", "never"):
        for method, path, body in (("GET", "", None), ("DELETE", "", None), ("POST", "/extend", {"minutes": 5})):
            answer = await api.call(method, f"{LABS}/{user}{path}", json=body)
            assert (answer.status, answer.json["type"]) == (404, "about:hostler/not-found"), method
    assert await api.store.get("/hostler/v1/labs/never") is None
    assert (await api.call("GET", LABS)).json["items"] == []


async def test_an_extension_moves_the_end_and_is_refused_while_there_is_none(api: Api) -> None:
    await api.lab("ada", 5)
    before = (await api.call("GET", f"{LABS}/ada")).json
    answer = await api.call("POST", f"{LABS}/ada/extend", json={"minutes": 10})
    assert answer.status == 200
    assert answer.json["lab"]["expires_at"] == pytest.approx(before["expires_at"] + 600)
    assert (await api.call("POST", f"{LABS}/ada/extend", json={"minutes": 10, "labId": 7})).status == 409
    await api.lab("bob", 5, LabPhase.WAITING)
    waiting = await api.call("POST", f"{LABS}/bob/extend", json={"minutes": 10})
    assert (waiting.status, waiting.json["type"]) == (409, "about:hostler/lab-refused")
    assert (await api.call("POST", f"{LABS}/ada/extend", json={"minutes": 0})).status == 400


async def test_a_repeated_request_is_answered_alike_and_done_once(api: Api) -> None:
    await api.lab("ada", 5)
    key = {"Idempotency_Key": "k1"}
    first = await api.call("POST", f"{LABS}/ada/extend", json={"minutes": 10}, **key)
    second = await api.call("POST", f"{LABS}/ada/extend", json={"minutes": 10}, **key)
    assert second.headers["Idempotency-Replayed"] == "true"
    assert second.json == first.json
    for query, status in (("?labId=7", 409), ("?labId=5", 422)):
        assert (await api.call("DELETE", f"{LABS}/ada{query}", Idempotency_Key="k2")).status == status, query
    assert (await api.call("GET", f"{LABS}/ada")).json["phase"] == "running"


async def test_a_write_from_an_old_revision_is_stale(api: Api) -> None:
    await api.lab("ada", 5)
    revision = (await api.call("GET", f"{LABS}/ada")).json["revision"]
    fresh = await api.call("POST", f"{LABS}/ada/extend", json={"minutes": 1}, If_Match=f'"{revision}"')
    assert fresh.status == 200
    assert (await api.call("DELETE", f"{LABS}/ada", If_Match=f'"{revision}"')).status == 412
    assert (await api.call("DELETE", f"{LABS}/ada", If_Match=fresh.headers["ETag"])).status == 202


@pytest.mark.parametrize("user", ["%0A", "x" * 256])
async def test_a_user_that_cannot_stand_in_a_name_is_refused(api: Api, user: str) -> None:
    for method, path, body in (
        ("GET", f"{LABS}/{user}", None),
        ("DELETE", f"{LABS}/{user}", None),
        ("GET", f"{LABS}/{user}/events", None),
        ("POST", LABS, {"user": "\n" if user == "%0A" else user, "labId": 5}),
    ):
        assert (await api.call(method, path, json=body)).status == 400, method
    assert (await api.store.range("/hostler/v1/labs/")).items == ()


async def test_l2_users_of_any_printable_id_are_served_by_the_client(api: Api) -> None:
    """L2: each is started, read, listed, explained and stopped; its own student sees it, and another's does not."""
    users = ["..", "a/b", "a//b", "a^2Fb", "f:b2c:ada@example.org", "a b?c#d%2F", "*", "東" * 255, "😀" * 255]
    await api.listen()
    async with hostler.Client(api.url, api.admin) as client:
        for number, user in enumerate(users):
            answer = await client.labs.start(user, (5, 7)[number % 2])
            assert answer.lab is not None
            assert answer.lab.user == user
        for number, user in enumerate(users):
            view = await client.labs.get(user)
            assert (view.user, view.lab_id) == (user, (5, 7)[number % 2])
            assert len((await client.labs.news(user)).items) == 1
            why = await api.call("GET", f"/v1/why?object={quote(f'lab/{user}', safe='')}")
            assert why.status == 200, why.json
            project = quote(lab_project(user), safe="")
            for of in ("vms", "quota"):  # what else there is of the project of the lab
                answer = await api.call("GET", f"/v1/orgs/labs/projects/{project}/{of}")
                assert answer.status in (200, 404), answer.json
        assert sorted([view.user async for view in client.labs.list(limit=2)]) == sorted(users)
    token = await api.user(Role.VIEWER, "labs/a^2Fb")
    listed = (await api.call("GET", LABS, token=token)).json["items"]
    assert [item["user"] for item in listed] == ["a/b"]
    assert (await api.call("GET", f"{LABS}/a%5E2Fb", token=token)).status == 404
    assert (await api.call("GET", f"{LABS}/a%2Fb", token=token)).status == 200
    async with hostler.Client(api.url, api.admin) as client:
        for user in users:
            await client.labs.stop(user)
            with pytest.raises(NotFound):
                await client.labs.get(user)


async def test_lists_page_and_hold_only_what_one_sees(api: Api) -> None:
    for number in range(5):
        await api.lab(f"user{number}")
    one, nobody = await api.user(Role.MEMBER, "labs/user3"), await api.user(Role.ADMIN, "acme")

    async def users(token: str, query: str = "") -> list[str]:
        return [item["user"] for item in (await api.call("GET", LABS + query, token=token)).json["items"]]

    for stale in ("", "&stale=true"):
        page = (await api.call("GET", f"{LABS}?limit=2{stale}")).json
        assert ([item["user"] for item in page["items"]], page["after"]) == (["user0", "user1"], "user1")
        assert await users("", f"?limit=9&after=user1{stale}") == ["user2", "user3", "user4"]
        assert await users(one, f"?limit=9{stale}") == ["user3"]
        assert await users(nobody, f"?limit=9{stale}") == []


async def test_to_strangers_a_users_lab_is_not_there_whatever_their_rights(api: Api) -> None:
    await api.lab("ada")
    for role in Role:
        token = await api.user(role, "labs/bob", "acme")
        for method, path, body in (
            ("GET", "/{}", None),
            ("GET", "/{}/events", None),
            ("DELETE", "/{}", None),
            ("POST", "/{}/extend", {"minutes": 1}),
            ("POST", "/{}/message", {"text": "hello"}),
            ("POST", "/{}/tickets", None),
            ("GET", "/{}/terminal", None),
            ("POST", "", {"user": "{}", "labId": 5}),
        ):
            answers = []
            for user in ("ada", "nobody-at-all"):
                sent = None if body is None else {k: user if v == "{}" else v for k, v in body.items()}
                answer = await api.call(method, LABS + path.format(user), token=token, json=sent)
                answers.append((answer.status, answer.json["detail"].replace(user, "USER")))
            assert answers[0] == answers[1], method
            assert answers[0][0] == 404, method
    assert (await api.call("GET", f"{LABS}/ada")).json["phase"] == "running"


async def test_a_student_has_the_own_lab_and_a_teacher_all(api: Api) -> None:
    ada = await api.user(Role.VIEWER, "labs/ada", name="Ada")
    tom = await api.user(Role.MEMBER, "labs", name="tom")
    await api.lab("bob")
    for token, user, status in ((ada, "ada", 202), (ada, "ada", 200), (ada, "bob", 404), (tom, "cid", 202)):
        answer = await api.call("POST", LABS, token=token, json={"user": user, "labId": 5})
        assert answer.status == status, user
    assert (await api.call("POST", f"{LABS}/ada/tickets", token=ada)).status == 201
    for path, body in (("extend", {"minutes": 5}), ("message", {"text": "me"})):
        assert (await api.call("POST", f"{LABS}/ada/{path}", token=ada, json=body)).status == 403
        assert (await api.call("POST", f"{LABS}/bob/{path}", token=ada, json=body)).status == 404
        assert (await api.call("POST", f"{LABS}/bob/{path}", token=tom, json=body)).status == 200
    made = await api.call("POST", "/v1/orgs/labs/projects/ada/vms", token=ada, json={"name": "mine"})
    assert made.status == 403
    assert (await api.call("DELETE", f"{LABS}/bob", token=ada)).status == 404
    assert (await api.call("DELETE", f"{LABS}/ada", token=ada)).status == 200
    events = (await api.call("GET", f"{LABS}/bob/events", token=tom)).json["items"]
    assert [(one["event"], one["reason"]) for one in events][-1] == ("message", "me")


async def test_who_only_watches_uses_no_lab_of_any_spelling_of_the_own_name(api: Api) -> None:
    vera = await api.user(Role.VIEWER, "labs", name="Vera")
    for user in ("vera", "Vera", "VERA"):
        answer = await api.call("POST", LABS, token=vera, json={"user": user, "labId": 5})
        assert (answer.status, "modify_workloads" in answer.json["detail"]) == (403, True)
        await api.lab(user)
        assert (await api.call("POST", f"{LABS}/{user}/tickets", token=vera)).status == 403
        assert (await api.call("GET", f"{LABS}/{user}", token=vera)).status == 200


async def test_a_message_that_cannot_be_shown_is_refused_with_its_reason(api: Api) -> None:
    await api.listen()
    await api.lab("ada")
    for text in ("", "x" * 501, "two\nlines", " "):
        answer = await api.call("POST", f"{LABS}/ada/message", json={"text": text})
        assert answer.status == 400
        assert answer.json["detail"]
    async with hostler.Client(api.url, token=api.admin) as client:
        told = await client.labs.message("ada", "x" * 500)
    assert (told.news.event, told.news.reason) == (LabEvent.MESSAGE, "x" * 500)


async def test_the_catalogue_tells_how_it_stands_and_keeps_what_machines_are_told(api: Api) -> None:
    await api.lab("ada", 5)
    await api.lab("bob", 7, LabPhase.WAITING)
    answer = await api.call("GET", "/v1/lab-catalogue")
    assert "secret" not in answer.body.decode()
    items = {item["labId"]: (item["running"], item["waiting"]) for item in answer.json["items"]}
    assert items == {5: (1, 0), 7: (0, 1)}
    stranger = await api.user(Role.ADMIN, "acme")
    assert (await api.call("GET", "/v1/lab-catalogue", token=stranger)).status == 403


async def test_events_and_figures_tell_of_labs(api: Api) -> None:
    mine, stranger = await api.user(Role.VIEWER, "labs/ada"), await api.user(Role.VIEWER, "acme")
    revision = (await api.store.range("/hostler/v1/labs/", limit=1)).revision
    await api.lab("ada")
    await api.lab("bob")
    for token, subjects in ((mine, [b'"subject":"ada"']), (stranger, [])):
        headers = [("Authorization", f"Bearer {token}")]
        async with api.stream("GET", f"/v1/events?kinds=lab&after={revision}", headers) as answer:
            seen = b""
            async with asyncio.timeout(90):
                while not seen.endswith(b": alive\n\n") and seen.count(b"data:") < max(1, len(subjects)):
                    if not subjects and b"id:" in seen:
                        break
                    seen += await answer.content.read(65536)
        assert all(subject in seen for subject in subjects)
        assert b"bob" not in seen
    figures = (await api.call("GET", "/metrics")).body.decode()
    assert 'hostler_labs{phase="running"} 2.0' in figures


# The client


async def test_the_client_starts_waits_extends_and_stops(api: Api) -> None:
    await api.listen()
    async with hostler.Client(api.url, api.admin) as client:
        answer = await client.labs.start("ada", 5)
        assert answer.news.event is LabEvent.REQUESTED
        with pytest.raises(Conflict, match="there is no lab 9"):
            await client.labs.start("bob", 9)
        waiting = asyncio.create_task(client.labs.wait("ada", available=True, lab_id=5, within=60))
        await api.lab("ada", 5)
        view = await waiting
        assert view is not None
        assert view.available
        assert [view.user async for view in client.labs.list()] == ["ada"]
        extended = await client.labs.extend("ada", 5, if_match=view.revision)
        with pytest.raises(Stale):
            await client.labs.stop("ada", if_match=view.revision)
        with pytest.raises(Conflict, match="lab 5 is active"):
            await client.labs.stop("ada", 7)
        stopped = await client.labs.stop("ada", 5, if_match=(await client.labs.get("ada")).revision)
        assert stopped.revision > extended.revision
        assert stopped.lab is not None
        within = pace.patience(0.3)  # long enough for one answer
        with pytest.raises(Unavailable, match=f"still stopping after {within:g} s"):
            await client.labs.wait("ada", gone=True, within=within)
        gone = asyncio.create_task(client.labs.wait("ada", gone=True, within=60))
        await api.store.delete("/hostler/v1/labs/ada")
        assert await gone is None
        with pytest.raises(NotFound, match="no lab"):
            await client.labs.wait("ada", available=True)
        assert (await client.labs.news("ada")).items == ()
        assert [offer.lab_id for offer in (await client.labs.offers()).items] == [5, 7]
        assert client.labs.terminal_url("ada") == api.url.replace("http", "ws") + "/v1/labs/ada/terminal"


async def test_a_lab_that_another_follows_is_gone_when_the_other_is_there(api: Api) -> None:
    await api.listen()
    await api.lab("ada", 5)
    async with hostler.Client(api.url, api.admin) as client:
        first = asyncio.Event()
        waiting = asyncio.create_task(client.labs.wait("ada", gone=True, within=60, on_change=lambda _: first.set()))
        await first.wait()
        assert not waiting.done()
        key = "/hostler/v1/labs/ada"
        kv = await api.store.get(key)
        assert kv is not None
        await api.store.put(key, kv.value.replace(b'"generation":1,"phase"', b'"generation":2,"phase"'))
        assert await waiting is None
        assert await client.labs.wait("ada", gone=True, generation=1, within=60) is None, "it was gone before we looked"
        with pytest.raises(Unavailable):
            await client.labs.wait("ada", gone=True, generation=2, within=0.05)
