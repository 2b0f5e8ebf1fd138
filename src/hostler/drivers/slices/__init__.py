"""What runs slices on a node: `simulated` (rows in memory, virtual time) and `process` (one for each instance)."""
