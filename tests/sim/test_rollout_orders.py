"""D33 from end to end in virtual time: the service takes orders for rollouts, leaders carry them out, and die."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from environment import env_on

from hostler.engine.deployments.service import BlueprintService
from hostler.engine.idempotent_writer import Writer
from hostler.engine.request import Caller, Request
from hostler.engine.view import View
from hostler.errors import Conflict, Forbidden, NotFound
from hostler.keys.families import AUDIT, DEPLOYMENT, TRACE
from hostler.model.access import ROLES, Role
from hostler.model.blueprint_api import BlueprintPhase, RolloutPromotion, RolloutSelection, RolloutVerb
from hostler.model.deployment import Strategy
from hostler.model.rollout import Phase, RolloutControl
from hostler.ports.store import Put

from .slice_stage import Crashing, Stage, play
from .test_strategies_controller import V1, V2, WEB, at, ended, serving, wanted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hostler.model.blueprint_api import BlueprintStatus, RolloutView

V = RolloutVerb
ADMIN = Caller("ada", ROLES[Role.ADMIN], ("*",))
VIEWER = Caller("vera", ROLES[Role.VIEWER], ("*",))
MANUAL = msgspec.convert(
    {"type": "canary", "approval": "manual", "stages": [{"weight": 10, "hold": 2}, {"weight": 50, "hold": 2}]}, Strategy
)
SLOW = msgspec.convert(
    {"type": "canary", "stages": [{"weight": 10, "hold": 900}, {"weight": 50, "hold": 900}]}, Strategy
)
BLUE_GREEN = msgspec.convert({"type": "blue-green", "bake": 900, "keep": 900}, Strategy)


class Between:
    """A store on which something happens between what the service reads and what it writes."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.happens: Callable[[], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> Any:
        if any(isinstance(one, Put) for one in then) and (happens := self.happens) is not None:
            self.happens = None
            await happens()
        return await self._store.txn(when, then, otherwise)


class Desk:
    """Where people order."""

    def __init__(self, stage: Stage, view: View) -> None:
        self.store: Any = Between(stage.store)
        ids = (f"w{number:06d}" for number in itertools.count())
        writer = Writer(self.store, clock=stage.clock, new_id=lambda: next(ids), rng=random.Random(1))
        unused: Any = None
        self.service = BlueprintService(self.store, writer, view, unused, env_on(stage.clock, random.Random(2)))
        self.stage = stage

    async def order(self, verb: RolloutVerb, caller: Caller = ADMIN, **more: Any) -> BlueprintStatus:
        kind = RolloutPromotion if verb is V.PROMOTE else RolloutSelection
        far = {"everything": more.pop("all", False), "force": more.pop("force", False)} if verb is V.PROMOTE else {}
        done = await self.service.order(Request(caller), "shop", verb, kind(**more), **far)
        return done.value

    async def until_possible(self, verb: RolloutVerb, **more: Any) -> None:
        """Order it as soon as it can be."""

        async def accepted() -> bool:
            try:
                await self.order(verb, **more)
            except Conflict:
                return False
            return True

        await self.stage.until(accepted, what=f"{verb.value} accepted")

    async def rollout(self) -> RolloutView:
        status = await self.service.status(ADMIN, "shop")
        found = status.slices[0].rollout
        assert found is not None
        return found

    async def awaits(self) -> bool:
        found = await self.stage.deployment(WEB)
        return found is not None and found.control.awaiting


@asynccontextmanager
async def desk(stage: Stage) -> AsyncIterator[Desk]:
    view = View(stage.store, clock=stage.clock, rng=random.Random(3))
    viewing = asyncio.create_task(view.run())
    try:
        await view.ready()
        yield Desk(stage, view)
    finally:
        viewing.cancel()
        await asyncio.gather(viewing, return_exceptions=True)


def test_d33_every_stage_of_a_manual_canary_is_approved_by_a_person_and_it_is_written_down() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, MANUAL) as calls, desk(stage) as people:
            await stage.apply(wanted(V2, MANUAL))
            for weight in (10, 50):
                await stage.until(people.awaits)
                await stage.clock.sleep(60)
                assert await at(stage, Phase.CANARY, V2, weight)
                status = await people.service.status(ADMIN, "shop")
                assert status.phase is BlueprintPhase.WAITING
                assert "waiting for approval" in status.detail
                found = await people.rollout()
                assert (found.awaits_approval, found.actions) == (True, (V.PROMOTE, V.PAUSE, V.APPROVE, V.ABORT))
                await stage.lead()
                await people.order(V.APPROVE, seen={WEB: found.changed_at})
                await stage.until(lambda: gone_on(people))
                with pytest.raises(Conflict, match="has changed since you read it"):
                    await people.order(V.APPROVE, seen={WEB: found.changed_at})
            await ended(stage, Phase.DONE, wanted(V2, MANUAL), V2)
            assert calls.weights == [{V1: 100, V2: 0}, {V1: 90, V2: 10}, {V1: 50, V2: 50}, {V1: 0, V2: 100}, {}]
            audits = [entry.value for entry in (await AUDIT.list(stage.store)).entries]
            assert [(one.verb, one.who, one.subject) for one in audits] == [
                ("blueprint.approve", "ada", DEPLOYMENT.fill(base=WEB))
            ] * 2
            whys = [entry.value.why for entry in (await TRACE.list(stage.store)).entries]
            assert any(why.endswith("approved by ada") for why in whys)
            assert any(why.endswith("waiting for approval") for why in whys)

    play(story)


def test_d33_orders_need_the_right_to_deploy_and_a_rollout_that_is_under_way() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, SLOW), desk(stage) as people:
            with pytest.raises(Conflict, match="no rollout is in progress"):
                await people.order(V.PAUSE)
            await stage.depose()
            await stage.apply(wanted(V2, SLOW))
            with pytest.raises(Conflict, match="has not started revision 2 yet"):
                await people.order(V.ABORT)
            await stage.lead()
            await stage.until(lambda: at(stage, Phase.CANARY, V2, 10))
            for verb in RolloutVerb:
                with pytest.raises(Forbidden):
                    await people.order(verb, VIEWER)
            with pytest.raises(NotFound, match="has no slice org:other"):
                await people.order(V.PAUSE, slice="org:other")
            before = (await stage.store.status()).revision
            await people.order(V.PAUSE, slice=WEB)
            await people.order(V.PAUSE)
            assert (await stage.store.status()).revision == before + 1  # paused already: nothing to write
            await stage.lead()
            await stage.clock.sleep(2000)
            assert await at(stage, Phase.CANARY, V2, 10)
            await people.order(V.ABORT)
            await ended(stage, Phase.FAILED, wanted(V1, SLOW), V2)
            await stage.lead()
            await stage.clock.sleep(60)
            await ended(stage, Phase.FAILED, wanted(V1, SLOW), V2)

    play(story)


def test_d33_a_forced_promotion_says_so_and_one_that_is_not_is_refused_by_the_leader() -> None:
    async def story(stage: Stage) -> None:
        strategy = msgspec.structs.replace(SLOW, gate=msgspec.structs.replace(SLOW.gate, min_calls=10**6))
        async with serving(stage, strategy) as calls, desk(stage) as people:
            calls.error_rate[V2] = 0.2
            await stage.apply(wanted(V2, strategy))
            await stage.until(lambda: at(stage, Phase.CANARY, V2, 10))
            await stage.clock.sleep(5)
            assert (await people.order(V.PROMOTE)).slices[0].rollout.ordered is V.PROMOTE  # type: ignore[union-attr]

            async def refused() -> bool:
                return "calls failed" in (await people.rollout()).refused

            await stage.until(refused)
            assert await at(stage, Phase.CANARY, V2, 10)
            await people.order(V.PROMOTE, force=True)
            await stage.until(lambda: at(stage, Phase.CANARY, V2, 50))
            verbs = [entry.value.verb for entry in (await AUDIT.list(stage.store)).entries]
            assert verbs == ["blueprint.promote", "blueprint.promote-forced"]
            whys = [entry.value.why for entry in (await TRACE.list(stage.store)).entries]
            assert any("promoted to stage 2 of 2 by ada, although" in why for why in whys)

    play(story)


def test_d33_an_order_never_overwrites_what_the_leader_wrote_meanwhile() -> None:
    async def story(stage: Stage) -> None:
        async with serving(stage, SLOW), desk(stage) as people:
            await stage.apply(wanted(V2, SLOW))
            await stage.until(lambda: at(stage, Phase.CANARY, V2, 10))
            await stage.depose()

            async def goes_on() -> None:
                entry = await DEPLOYMENT.get(stage.store, base=WEB)
                assert entry is not None
                now = entry.value
                after = msgspec.structs.replace(now, stage=now.stage + 1, changed_at=now.changed_at + 1)
                await DEPLOYMENT.replace(stage.store, entry, after)

            before = (await people.rollout()).changed_at
            people.store.happens = goes_on
            with pytest.raises(Conflict, match="has changed since you read it"):
                await people.order(V.PAUSE, seen={WEB: before})
            found = await stage.deployment(WEB)
            assert found is not None
            assert (found.stage, found.control.paused) == (1, False)
            people.store.happens = goes_on
            await people.order(V.PAUSE)
            found = await stage.deployment(WEB)
            assert found is not None
            assert (found.stage, found.control.paused) == (2, True)
            await stage.lead()

    play(story)


ORDERS: dict[str, tuple[Strategy, Phase]] = {
    "approve": (MANUAL, Phase.DONE),
    "pause, resume, promote": (SLOW, Phase.DONE),
    "promote blue-green": (BLUE_GREEN, Phase.DONE),
    "pause, abort": (SLOW, Phase.FAILED),
}


@pytest.mark.parametrize("orders", ORDERS)
def test_d33_leaders_that_die_at_each_transaction_carry_every_order_out_once(orders: str) -> None:
    """The story is told again and again, the death one transaction further each time, until it ends before that."""
    strategy, goal = ORDERS[orders]
    is_over = False
    for step in range(1, 200):

        async def story(stage: Stage, step: int = step) -> None:
            nonlocal is_over
            async with serving(stage, strategy, 2) as calls, desk(stage) as people:
                mortal = Crashing(stage.store, at=(step + 1) // 2, after=bool(step % 2))
                await stage.lead(mortal)

                async def succeed() -> None:
                    await mortal.died.wait()
                    await stage.lead()

                heir = asyncio.create_task(succeed())
                await stage.apply(wanted(V2, strategy, 2))
                for order in orders.split(", "):
                    if order == "approve":
                        for _ in range(2):
                            await stage.until(people.awaits)
                            await people.until_possible(V.APPROVE, seen={WEB: (await people.rollout()).changed_at})
                            await stage.until(lambda: gone_on(people))
                    elif order.startswith("promote"):
                        await people.until_possible(V.PROMOTE, all=True)
                    else:
                        await people.until_possible(V(order))
                runs = wanted(V1 if goal is Phase.FAILED else V2, strategy, 2)
                await ended(stage, goal, runs, V2)
                is_over = not mortal.died.is_set()
                heir.cancel()
                await asyncio.gather(heir, return_exceptions=True)
                assert stage.low.get(WEB, 2) >= 2
                if orders == "approve":
                    assert calls.weights == [{V1: 100, V2: 0}, {V1: 90, V2: 10}, {V1: 50, V2: 50}, {V1: 0, V2: 100}, {}]
                final = await stage.deployment(WEB)
                assert final is not None
                assert final.control == RolloutControl()

        play(story)
        if is_over:
            break
    assert is_over
    assert step > 12


async def gone_on(people: Desk) -> bool:
    """Whether the approval was used."""
    found = await people.stage.deployment(WEB)
    return found is not None and not found.control.approved and not found.control.awaiting
