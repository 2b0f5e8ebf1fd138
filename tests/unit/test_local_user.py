"""Who runs this process has a name, whatever the system knows of them."""

from __future__ import annotations

import getpass
import os
import pwd

import asyncssh
import pytest

from hostler.kit.host import have_a_name


def test_a_user_whom_the_system_does_not_know_gets_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises((ValueError, OSError), match="[Uu]sername"):  # OSError: since Python 3.13
        asyncssh.SSHClientConnectionOptions()
    monkeypatch.setenv("LOGNAME", "")  # what is set below ends with the test
    have_a_name()
    assert getpass.getuser() == f"user-{os.getuid()}"
    asyncssh.SSHClientConnectionOptions()


def test_a_name_that_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    have_a_name()
    assert os.environ["LOGNAME"] == "ada"
