"""The command line."""

from __future__ import annotations


def main() -> int:
    """Run the command line; the exit code."""
    return 0
