"""Modules and names that were moved or renamed can be imported by their old names for one release."""

from __future__ import annotations

import importlib
import sys

import pytest

from hostler.model.control_api import EventView, Overview, StoreStatus, TraceView
from hostler.model.inventory_api import NodeView
from hostler.model.name import check_line
from hostler.model.node import Retained
from hostler.model.slice_api import Arguments, ArtifactView
from hostler.model.trace import Reason
from hostler.model.vm import architecture
from hostler.model.vm_api import RetainedView, VmCreate, VmPhase
from hostler.ports.machine_driver import Finding, Images
from hostler.ports.machines import Peers
from hostler.ports.slices import Artifacts
from hostler.ports.url import StoreDriver

OLD = {
    ("api", "VmCreate"): VmCreate,
    ("api", "NodeView"): NodeView,
    ("api", "EventView"): EventView,
    ("api", "Phase"): VmPhase,
    ("artifact_api", "ArtifactView"): ArtifactView,
    ("invoke_api", "Arguments"): Arguments,
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


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [("hostler.ports.machines", "Door", "ChannelKind"), ("hostler.testing", "LabDoor", "LabFrontEnd")],
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
