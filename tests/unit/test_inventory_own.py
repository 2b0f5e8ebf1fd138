"""The rack of `hostler up`, and what the doctor says of an inventory."""

from __future__ import annotations

from inventory_files import SMALL, rack
from service_scene import ADMIN, Scene, asked, play

from hostler.engine.inventory.inventory_file import inventory_in, read_inventory
from hostler.engine.inventory.local_rack import OWN, make_own_rack
from hostler.engine.inventory.service import InventoryService
from hostler.entry.doctor.records import inventory as examined
from hostler.keys.families import BLADE, PDU, RACK, REGION, TOR, ZONE
from hostler.model.inventory_api import HardwareSet
from hostler.ports.machine_driver import Level


async def present(scene: Scene) -> dict[str, object]:
    service = InventoryService(scene.store, scene.writer, scene.view)
    shown = await service.show(ADMIN)
    return {"regions": list(shown.regions), "racks": list(shown.racks)}


def names(count: int) -> list[str]:
    return [str(n + 1) for n in range(count)]


def test_where_there_is_no_inventory_the_rack_is_made_and_made_once() -> None:
    async def story(scene: Scene) -> None:
        assert await make_own_rack(scene.store, "Local", names(3)) == 6
        before = (await scene.raw.status()).revision
        assert await make_own_rack(scene.store, "local", names(3)) == 0
        assert await make_own_rack(scene.store, "local", names(2)) == 0
        assert (await scene.raw.status()).revision == before
        await scene.settle()
        document = await present(scene)
        assert document["racks"] == [
            {
                "name": "Local",
                "location": OWN,
                "pdus": [{"name": "pdu1", "ports": 5}],
                "tors": [{"name": "tor1", "ports": 5}],
                "blades": {"count": 3, "prefix": ""},
            }
        ]
        inventory_in(document)
        assert [scene.view.inventory.objection(f"local-{name}") for name in names(3)] == ["", "", ""]

    play(story)


def test_further_nodes_get_blades_and_what_somebody_set_stays() -> None:
    async def story(scene: Scene) -> None:
        service = InventoryService(scene.store, scene.writer, scene.view)
        await make_own_rack(scene.store, "local", names(2))
        await service.set_part(asked(ADMIN), "local", "1", HardwareSet(enabled=False))
        assert await make_own_rack(scene.store, "local", names(120)) == 118 + 2
        await scene.settle()
        inventory_in(await present(scene))
        assert scene.view.inventory.objection("local-1") == "blade local/1: not enabled"
        assert {scene.view.inventory.objection(f"local-{name}") for name in names(120)[1:]} == {""}
        tor = await TOR.get(scene.raw, rack="local")
        pdu = await PDU.get(scene.raw, rack="local")
        assert tor is not None
        assert pdu is not None
        assert sum(port.wired for port in tor.value.ports.values()) == 120
        assert sum(port.wired for port in pdu.value.ports.values()) == 121

    play(story)


def test_every_host_of_a_shared_store_gets_a_rack_and_an_inventory_of_somebodys_own_is_left_alone() -> None:
    async def story(scene: Scene) -> None:
        await make_own_rack(scene.store, "local", names(1))
        assert await make_own_rack(scene.store, "host2", names(1)) == 4
        await scene.settle()
        assert len((await RACK.list(scene.raw)).entries) == 2
        await InventoryService(scene.store, scene.writer, scene.view).load(asked(ADMIN), read_inventory(SMALL))
        assert await make_own_rack(scene.store, "local", names(1)) == 0
        assert await RACK.get(scene.raw, rack="local") is None

    play(story)


def test_the_doctor_tells_what_the_inventory_does_not_know_and_what_does_not_fit() -> None:
    async def story(scene: Scene) -> None:
        assert examined(scene.view) == []
        service = InventoryService(scene.store, scene.writer, scene.view)
        document = {"regions": [{"name": "eu", "zones": [{"name": "a", "racks": [rack()]}]}]}
        await service.load(asked(ADMIN), inventory_in(document))
        await scene.node("r1-b1")
        await scene.node("else-b1")
        (fine,) = examined(scene.view)
        assert (fine.level, fine.what) == (Level.OK, "1 rack, 2 blades")
        await scene.node("r1-b9")
        await scene.raw.delete(BLADE.fill(rack="r1", blade="b2"))
        await scene.raw.delete(ZONE.fill(region="eu", zone="a"))
        await scene.raw.delete(REGION.fill(region="eu"))
        stray = BLADE.put(inventory_in({"racks": [rack()]}).racks[0].blades[0], rack="r7", blade="b1")
        await scene.raw.put(stray.key, stray.value)
        await scene.settle()
        found = examined(scene.view)
        assert {finding.level for finding in found} == {Level.WARN}
        assert [finding.what for finding in found] == [
            "node r1-b9 is not in the inventory, but its rack is: no machines are placed on it",
            "rack r7 has no record, but other records refer to it",
            "rack r1 is in zone eu/a, which has no record",
            "rack r1: pdus[0].ports.2: b2 is not in this rack",
            "rack r1: tors[0].ports.2: b2 is not in this rack",
        ]
        assert all(finding.next for finding in found)

    play(story)
