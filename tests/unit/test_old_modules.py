"""Modules and names that were moved or renamed can be imported by their old names for one release."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from hostler.errors import Refused
from hostler.model import slice_api
from hostler.model.control_api import EventView, Overview, StoreStatus, TraceView
from hostler.model.http_route import decode_segments
from hostler.model.inventory_api import CurrentInventory, InventoryShown, NodeView
from hostler.model.name import check_line
from hostler.model.node import Retained
from hostler.model.slice_api import Arguments, ArtifactView
from hostler.model.trace import Reason
from hostler.model.vm import HARDWARE_NAME, HARDWARE_NAME_RULE, architecture, hardware_labels
from hostler.model.vm_api import RetainedView, VmCreate, VmPhase
from hostler.ports.machine_driver import Finding, Images
from hostler.ports.machines import Peers
from hostler.ports.slices import Artifacts
from hostler.ports.url import StoreDriver
from hostler.testing import Call, InboxTrial, Journal, SliceHost, TtlTrial, check_inbox, inbox_claims, read_history
from hostler.testing.history import _Ended
from hostler.testing.inbox.drivers import MemoryLabFrontEnd

OLD = {
    ("api", "VmCreate"): VmCreate,
    ("api", "NodeView"): NodeView,
    ("api", "EventView"): EventView,
    ("api", "Phase"): VmPhase,
    ("artifact_api", "ArtifactView"): ArtifactView,
    ("invoke_api", "Arguments"): Arguments,
    ("node_label", "NAME"): HARDWARE_NAME,
    ("node_label", "NAME_RULE"): HARDWARE_NAME_RULE,
    ("node_label", "advertised"): hardware_labels,
    ("node_label", "architecture"): architecture,
    ("overview_api", "Overview"): Overview,
    ("overview_api", "StoreSeen"): StoreStatus,
    ("reason", "Reason"): Reason,
    ("retained", "Retained"): Retained,
    ("retained_api", "RetainedView"): RetainedView,
    ("text_line", "check_line"): check_line,
    ("trace_api", "TraceView"): TraceView,
}


PORTS = {
    ("artifacts", "Artifacts"): Artifacts,
    ("finding", "Finding"): Finding,
    ("images", "Images"): Images,
    ("peers", "Peers"): Peers,
    ("url_driver", "StoreDriver"): StoreDriver,
}


@pytest.mark.parametrize(("module", "name"), PORTS)
def test_a_port_can_be_imported_from_its_old_module(module: str, name: str) -> None:
    sys.modules.pop(f"hostler.ports.{module}", None)
    with pytest.warns(DeprecationWarning, match=f"hostler.ports.{module} is now hostler.ports"):
        found = importlib.import_module(f"hostler.ports.{module}")
    assert getattr(found, name) is PORTS[module, name]


@pytest.mark.parametrize(("module", "name"), OLD)
def test_a_record_can_be_imported_from_its_old_module(module: str, name: str) -> None:
    sys.modules.pop(f"hostler.model.{module}", None)
    with pytest.warns(DeprecationWarning, match=f"hostler.model.{module} is now hostler.model"):
        found = importlib.import_module(f"hostler.model.{module}")
    assert getattr(found, name) is OLD[module, name]


MOVED = (
    "BlueprintCalls",
    "EndpointPage",
    "EndpointView",
    "SliceCalls",
    "SliceInstanceView",
    "SliceLog",
    "SlicePage",
    "SliceView",
    "VersionCalls",
)


@pytest.mark.parametrize("name", MOVED)
def test_a_record_of_slices_can_be_imported_from_the_module_of_blueprints(name: str) -> None:
    blueprint_api = importlib.import_module("hostler.model.blueprint_api")
    with pytest.warns(DeprecationWarning, match=f"blueprint_api.{name} is now hostler.model.slice_api.{name}"):
        assert getattr(blueprint_api, name) is getattr(slice_api, name)


def test_an_old_module_has_the_old_names_of_no_other() -> None:
    for module, name in (("retained_api", "Phase"), ("trace_api", "StoreSeen")):
        sys.modules.pop(f"hostler.model.{module}", None)
        with pytest.warns(DeprecationWarning, match=f"hostler.model.{module} is now"):
            found = importlib.import_module(f"hostler.model.{module}")
        assert not hasattr(found, name)


def test_the_inventory_is_found_by_its_old_name() -> None:
    assert InventoryShown is CurrentInventory


def test_a_function_of_routes_is_found_by_its_old_name() -> None:
    http_route = importlib.import_module("hostler.model.http_route")
    with pytest.warns(DeprecationWarning, match="http_route.decoded is now decode_segments"):
        assert http_route.decoded is decode_segments


def test_a_journal_has_its_old_methods(tmp_path: Path) -> None:
    journal: Any
    with Journal(tmp_path / "calls.jsonl") as journal:
        with pytest.warns(DeprecationWarning, match="Journal.called is now record_call"):
            number = journal.called(Call("a", "get", "/k", 1))
        with pytest.warns(DeprecationWarning, match="Journal.ended is now record_end"):
            journal.ended(number, _Ended(2, "done"))
    assert read_history([tmp_path / "calls.jsonl"]) == [Call("a", "get", "/k", 1, 2, "done")]


async def test_a_ttl_trial_has_its_old_method() -> None:
    class Trial(TtlTrial):
        def __init__(self) -> None:
            self.waited: list[tuple[str, float, float]] = []

        async def wait_until_lapsed(self, key: str, ttl: float, began: float) -> None:
            self.waited.append((key, ttl, began))

    trial: Any = Trial()
    with pytest.warns(DeprecationWarning, match="Trial.lapsed is now wait_until_lapsed"):
        await trial.lapsed("/k", 1.0, began=2.0)
    assert trial.waited == [("/k", 1.0, 2.0)]


def test_a_simulated_host_of_slices_has_its_old_method() -> None:
    host: Any = SliceHost("blade-1")
    host.refuse("org:hello:1")
    with pytest.warns(DeprecationWarning, match="SliceHost.met is now raise_fault"), pytest.raises(Refused):
        host.met("org:hello:1", "load")


async def test_the_suite_of_lab_front_ends_takes_its_old_parameters() -> None:
    claim = inbox_claims()[0]
    check, check_claim, trial_of = (cast("Any", each) for each in (check_inbox, claim.check, InboxTrial))
    with pytest.warns(DeprecationWarning, match="check_inbox: open_door is now open_front_end"):
        await check(open_door=MemoryLabFrontEnd, rounds=1, only=[str(claim)])
    with pytest.warns(DeprecationWarning, match="InboxClaim.check: open_door is now open_front_end"):
        await check_claim(open_door=MemoryLabFrontEnd, rounds=1)
    front_end = MemoryLabFrontEnd()
    with pytest.warns(DeprecationWarning, match="door is now front_end"):
        trial = trial_of(door=front_end, inbox=None, other=None, board=None, rounds=1)
    with pytest.warns(DeprecationWarning, match="InboxTrial.door is now front_end"):
        assert trial.door is front_end
    with pytest.raises(TypeError, match="give it once"):
        await check(open_door=MemoryLabFrontEnd, open_front_end=MemoryLabFrontEnd)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("hostler.ports.machines", "Door", "ChannelKind"),
        ("hostler.testing", "LabDoor", "LabFrontEnd"),
    ],
)
def test_a_name_that_was_changed_is_found_by_its_old_one(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is now {new}"):
        assert getattr(found, old) is getattr(found, new)
    with pytest.raises(AttributeError):
        _ = found.never


def test_a_module_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("hostler.model.never")
