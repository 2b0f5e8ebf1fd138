"""The command line: `hostler`.

Not here: work. A command reads its options, calls, and shows what came back. Heavy modules are imported inside the
commands that need them, so that `hostler --help` answers at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Never raises: every error becomes a line on stderr."""
    from hostler.entry.cli.app import app
    from hostler.entry.cli.failure import run

    return run(app, arguments)
