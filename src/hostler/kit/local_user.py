"""The name of the user that runs this process."""

from __future__ import annotations

import getpass
import os


def have_a_name() -> None:
    """Ensure that the user has a name: asyncssh needs one, and the user of a service or container may have none."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"
