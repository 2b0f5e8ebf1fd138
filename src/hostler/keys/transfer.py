"""Copies between stores: a key in the target that stands while the copy is incomplete, and one that stays after."""

from __future__ import annotations

from typing import Any

from hostler.keys.key import Key
from hostler.model.migration import Migration, Moved

FILLING: Key[dict[str, Any]] = Key("/hostler/v1/filling", dict)
"""What is being copied, and from where. There is one at most."""
MIGRATION = Key("/hostler/v1/migrations/{cluster}", Migration)
"""Machines that were moved here from a state file. `cluster` is the id that the control plane had on that file."""
MOVED = Key("/hostler/v1/moved", Moved)
"""In a store whose records were moved or copied to another one."""
