"""`hostler doctor`: one module per group of checks; `examination` runs them, `result` is what each check returns."""
