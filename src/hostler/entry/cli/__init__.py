"""The command line: `hostler`.

This package contains no business logic. A command reads its options, calls the client or an engine, and shows the
result. Commands import heavy modules when they run, so that `hostler --help` answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Never raises: every error becomes a line on stderr."""
    from hostler.entry.cli.app import app
    from hostler.entry.cli.failure import run

    return run(app, arguments)
