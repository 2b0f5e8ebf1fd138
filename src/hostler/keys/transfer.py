"""Copies between stores: a key that marks an incomplete copy in the target, and one that remains afterwards."""

from __future__ import annotations

from typing import Any

from hostler.keys.key import Key
from hostler.model.migration import Migration, Moved

FILLING: Key[dict[str, Any]] = Key("/hostler/v1/filling", dict)
"""What is being copied, and from where. There is at most one."""
MIGRATION = Key("/hostler/v1/migrations/{cluster}", Migration)
"""Machines that were moved here from a state file. `cluster` is the id that the control plane had in that file."""
MOVED = Key("/hostler/v1/moved", Moved)
"""Exists in a store whose records were moved or copied to another one."""
