"""Accounts with real hashes, on real stores."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import threading
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import argon2
import pytest
from environment import env_on
from harness import pace

import hostler
from hostler.drivers.hasher import Argon2Hasher
from hostler.engine.control_plane import build_user_service
from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import HOSTLER, Request
from hostler.engine.runtime.env import Env
from hostler.engine.users import UserService
from hostler.engine.view import View
from hostler.errors import Closed, TooManyTries, Unauthenticated
from hostler.keys.families import TOKEN, USER
from hostler.kit.clock import SystemClock
from hostler.model.access_api import Login, TokenCreate, UserCreate, UserUpdate
from hostler.ports.store import Store
from hostler.testing.servers import EtcdCluster
from hostler.wiring import open_hasher

PASSWORD = "correct horse"


@pytest.fixture
async def hasher() -> AsyncIterator[Argon2Hasher]:
    made = Argon2Hasher(waiting=4, cost=2, memory_kib=16384)
    yield made
    await made.aclose()


async def test_a_hash_is_argon2id_as_the_rfc_recommends() -> None:
    hasher = open_hasher()
    assert (await hasher.hash(PASSWORD)).startswith("$argon2id$v=19$m=65536,t=3,")
    await hasher.aclose()


async def test_a_hash_is_salted_and_verified(hasher: Argon2Hasher) -> None:
    one, two = await hasher.hash(PASSWORD), await hasher.hash(PASSWORD)
    assert one != two
    assert await hasher.verify(one, PASSWORD)
    assert not await hasher.verify(one, PASSWORD + "x")
    assert not await hasher.verify("", PASSWORD)
    assert not await hasher.verify("no hash", "")
    assert not await hasher.verify(one[:-4], PASSWORD)
    assert not await hasher.verify(one, "\ud800")


async def test_no_hash_takes_as_long_as_a_wrong_password(hasher: Argon2Hasher) -> None:
    kept = await hasher.hash(PASSWORD)

    async def taken(kept: str) -> float:
        """Processor time: others may need the processor while one of the three is looked at."""
        began = time.process_time()
        await hasher.verify(kept, "wrong")
        return time.process_time() - began

    await taken("")
    wrong, none, broken = [], [], []
    for _ in range(9):
        wrong.append(await taken(kept))
        none.append(await taken(""))
        broken.append(await taken("$argon2id$broken"))
    middle = statistics.median(wrong)
    shares = statistics.median(none) / middle, statistics.median(broken) / middle
    assert shares == pytest.approx((1.0, 1.0), rel=0.5)


@pytest.mark.parametrize("known", [True, False])
async def test_the_first_login_costs_one_hash_whether_the_user_is_known_or_not(
    hasher: Argon2Hasher, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    kept = await hasher.hash(PASSWORD) if known else ""
    assert argon2.extract_parameters(hasher._stand_in) == argon2.extract_parameters(await hasher.hash(PASSWORD))
    work: list[str] = []

    def count(verb: str) -> None:
        original = getattr(argon2.PasswordHasher, verb)

        def counted(*given: Any) -> Any:
            work.append(verb)
            return original(*given)

        monkeypatch.setattr(argon2.PasswordHasher, verb, counted)

    count("hash")
    count("verify")
    assert await hasher.verify(kept, PASSWORD) is known
    assert work == ["verify"]


async def test_the_loop_goes_on_while_hashes_run_and_a_flood_is_refused(hasher: Argon2Hasher) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.002)
            ticks += 1

    release = threading.Event()
    holding = [asyncio.create_task(hasher._off_loop(release.wait)) for _ in range(2)]  # one per thread
    await asyncio.sleep(0)
    flood = [asyncio.create_task(hasher.verify("", "x")) for _ in range(48)]
    async with asyncio.timeout(60):
        while sum(task.done() for task in flood) < 44:
            await asyncio.sleep(0)
    ticking = asyncio.create_task(tick())
    release.set()
    got = await asyncio.gather(*flood, return_exceptions=True)
    await asyncio.gather(*holding, *(hasher.verify("", "x") for _ in range(4)))
    ticking.cancel()
    await asyncio.gather(ticking, return_exceptions=True)
    assert sum(isinstance(error, TooManyTries) for error in got) == 44
    assert got.count(False) == 4
    assert ticks > 10
    assert not await hasher.verify("", "x")


async def test_closing_ends_what_waits_and_leaves_no_thread() -> None:
    hasher = Argon2Hasher(threads=1)
    tasks = [asyncio.create_task(hasher.hash("x")) for _ in range(30)]
    await asyncio.sleep(0)
    while hasher._pool._work_queue.qsize() == len(tasks):  # the thread has not begun
        await asyncio.sleep(0.002)
    await hasher.aclose()
    got = await asyncio.gather(*tasks, return_exceptions=True)
    done = sum(isinstance(answer, str) for answer in got)
    assert 0 < done < len(tasks)
    assert all(isinstance(error, Closed) for error in got[done:])
    with pytest.raises(Closed):
        await hasher.hash("x")


async def test_a_caller_that_goes_away_frees_its_place(hasher: Argon2Hasher) -> None:
    for _ in range(3):
        release = threading.Event()
        tasks = [asyncio.create_task(hasher._off_loop(release.wait)) for _ in range(2)]  # one per thread
        tasks += [asyncio.create_task(hasher.hash("x")) for _ in range(4)]
        while hasher._under_way < len(tasks):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        got = await asyncio.gather(*tasks, return_exceptions=True)
        release.set()
        assert all(isinstance(error, asyncio.CancelledError) for error in got)
        async with asyncio.timeout(60):
            while hasher._under_way:
                await asyncio.sleep(0.01)
    assert await hasher.hash("x")


# On stores


def env_of(clock: SystemClock) -> Env:
    return env_on(clock, new_id=lambda: uuid.uuid4().hex, new_secret=lambda: secrets.token_urlsafe(32))


@asynccontextmanager
async def service(store: Store, hasher: Argon2Hasher) -> AsyncIterator[UserService]:
    clock = SystemClock()
    view = View(store, clock=clock)
    writer = Writer(store, clock=clock, new_id=lambda: uuid.uuid4().hex, healthy=view.healthy)
    running = asyncio.create_task(view.run())
    try:
        await view.ready()
        yield UserService(store, writer, view, env_of(clock), hasher)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(params=["sqlite", "file", "etcd"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "etcd":
        etcd: EtcdCluster = request.getfixturevalue("etcd")
        url = etcd.url
    else:
        url = f"{request.param}://{tmp_path}/state.{'db' if request.param == 'sqlite' else 'json'}"
    async with hostler.open_store(url) as opened:
        yield opened
        for prefix in (USER.prefix(), "/hostler/v1/"):
            await opened.delete_prefix(prefix)


async def test_from_the_first_admin_to_a_session_and_its_end(store: Store, hasher: Argon2Hasher) -> None:
    async with service(store, hasher) as one, service(store, hasher) as two:
        tokens = await asyncio.gather(one.first_admin(), two.first_admin())
        (token,) = [token for token in tokens if token is not None]
        made_it = one if tokens[0] is not None else two
        assert len(token) > 40
        admin = Request(made_it.authenticate(token, "127.0.0.1"))
        await made_it.create(admin, UserCreate(name="Ada", password=PASSWORD, memberships=("acme",)))
        session = await two.login(Login(name="ADA", password=PASSWORD), "127.0.0.1")
        assert two.authenticate(session.token).memberships == ("acme",)
        with pytest.raises(Unauthenticated, match="wrong"):
            await two.login(Login(name="ada", password="x"), "127.0.0.1")
        await _until(lambda: one.authenticate(session.token, "elsewhere"))
        changed = UserUpdate(password="another one", old_password=PASSWORD)
        await two.update(Request(two.authenticate(session.token)), "ada", changed)
        with pytest.raises(Unauthenticated):
            two.authenticate(session.token)
        await _until_not(lambda: one.authenticate(session.token, "elsewhere"))
        everything = b"".join([kv.value for kv in (await store.range("/")).items])
        for secret in (token, session.token, PASSWORD, "another one"):
            assert secret.encode() not in everything


async def test_an_admin_is_recovered_while_replicas_run(store: Store, hasher: Argon2Hasher) -> None:
    async with service(store, hasher) as one:
        old = await one.first_admin()
        assert old is not None
        await one.issue(Request(HOSTLER), "admin", TokenCreate())
        operator = build_user_service(store, env_of(SystemClock()), hasher)
        new = await operator.recover_admin()
        await _until(lambda: one.authenticate(new, "a"))
        await _until_not(lambda: one.authenticate(old, "b"))
        assert len((await TOKEN.list(store)).entries) == 1


async def _until(attempt) -> None:  # type: ignore[no-untyped-def]
    """Until it no longer refuses."""
    async with asyncio.timeout(pace.patience(5)):
        while True:
            try:
                attempt()
            except (Unauthenticated, TooManyTries):
                await asyncio.sleep(0.01)
            else:
                return


async def _until_not(attempt) -> None:  # type: ignore[no-untyped-def]
    """Until it refuses."""
    async with asyncio.timeout(pace.patience(5)):
        while True:
            try:
                attempt()
            except (Unauthenticated, TooManyTries):
                return
            await asyncio.sleep(0.01)
