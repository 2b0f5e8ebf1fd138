"""Files of the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hostler.drivers.audit.chain import DayCheck
    from hostler.ports.audit_files import AuditFiles, DayFile


def open_audit_files(data: Path) -> AuditFiles:
    """Return the audit files of a data folder; nothing is created before the first line is filed."""
    from hostler.drivers.audit.folder import AuditFolder

    return AuditFolder(data / "audit")


def check_audit_files(data: Path, expected: Mapping[str, DayFile]) -> list[DayCheck]:
    """Verify that the files of a data folder are as written. `expected`: what the store recorded, by day."""
    from hostler.drivers.audit.chain import check
    from hostler.drivers.audit.folder import AuditFolder

    return check(AuditFolder(data / "audit").files(), expected)
