"""Backups as files. `hostler.engine.transfer` restores them."""
