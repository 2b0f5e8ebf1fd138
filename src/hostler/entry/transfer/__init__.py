"""Backups as files. What they are restored with: `hostler.engine.transfer`."""
