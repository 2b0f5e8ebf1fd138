"""The inventory service: plans, loads that write what differs and nothing else, and taking things out of use."""

from __future__ import annotations

from typing import Any

import pytest
from inventory_files import SMALL, rack
from service_scene import ADMIN, MEMBER_OF_ACME, VIEWER, Scene, asked, play

from hostler.engine.inventory.inventory_file import inventory_in, read_inventory
from hostler.engine.inventory.service import AT_ONCE, InventoryService
from hostler.errors import Conflict, Forbidden, NotFound, Stale, Unavailable
from hostler.keys.families import BLADE, PDU, RACK, SLICE
from hostler.model.deployment import SliceRecord, SliceState
from hostler.model.inventory import Condition
from hostler.model.inventory_api import HardwareSet, InventoryLoaded
from hostler.model.node import Lifecycle
from hostler.ports.store import MAX_REQUEST_BYTES, Put

READ = read_inventory(SMALL)


def service(scene: Scene) -> InventoryService:
    return InventoryService(scene.store, scene.writer, scene.view)


async def revision(scene: Scene) -> int:
    return (await scene.raw.status()).revision


async def loaded(scene: Scene, inventory: Any = READ, **more: Any) -> InventoryLoaded:
    done = await service(scene).load(asked(ADMIN), inventory, **more)
    await scene.settle()
    return done.value


def test_a_file_is_loaded_and_loading_it_again_writes_nothing() -> None:
    async def story(scene: Scene) -> None:
        planned = await service(scene).plan(ADMIN, READ)
        assert [change.what for change in planned.changes] == ["add"] * len(READ.records())
        first = await loaded(scene, agreed=planned.digest)
        assert (first.added, first.changed, first.removed) == (len(READ.records()), 0, 0)
        found = {kv.key for kv in (await scene.raw.range("/")).items}
        assert set(READ.records()) <= found
        before = await revision(scene)
        again = await loaded(scene)
        assert (again.added, again.changed, again.removed, again.revision) == (0, 0, 0, before)
        planned = await service(scene).plan(ADMIN, READ)
        assert (planned.changes, planned.digest) == ((), "")
        assert await revision(scene) == before
        assert [audit.verb for audit in await scene.audits()] == ["inventory.load"]
        shown = await service(scene).show(VIEWER)
        document = {"regions": list(shown.regions), "racks": list(shown.racks)}
        assert inventory_in(document).records() == READ.records()
        assert await service(scene).show(VIEWER, stale=True) == shown

    play(story)


def test_a_large_file_is_written_in_parts_of_whole_racks() -> None:
    async def story(scene: Scene) -> None:
        large = inventory_in({"racks": [_wide("r1", 250), *(rack(f"q{n}") for n in range(40))]})
        await loaded(scene, large)
        entries = list((await BLADE.list(scene.raw, rack="r1")).entries)
        sizes: dict[int, int] = {}
        for entry in entries:
            sizes[entry.mod_revision] = sizes.get(entry.mod_revision, 0) + 1
        assert max(sizes.values()) <= AT_ONCE
        for n in range(40):
            found = {entry.mod_revision for entry in (await BLADE.list(scene.raw, rack=f"q{n}")).entries}
            top = await RACK.get(scene.raw, rack=f"q{n}")
            assert top is not None
            assert found == {top.mod_revision}
        before = await revision(scene)
        await loaded(scene, large)
        assert await revision(scene) == before

    play(story)


def test_large_records_are_written_in_parts_that_fit_into_a_request() -> None:
    async def story(scene: Scene) -> None:
        feeds = {kind: [{"name": kind[:-1], "ports": 1500}] for kind in ("pdus", "tors")}
        large = inventory_in({"racks": [rack(f"r{n}", **feeds) for n in range(30)]})
        assert sum(len(record.encode()) for record in large.records().values()) > MAX_REQUEST_BYTES
        await loaded(scene, large)
        tops = [entry.mod_revision for entry in (await RACK.list(scene.raw)).entries]
        assert len(tops) == 30
        assert len(set(tops)) < 10, "no more parts than it takes"
        assert (await service(scene).plan(ADMIN, large)).changes == ()

    play(story)


def test_a_load_that_was_interrupted_is_not_told_that_nothing_was_written() -> None:
    async def story(scene: Scene) -> None:
        large = inventory_in({"racks": [_wide("r1", 150)]})
        planned = await service(scene).plan(ADMIN, large)
        inner, left = scene.store.txn, 1

        async def fails_later(when: Any, then: Any, *more: Any) -> Any:
            nonlocal left
            if any(isinstance(operation, Put) for operation in then):
                left -= 1
                if left < 0:
                    raise Unavailable("store: away")
            return await inner(when, then, *more)

        scene.store.txn = fails_later  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            await loaded(scene, large, agreed=planned.digest)
        scene.store.txn = inner  # type: ignore[method-assign]
        with pytest.raises(Stale) as told:
            await loaded(scene, large, agreed=planned.digest)
        assert "nothing was written" not in str(told.value)
        assert "look at the new plan" in str(told.value)

    play(story)


def _wide(name: str, blades: int) -> dict[str, Any]:
    feeds = {kind: [{"name": kind[:-1], "ports": blades + 1}] for kind in ("pdus", "tors")}
    return rack(name, blades={"count": blades}, **feeds)


def test_a_change_of_one_blade_writes_one_record() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene, inventory_in({"racks": [_wide("r1", 50)]}))
        before = await revision(scene)
        document = _wide("r1", 50)
        document["blades"] = [{"count": 49}, {"name": "b50", "cpus": 4}]
        done = await loaded(scene, inventory_in({"racks": [document]}))
        assert (done.added, done.changed, done.removed) == (0, 1, 0)
        changed = [kv.key for kv in (await scene.raw.range("/CloudChamber")).items if kv.mod_revision > before]
        assert changed == [BLADE.fill(rack="r1", blade="b50")]

    play(story)


def test_a_blade_with_machines_is_not_removed() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene)
        await scene.node("r1-b4")
        vm = await scene.made("web")
        await scene.told(vm, "r1-b4", name="web")
        smaller = read_inventory(SMALL.replace("count: 4", "count: 3"))
        planned = await service(scene).plan(ADMIN, smaller)
        why = "blade r1/b4: its node r1-b4 has 1 machine (web); hostler node drain r1-b4 first"
        assert planned.refused == (why,)
        assert [note.partition(",")[0] for note in planned.notes] == ["node r1-b4 is registered"]
        before = await revision(scene)
        with pytest.raises(Conflict, match="drain r1-b4 first"):
            await loaded(scene, smaller)
        with pytest.raises(Conflict, match="drain r1-b4 first"):
            await loaded(scene, inventory_in({"racks": []}))
        assert await revision(scene) == before
        await scene.raw.delete_prefix("/hostler/v1/nodes/r1-b4/")
        done = await loaded(scene, smaller)
        # Both pdus and the tor lose a port's item; the last ports of the pdus take the tor.
        assert (done.changed, done.removed) == (3, 1)
        assert (await loaded(scene, inventory_in({"racks": []}))).removed == len(smaller.records())
        assert (await scene.raw.range("/CloudChamber/V0.1/rack")).items == ()

    play(story)


def test_a_blade_whose_node_has_slices_is_removed_with_a_note_that_names_them() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene)
        smaller = read_inventory(SMALL.replace("count: 4", "count: 3"))
        record = SliceRecord(state=SliceState.ACTIVE, timestamp=5)
        for number in range(7):
            await scene.raw.txn([], [SLICE.put(record, node="r1-b4", artifact=f"org:s{number}:1")])
        await scene.raw.txn([], [SLICE.put(record, node="r1-b3", artifact="org:other:1")])
        has = "node r1-b4 has 7 slices (org:s0:1, org:s1:1, org:s2:1, org:s3:1, org:s4:1, …)"
        planned = await service(scene).plan(ADMIN, smaller)
        assert (planned.refused, planned.notes) == ((), (f"{has}, and will not be in the inventory",))
        await scene.node("r1-b4")
        assert (await service(scene).plan(ADMIN, smaller)).notes == (
            f"{has} and is registered, and will not be in the inventory; hostler node drain r1-b4, stop its agent, and"
            " hostler node remove r1-b4",
        )
        assert (await loaded(scene, smaller)).removed == 1

    play(story)


def test_many_blades_at_once_are_looked_at_together() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene, inventory_in({"racks": [_wide("r1", 300)]}))
        vm = await scene.made("web")
        await scene.told(vm, "r1-b300")
        with pytest.raises(Conflict, match=r"blade r1/b300: its node r1-b300 has 1 machine"):
            await loaded(scene, inventory_in({"racks": []}))

    play(story)


def test_what_was_agreed_to_is_what_is_done() -> None:
    async def story(scene: Scene) -> None:
        planned = await service(scene).plan(ADMIN, READ)
        await loaded(scene, inventory_in({"racks": [rack("other")]}))
        with pytest.raises(Stale, match="changed since the plan"):
            await loaded(scene, agreed=planned.digest)

    play(story)


def test_somebody_who_writes_meanwhile_is_not_overwritten() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene)
        inventory, key = service(scene), BLADE.fill(rack="r1", blade="b1")
        taken = await scene.raw.get(key)
        assert taken is not None
        refused = inventory._blades_in_use

        async def interrupted(steps: Any) -> list[str]:
            await scene.raw.put(key, taken.value)
            return await refused(steps)

        inventory._blades_in_use = interrupted  # type: ignore[method-assign]
        with pytest.raises(Conflict, match="0 of 4 changes are written"):
            await inventory.load(asked(ADMIN), read_inventory(SMALL.replace("cpus: 16", "cpus: 15")))

    play(story)


def test_a_load_is_done_once_under_its_key() -> None:
    async def story(scene: Scene) -> None:
        request = asked(ADMIN, key="k", fingerprint="f")
        first = await service(scene).load(request, READ)
        again = await service(scene).load(request, READ)
        assert again.replayed
        assert again.value == first.value
        nothing = await service(scene).load(asked(ADMIN, key="n", fingerprint="f"), READ)
        assert (await service(scene).load(asked(ADMIN, key="n", fingerprint="f"), READ)).value == nothing.value

    play(story)


def test_writing_takes_the_right() -> None:
    async def story(scene: Scene) -> None:
        inventory = service(scene)
        for attempt in (
            inventory.plan(MEMBER_OF_ACME, READ),
            inventory.load(asked(), READ),
            inventory.set_rack(asked(), "r1", HardwareSet(enabled=False)),
        ):
            with pytest.raises(Forbidden, match="modify_inventory"):
                await attempt

    play(story)


def test_everything_can_be_taken_out_of_use_and_back() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene)
        inventory, request = service(scene), asked(ADMIN)
        off, repair = HardwareSet(enabled=False), HardwareSet(condition=Condition.OUT_FOR_REPAIR)
        assert (await inventory.set_part(request, "R1", "B3", repair)).value.condition is Condition.OUT_FOR_REPAIR
        for done, what in (
            (await inventory.set_region(request, "eu", off), "region EU"),
            (await inventory.set_zone(request, "EU", "EU-1", off), "zone EU/eu-1"),
            (await inventory.set_rack(request, "R1", off), "rack r1"),
            (await inventory.set_part(request, "r1", "PDU2", off), "pdu r1/pdu2"),
            (await inventory.set_part(request, "r1", "tor1", off), "tor r1/tor1"),
            (await inventory.set_part(request, "r1", "b1", off), "blade r1/b1"),
        ):
            assert (f"{done.value.level} {done.value.name}", done.value.enabled) == (what, False)
        before = await revision(scene)
        same = await inventory.set_part(request, "r1", "b1", off)
        assert (same.revision, await revision(scene)) == (same.value.revision, before)
        assert (await loaded(scene)).changed == 0
        verbs = {audit.verb for audit in await scene.audits()}
        assert verbs >= {"region.set", "zone.set", "rack.set", "pdu.set", "tor.set", "blade.set"}
        with pytest.raises(Stale, match="revision 1 is not"):
            await inventory.set_part(asked(ADMIN, if_match=1), "r1", "b1", HardwareSet(enabled=True))
        for attempt in (
            inventory.set_region(request, "us", off),
            inventory.set_part(request, "r1", "b9", off),
            inventory.set_part(request, "r9", "b1", off),
        ):
            with pytest.raises(NotFound, match="not in the inventory"):
                await attempt

    play(story)


def test_a_rack_is_shown_with_what_its_nodes_do() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene)
        inventory = service(scene)
        for node in ("r1-b1", "r1-b2", "r1-b9"):
            await scene.node(node)
        await scene.node("r1-b3", lifecycle=Lifecycle.DRAINING)
        await scene.node("r1-b4", alive=False)
        vm = await scene.made("web")
        await scene.told(vm, "r1-b1", name="web")
        await inventory.set_part(asked(ADMIN), "r1", "b2", HardwareSet(enabled=False))
        await scene.settle()
        for stale in (False, True):
            shown = await inventory.rack(MEMBER_OF_ACME, "R1", stale=stale)
            assert (shown.rack.blades, shown.rack.nodes, shown.rack.on_duty, shown.rack.vms) == (4, 4, 1, 1)
            assert (shown.rack.capacity.cpus, shown.rack.used.cpus) == (32, 1)
            assert [feed.name for feed in (*shown.pdus, *shown.tors)] == ["pdu1", "pdu2", "tor1"]
            assert [(blade.name, blade.lifecycle, blade.alive, blade.vms) for blade in shown.blades] == [
                ("b1", Lifecycle.ON_DUTY, True, 1),
                ("b2", Lifecycle.ON_DUTY, True, 0),
                ("b3", Lifecycle.DRAINING, True, 0),
                ("b4", Lifecycle.ON_DUTY, False, 0),
            ]
            assert shown.blades[0].machines == ("acme/web/web",)
            assert shown.blades[1].objection == "blade r1/b2: not enabled"
            assert (shown.blades[0].pdus, shown.blades[0].tors) == (("r1/pdu1", "r1/pdu2"), ("r1/tor1",))
            assert shown.unlisted == ("r1-b9",)
            assert (await inventory.blade(MEMBER_OF_ACME, "r1", "b1", stale=stale)) == shown.blades[0]
            assert (await inventory.pdus(VIEWER, "r1", stale=stale)).items == shown.pdus
            assert (await inventory.tors(VIEWER, "r1", stale=stale)).items == shown.tors
            with pytest.raises(NotFound, match="rack r7"):
                await inventory.rack(VIEWER, "r7", stale=stale)
            with pytest.raises(NotFound, match="blade r1/b7"):
                await inventory.blade(VIEWER, "r1", "b7", stale=stale)
        other = await inventory.rack(asked().caller.__class__("x", ADMIN.rights, ("other",)), "r1")
        assert (other.blades[0].machines, other.blades[0].vms) == ((), 1)

    play(story)


def test_racks_blades_and_regions_are_listed() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene)
        inventory = service(scene)
        await scene.raw.put(RACK.fill(rack="broken"), b"{")
        await inventory.set_region(asked(ADMIN), "eu", HardwareSet(enabled=False))
        await scene.settle()
        for stale in (False, True):
            names: list[str] = []
            after: str | None = None
            while True:
                page = await inventory.racks(VIEWER, limit=1, after=after, stale=stale)
                names += [each.name for each in page.items]
                after = page.after
                if after is None:
                    break
            assert names == ["lone", "r1", "R2"]
            whole = await inventory.racks(VIEWER, stale=stale)
            assert [each.objection for each in whole.items] == ["", *["region EU: not enabled"] * 2]
            first = await inventory.blades(VIEWER, "r1", limit=3, stale=stale)
            rest = await inventory.blades(VIEWER, "r1", after=first.after, stale=stale)
            assert [each.node for each in (*first.items, *rest.items)] == ["r1-b1", "r1-b2", "r1-b3", "r1-b4"]
            regions = await inventory.regions(VIEWER, stale=stale)
            assert [(each.name, [(zone.name, zone.racks) for zone in each.zones]) for each in regions.items] == [
                ("EU", [("eu-1", 2)])
            ]

    play(story)


def test_the_first_pdu_of_the_contract_is_the_first_of_the_list() -> None:
    async def story(scene: Scene) -> None:
        await loaded(scene)
        found = await PDU.get(scene.raw, rack="r1")
        assert found is not None
        assert (await service(scene).pdus(VIEWER, "r1")).items[0].name == found.value.name == "pdu1"

    play(story)
