"""`hostler doctor`: one module per group of checks; `examination` runs them, and `result` defines what they return."""
