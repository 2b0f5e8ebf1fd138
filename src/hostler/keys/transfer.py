"""Copies between stores: a key in the target that stands while the copy is incomplete."""

from __future__ import annotations

from typing import Any

from hostler.keys.key import Key

FILLING: Key[dict[str, Any]] = Key("/hostler/v1/filling", dict)
"""What is being copied, and from where. There is one at most."""
