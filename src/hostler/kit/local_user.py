"""The name of who runs this process."""

from __future__ import annotations

import getpass
import os


def have_a_name() -> None:
    """See to it that there is one: asyncssh asks for it, and who runs a service or a container may have none."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"user-{os.getuid()}"
