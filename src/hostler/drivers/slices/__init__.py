"""Drivers that run slices on a node: `simulated` (in memory, virtual time) and `process` (one process per instance)."""
