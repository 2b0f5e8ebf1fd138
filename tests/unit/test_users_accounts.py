"""Accounts and rights: who may do what to whom, and how the first one comes to be."""

from __future__ import annotations

import asyncio
import random
import stat
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from accounts import ADMIN, PASSWORD, Place, one_replica, replica, virtual
from dose import dose

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.request import HOSTLER, Request, Written
from hostler.entry.control_plane import first_admin
from hostler.entry.data_dir import DataFolder
from hostler.errors import (
    Conflict,
    Forbidden,
    HostlerError,
    Invalid,
    KeyReused,
    NotFound,
    Stale,
    TooManyTries,
    Unauthenticated,
    Unavailable,
    Uncertain,
)
from hostler.keys.families import TOKEN, USER
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.access import ROLES, Role
from hostler.model.access_api import Login, TokenCreate, TokenIssued, UserCreate, UserUpdate, UserView
from hostler.model.inventory import Rights, User
from hostler.model.record import Record

# Accounts


@virtual
async def test_a_name_is_kept_as_typed_and_found_in_any_case() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ÀDa"))
        assert (await place.users.get(HOSTLER, "àdA")).name == "ÀDa"
        with pytest.raises(Conflict, match="exists already"):
            await place.users.create(ADMIN, UserCreate(name="àda"))
        assert [user.name for user in (await place.users.list(HOSTLER)).items] == ["ÀDa"]


@virtual
async def test_nobody_sees_a_hash_and_the_store_holds_no_password() -> None:
    async with one_replica() as place:
        ada = await place.caller("ada")
        view = await place.users.get(ada, "ada")
        assert view.has_password
        assert "kept" not in str(view)
        await place.users.update(
            Request(ada, key="k1"), "ada", UserUpdate(password="another one", old_password=PASSWORD)
        )
        everything = b"".join([kv.value for kv in (await place.store.range("/")).items])
        for secret in (PASSWORD, "another one", "secret"):
            assert secret.encode() not in everything


@virtual
async def test_a_full_name_that_nobody_could_read_is_refused_and_one_that_stands_is_kept() -> None:
    async with one_replica() as place:
        for name in ("a\u202eb", "\u200b", " ", "\u3164", "a\nb", "\U000e0041"):
            with pytest.raises(Invalid, match="full name: "):
                await place.users.create(ADMIN, UserCreate(name="ada", full_name=name))
        await place.users.create(ADMIN, UserCreate(name="ada", full_name="Ada Lovelace"))
        with pytest.raises(Invalid, match="full name: "):
            await place.users.update(ADMIN, "ada", UserUpdate(full_name="Ada\u202e"))
        entry = await USER.get(place.store, user="ada")
        assert entry is not None
        old = msgspec.structs.replace(entry.value, full_name="Ada\u202e")
        await place.store.put(USER.fill(user="ada"), USER.encode(old))
        done = await place.users.update(ADMIN, "ada", UserUpdate(full_name="Ada\u202e", enabled=False))
        assert (done.value.full_name, done.value.enabled) == ("Ada\u202e", False)
        assert (await place.users.update(ADMIN, "ada", UserUpdate(full_name=""))).value.full_name == ""


@pytest.mark.parametrize("name", ["", "a/b", "x" * 256, "a\nb", " a", "a ", "Hostler", "..", "\ud800", "a\u202eb"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    async def main() -> None:
        async with one_replica() as place:
            with pytest.raises(Invalid):
                await place.users.create(ADMIN, UserCreate(name=name))

    run_virtual(main)


@pytest.mark.parametrize("membership", ["", "/", "a/", "/b", "a/b/c", "*/b", "..", "a\n"])
def test_a_membership_that_cannot_be_is_refused(membership: str) -> None:
    async def main() -> None:
        async with one_replica() as place:
            with pytest.raises(Invalid):
                await place.users.create(ADMIN, UserCreate(name="ada", memberships=(membership,)))

    run_virtual(main)


@virtual
async def test_a_role_and_rights_together_are_refused() -> None:
    async with one_replica() as place:
        with pytest.raises(Invalid, match="either"):
            await place.users.create(ADMIN, UserCreate(name="ada", role=Role.VIEWER, rights=Rights()))
        await place.users.create(ADMIN, UserCreate(name="ada"))
        with pytest.raises(Invalid, match="either"):
            await place.users.update(ADMIN, "ada", UserUpdate(role=Role.VIEWER, rights=Rights()))


@virtual
async def test_lists_page_in_order_and_only_through_what_is_within_reach() -> None:
    async with one_replica() as place:
        boss = await place.caller("boss", role=Role.ADMIN, memberships=("acme",))
        for n in range(7):
            await place.users.create(ADMIN, UserCreate(name=f"U{n}", memberships=("acme/x",) if n % 2 else ("other",)))
        seen, after = [], None
        while True:
            page = await place.users.list(boss, limit=2, after=after)
            seen += [user.name for user in page.items]
            after = page.after
            if after is None:
                break
            assert len(page.items) == 2
        assert seen == ["boss", "U1", "U3", "U5"]
        assert [user.name for user in (await place.users.list(boss, stale=True)).items] == seen


# Rights


@virtual
async def test_nobody_without_manage_accounts_touches_accounts_of_others() -> None:
    async with one_replica() as place:
        ada = await place.caller("ada", role=Role.OPERATOR, memberships=("acme",))
        await place.users.create(ADMIN, UserCreate(name="bob"))
        request = Request(ada)
        for attempt in (
            place.users.create(request, UserCreate(name="eve")),
            place.users.list(ada),
            place.users.get(ada, "bob"),
            place.users.get(ada, "nobody"),
            place.users.update(request, "bob", UserUpdate(full_name="x")),
            place.users.delete(request, "bob"),
            place.users.delete(request, "ada"),
            place.users.issue(request, "bob", TokenCreate()),
            place.users.tokens(ada, "bob"),
            place.users.revoke(request, "bob", "x"),
            place.users.update(request, "ada", UserUpdate(role=Role.ADMIN)),
            place.users.update(request, "ada", UserUpdate(memberships=("*",))),
            place.users.update(request, "ada", UserUpdate(enabled=True)),
        ):
            with pytest.raises(Forbidden, match="manage_accounts"):
                await attempt
        view = (await place.users.update(request, "ada", UserUpdate(full_name="Ada L."))).value
        assert view.full_name == "Ada L."


@virtual
async def test_nobody_gives_a_right_or_a_membership_that_they_lack() -> None:
    async with one_replica() as place:
        rights = Rights(manage_accounts=True, modify_workloads=True)
        await place.users.create(ADMIN, UserCreate(name="boss", rights=rights, memberships=("acme", "lab/one")))
        boss = place.users.authenticate(await place.token("boss"))
        request = Request(boss)
        for asked in (
            UserCreate(name="eve", role=Role.OPERATOR),
            UserCreate(name="eve", rights=Rights(inject_faults=True)),
            UserCreate(name="eve", memberships=("*",)),
            UserCreate(name="eve", memberships=("lab",)),
            UserCreate(name="eve", memberships=("acme", "lab/two")),
            UserCreate(name="eve", memberships=("acmex",)),
        ):
            with pytest.raises(Forbidden):
                await place.users.create(request, asked)
        given = ("acme", "acme/web", "lab/one")
        await place.users.create(request, UserCreate(name="eve", role=Role.MEMBER, memberships=given))
        for change in (UserUpdate(role=Role.ADMIN), UserUpdate(memberships=("*",)), UserUpdate(memberships=("lab",))):
            with pytest.raises(Forbidden):
                await place.users.update(request, "eve", change)
            with pytest.raises(Forbidden):
                await place.users.update(request, "boss", change)
        await place.users.update(request, "eve", UserUpdate(rights=rights))


@virtual
async def test_nobody_acts_for_an_account_that_may_do_more() -> None:
    async with one_replica() as place:
        await place.users.create(
            ADMIN, UserCreate(name="boss", rights=Rights(manage_accounts=True), memberships=("*",))
        )
        request = Request(place.users.authenticate(await place.token("boss")))
        await place.users.create(ADMIN, UserCreate(name="strong", role=Role.MEMBER, memberships=("acme",)))
        token = (await place.users.issue(ADMIN, "strong", TokenCreate())).value
        for attempt in (
            place.users.update(request, "strong", UserUpdate(password="mine now 1")),
            place.users.update(request, "strong", UserUpdate(enabled=False)),
            place.users.update(request, "strong", UserUpdate(rights=Rights())),
            place.users.issue(request, "strong", TokenCreate()),
            place.users.tokens(request.caller, "strong"),
            place.users.revoke(request, "strong", token.id),
            place.users.delete(request, "strong"),
        ):
            with pytest.raises(Forbidden, match="modify_workloads"):
                await attempt
        assert (await place.users.get(request.caller, "strong")).name == "strong"


@virtual
async def test_an_account_beyond_reach_is_as_one_that_does_not_exist() -> None:
    async with one_replica() as place:
        boss = await place.caller("boss", role=Role.ADMIN, memberships=("acme",))
        await place.users.create(ADMIN, UserCreate(name="far", memberships=("acme", "other/web")))
        request = Request(boss)

        async def said(name: str) -> set[str]:
            found = set()
            for attempt in (
                place.users.get(boss, name),
                place.users.update(request, name, UserUpdate(full_name="x")),
                place.users.delete(request, name),
                place.users.issue(request, name, TokenCreate()),
                place.users.tokens(boss, name),
                place.users.revoke(request, name, "x"),
            ):
                with pytest.raises(NotFound) as caught:
                    await attempt
                found.add(str(caught.value).replace(name, "NAME"))
            return found

        assert await said("far") == await said("never")


@virtual
async def test_an_account_that_belongs_nowhere_is_beyond_the_reach_of_an_orgs_administrator() -> None:
    async with one_replica() as place:
        boss = await place.caller("boss", role=Role.ADMIN, memberships=("acme",))
        await place.users.create(ADMIN, UserCreate(name="newcomer", role=Role.MEMBER))
        request = Request(boss)
        for attempt in (
            place.users.get(boss, "newcomer"),
            place.users.issue(request, "newcomer", TokenCreate()),  # it would count for what the account gets later
            place.users.update(request, "newcomer", UserUpdate(password="mine now 1")),
            place.users.update(request, "newcomer", UserUpdate(enabled=False)),
            place.users.delete(request, "newcomer"),
        ):
            with pytest.raises(NotFound):
                await attempt
        assert [user.name for user in (await place.users.list(boss)).items] == ["boss"]
        with pytest.raises(Invalid, match="give one, such as 'acme'"):
            await place.users.create(request, UserCreate(name="eve"))
        await place.users.create(request, UserCreate(name="eve", memberships=("acme/web",)))
        assert (await place.users.get(ADMIN.caller, "newcomer")).name == "newcomer"


@virtual
async def test_a_protected_account_loses_nothing() -> None:
    async with one_replica() as place:
        await place.users.first_admin()
        other = Request(await place.caller("other", role=Role.ADMIN, memberships=("*",)))
        for attempt in (
            place.users.delete(other, "admin"),
            place.users.update(other, "admin", UserUpdate(enabled=False)),
            place.users.update(other, "admin", UserUpdate(role=Role.OPERATOR)),
            place.users.update(other, "admin", UserUpdate(memberships=("acme",))),
        ):
            with pytest.raises(Forbidden, match="protected"):
                await attempt
        await place.users.update(other, "admin", UserUpdate(full_name="The one", password="new and long"))


@virtual
async def test_the_last_one_who_manages_accounts_stays() -> None:
    async with one_replica() as place:
        boss = Request(await place.caller("boss", role=Role.ADMIN, memberships=("*",)))
        await place.users.create(ADMIN, UserCreate(name="gone", role=Role.ADMIN, memberships=("*",), enabled=False))
        await place.users.create(ADMIN, UserCreate(name="local", role=Role.ADMIN, memberships=("acme",)))
        for attempt in (
            place.users.delete(boss, "boss"),
            place.users.update(boss, "boss", UserUpdate(enabled=False)),
            place.users.update(boss, "boss", UserUpdate(role=Role.OPERATOR)),
            place.users.update(boss, "boss", UserUpdate(memberships=("acme",))),
        ):
            with pytest.raises(Forbidden, match="last one"):
                await attempt
        await place.users.update(boss, "gone", UserUpdate(enabled=True))
        await place.users.delete(boss, "boss")


@pytest.mark.parametrize("seed", range(20))
def test_two_who_lock_out_each_other_at_once_do_not_both_succeed(seed: int) -> None:
    async def main() -> None:
        inner = MemoryStore(clock=VirtualClock())
        store = FaultyStore(inner, random.Random(seed), clock=VirtualClock())
        store.faults.slow, store.faults.slowest = 0.7, 0.05
        async with store, replica(store, "a") as a, replica(store, "b") as b:
            ann = Request(await a.caller("ann", role=Role.ADMIN, memberships=("*",)))
            bob = Request(await a.caller("bob", role=Role.ADMIN, memberships=("*",)))
            done = await asyncio.gather(
                a.users.delete(ann, "bob"),
                b.users.update(bob, "ann", UserUpdate(enabled=False)),
                return_exceptions=True,
            )
            left = [entry.value for entry in (await USER.list(store)).entries if entry.value.enabled]
            assert len(left) == 1, done

    run_virtual(main, seed=seed)


# Repetition and revisions


@virtual
async def test_a_stale_revision_changes_nothing() -> None:
    async with one_replica() as place:
        made = await place.users.create(ADMIN, UserCreate(name="ada"))
        changed = await place.users.update(Request(HOSTLER, if_match=made.revision), "ada", UserUpdate(full_name="Ada"))
        assert changed.value.revision == changed.revision > made.revision == made.value.revision
        for attempt in (
            place.users.update(Request(HOSTLER, if_match=made.revision), "ada", UserUpdate(full_name="x")),
            place.users.delete(Request(HOSTLER, if_match=made.revision), "ada"),
        ):
            with pytest.raises(Stale):
                await attempt
        assert (await place.users.get(HOSTLER, "ada")).full_name == "Ada"


@virtual
async def test_a_repeated_request_is_done_once_and_another_password_makes_it_another() -> None:
    async with one_replica() as place:
        request = Request(HOSTLER, key="k1", fingerprint="of the server")
        asked = UserCreate(name="ada", password=PASSWORD)
        first = await place.users.create(request, asked)
        again = await place.users.create(request, asked)
        assert again.replayed
        assert (again.value, again.revision, again.status) == (first.value, first.revision, 201)
        for other in (
            UserCreate(name="ada", password="something else"),
            UserCreate(name="ada", password=PASSWORD, full_name="x"),
            UserCreate(name="bob", password=PASSWORD),
        ):
            with pytest.raises(KeyReused):
                await place.users.create(request, other)
        gone = Request(HOSTLER, key="k2", fingerprint="f")
        assert not (await place.users.delete(gone, "ada")).replayed
        assert (await place.users.delete(gone, "ada")).replayed


@virtual
async def test_a_key_of_a_deleted_account_says_nothing_to_another_of_its_name() -> None:
    async with MemoryStore(clock=VirtualClock()) as store, replica(store) as here, replica(store, "b") as there:

        async def named(place: Place, token: str) -> Written[UserView]:
            asked = Request(place.users.authenticate(token), key="k", fingerprint="f")
            return await place.users.update(asked, "ann", UserUpdate(full_name="Ann"))

        await here.caller("ann")
        token = await here.token("ann")
        assert not (await named(here, token)).replayed
        await asyncio.sleep(0.1)
        assert (await named(there, token)).replayed
        await here.users.update(ADMIN, "ann", UserUpdate(enabled=False))
        await here.users.update(ADMIN, "ann", UserUpdate(enabled=True))
        assert (await named(here, await here.token("ann"))).replayed, "it is the same account"
        await here.users.delete(ADMIN, "ann")
        await here.caller("ann")
        other = await here.token("ann")
        await asyncio.sleep(0.1)
        assert not (await named(there, other)).replayed
        assert (await named(here, other)).replayed
        assert (await here.users.get(HOSTLER, "ann")).full_name == "Ann"


@virtual
async def test_a_repeated_issue_tells_no_token_and_keeps_none() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="ada"))
        request = Request(HOSTLER, key="k1", fingerprint="f")
        issued = (await place.users.issue(request, "ada", TokenCreate())).value
        with pytest.raises(Conflict, match="already issued"):
            await place.users.issue(request, "ada", TokenCreate())
        assert len((await place.users.tokens(HOSTLER, "ada")).items) == 1
        for kv in (await place.store.range("/")).items:
            assert issued.token.encode() not in kv.value
            assert issued.token.removeprefix("hst_").encode() not in kv.value
            assert issued.token not in kv.key


@pytest.mark.parametrize("seed", range(10))
def test_of_two_equal_issues_at_once_one_is_told_the_token(seed: int) -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore(clock=VirtualClock()), random.Random(seed), clock=VirtualClock())
        store.faults.slow, store.faults.slowest = 0.7, 0.05
        async with store, replica(store) as place:
            await place.users.create(ADMIN, UserCreate(name="ada"))
            request = Request(HOSTLER, key="k1", fingerprint="f")
            asked = [place.users.issue(request, "ada", TokenCreate()) for _ in range(2)]
            refused, issued = sorted(
                await asyncio.gather(*asked, return_exceptions=True), key=lambda got: not isinstance(got, Conflict)
            )
            assert "already issued" in str(refused)
            assert not isinstance(issued, BaseException)
            assert [token.id for token in (await place.users.tokens(HOSTLER, "ada")).items] == [issued.value.id]

    run_virtual(main, seed=seed)


# The first one


@pytest.mark.parametrize("seed", range(10))
def test_of_replicas_that_start_at_once_one_makes_the_admin(seed: int) -> None:
    async def main() -> None:
        async with MemoryStore(clock=VirtualClock()) as store:
            places = [Place(store, prefix) for prefix in "abc"]
            tokens = await asyncio.gather(*(place.users.first_admin() for place in places))
            (token,) = [token for token in tokens if token is not None]
            assert token.startswith("hst_")
            async with replica(store, "d") as other:
                caller = other.users.authenticate(token)
                assert (caller.name, caller.rights, caller.memberships) == ("admin", ROLES[Role.ADMIN], ("*",))
                assert await other.users.first_admin() is None

    run_virtual(main, seed=seed)


@virtual
async def test_the_first_token_is_kept_before_there_is_an_account() -> None:
    async with one_replica() as place:

        def die(_: str) -> None:
            raise RuntimeError("killed")

        with pytest.raises(RuntimeError, match="killed"):
            await place.users.first_admin(die)
        assert (await USER.list(place.store)).entries == ()
        kept: list[str] = []
        assert [await place.users.first_admin(kept.append)] == kept
        assert place.users.authenticate(kept[0]).name == "admin"
        assert await place.users.first_admin(die) is None, "it would count for nothing"


@pytest.mark.parametrize("kind", ["lost", "never"])
def test_a_process_that_is_killed_while_it_makes_the_first_admin_leaves_its_token(
    kind: Literal["lost", "never"], tmp_path: Path
) -> None:
    async def main() -> None:
        folder = DataFolder(tmp_path / "data")
        store = FaultyStore(MemoryStore(clock=VirtualClock()), random.Random(1), clock=VirtualClock())
        async with store:
            place = Place(store)
            store.script("txn", kind)
            store.script("get", "unavailable", times=10)
            with pytest.raises(HostlerError):
                await first_admin(place.users, folder)
            assert stat.S_IMODE(folder.token_file.stat().st_mode) == 0o600
            async with replica(store, "b") as later:
                again = await first_admin(later.users, folder)
                assert (again is None) == (kind == "lost")
                token = folder.read(folder.token_file)
                assert token is not None
                assert later.users.authenticate(token).name == "admin"

    run_virtual(main)


@pytest.mark.parametrize("seed", range(10))
def test_of_those_who_start_at_once_only_the_one_who_made_the_admin_keeps_a_token(seed: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with MemoryStore(clock=VirtualClock()) as store:
            folders = [DataFolder(tmp_path / name) for name in ("a", "b", "b")]
            places = [Place(store, prefix) for prefix in "abc"]
            pairs = list(zip(places, folders))
            tokens = await asyncio.gather(*(first_admin(place.users, folder) for place, folder in pairs))
            (token,) = [token for token in tokens if token is not None]
            winner = folders[tokens.index(token)]
            assert {folder.read(folder.token_file) for folder in folders if folder.path == winner.path} == {token}
            assert {folder.read(folder.token_file) for folder in folders if folder.path != winner.path} == {None}

    run_virtual(main, seed=seed)


@virtual
async def test_there_is_no_first_admin_where_there_is_any_account() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="zoe"))
        assert await place.users.first_admin() is None
        with pytest.raises(NotFound):
            await place.users.get(HOSTLER, "admin")


@virtual
async def test_a_lost_admin_is_recovered_on_the_store_alone_and_old_tokens_end() -> None:
    async with one_replica() as place:
        old = await place.users.first_admin()
        assert old is not None
        place.users.authenticate(old)
        new = await Place(place.store, "z").users.recover_admin()
        await place.view.tokens.reached((await TOKEN.list(place.store)).entries[0].mod_revision)
        await asyncio.sleep(1)
        assert place.users.authenticate(new).name == "admin"
        with pytest.raises(Unauthenticated):
            place.users.authenticate(old)
        assert len((await TOKEN.list(place.store)).entries) == 1


@virtual
async def test_recovery_makes_an_admin_where_there_is_none_or_a_weak_one() -> None:
    async with one_replica() as place:
        await place.users.create(ADMIN, UserCreate(name="Admin", enabled=False, memberships=("acme",)))
        caller = place.users.authenticate(await place.users.recover_admin())
        assert (caller.rights, caller.memberships) == (ROLES[Role.ADMIN], ("*",))
        view = await place.users.get(HOSTLER, "admin")
        assert (view.name, view.enabled, view.protected) == ("Admin", True, True)


@pytest.mark.parametrize(
    "record",
    [
        UserCreate(name="ada", password="SECRET-SECRET"),
        UserUpdate(password="SECRET-SECRET", old_password="SECRET"),
        Login(name="ada", password="SECRET-SECRET"),
        TokenIssued(token="SECRET", id="t1", user="ada", expires_at=None),
        User(name="ada", password_hash="SECRET"),
    ],
)
def test_a_secret_is_not_in_what_is_printed(record: Record) -> None:
    assert "SECRET" not in repr(record) + str(record) + f"{[record]}"
    assert b"SECRET" in record.encode()


# Lost answers


@pytest.mark.parametrize("kind", ["lost", "never"])
def test_an_answer_that_is_lost_never_costs_the_first_admin_its_token(kind: Literal["lost", "never"]) -> None:
    async def main() -> None:
        store = FaultyStore(MemoryStore(clock=VirtualClock()), random.Random(1), clock=VirtualClock())
        async with store, replica(store) as place:
            store.script("txn", kind)
            if kind == "never":
                with pytest.raises(Uncertain):
                    await place.users.first_admin()
            token = await place.users.first_admin()
            assert token is not None
            assert place.users.authenticate(token).name == "admin"
            store.script("txn", "lost")
            again = await place.users.recover_admin()
            assert place.users.authenticate(again).name == "admin"

    run_virtual(main)


@pytest.mark.parametrize("seed", range(dose(test=20, full=1000)))
def test_accounts_and_tokens_are_as_they_were_said_to_be_whatever_answers_are_lost(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        store = FaultyStore(MemoryStore(clock=VirtualClock()), rng, clock=VirtualClock())
        async with store, replica(store, "a") as a, replica(store, "b") as b:
            await a.users.create(ADMIN, UserCreate(name="ada", password=PASSWORD))
            store.faults.lost = store.faults.never = store.faults.unavailable = 0.1
            live: set[str] = set()
            ended: dict[str, Place] = {}
            for _ in range(30):
                place = rng.choice((a, b))
                verb = rng.choice(("issue", "revoke", "disable", "login"))
                try:
                    if verb == "issue":
                        live.add((await place.users.issue(ADMIN, "ada", TokenCreate())).value.token)
                    elif verb == "login":
                        live.add((await place.users.login(Login(name="ada", password=PASSWORD), "s")).token)
                    elif verb == "revoke" and live:
                        token = rng.choice(sorted(live))
                        await place.users.revoke(ADMIN, "ada", place.users.authenticate(token, "t").token)
                        live.discard(token)
                        ended[token] = place
                    elif verb == "disable":
                        await place.users.update(ADMIN, "ada", UserUpdate(enabled=False))
                        ended |= dict.fromkeys(live, place)
                        live.clear()
                        await place.users.update(ADMIN, "ada", UserUpdate(enabled=True))
                except (Uncertain, Unavailable, Conflict, Unauthenticated, NotFound):
                    live.clear()  # what is not known is not claimed
                for token, by in ended.items():  # where it was ended, it has ended at once
                    with pytest.raises((Unauthenticated, TooManyTries)):
                        by.users.authenticate(token, "guess")
                await asyncio.sleep(rng.choice((0.0, 5.0)))
            store.faults.lost = store.faults.never = store.faults.unavailable = 0.0
            await asyncio.sleep(10)
            for place in (a, b):
                for token in live:
                    assert place.users.authenticate(token, "mine").name == "ada"
                for token in ended:
                    with pytest.raises((Unauthenticated, TooManyTries)):
                        place.users.authenticate(token, "guess")

    run_virtual(main, seed=seed)
