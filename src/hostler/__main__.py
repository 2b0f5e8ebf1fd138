"""`hostler`, and `python -m hostler`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    from hostler.entry.cli import main as run

    sys.exit(run())


if __name__ == "__main__":
    main()
