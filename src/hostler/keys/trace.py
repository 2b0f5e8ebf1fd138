"""Decisions: `/hostler/v1/traces/…`, in order of time; and unreachable nodes, with the decision that says so."""

from __future__ import annotations

from hostler.keys.key import Key
from hostler.model.trace import Silent, Trace

TRACE = Key("/hostler/v1/traces/{day}/{decision}", Trace)
"""`day` is `2026-11-15`; the decisions of a day are in order of time."""
SILENT = Key("/hostler/v1/silences/{node:name}", Silent)
