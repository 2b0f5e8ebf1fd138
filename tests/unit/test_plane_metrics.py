"""Who may read the figures, unless the settings say so."""

from __future__ import annotations

import os

import pytest

from hostler import settings
from hostler.entry.control_plane import _metrics


@pytest.mark.parametrize(
    ("machines", "uid", "said", "who"),
    [
        ("simulated", 1000, "auto", "nearby"),
        ("qemu", 0, "auto", "nearby"),
        ("qemu", 1000, "auto", "token"),  # their guests come from this very machine
        ("qemu", 1000, "nearby", "nearby"),
        ("simulated", 0, "token", "token"),
    ],
)
def test_guests_that_may_come_from_this_machine_are_not_nearby(
    machines: str, uid: int, said: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert _metrics(settings.load({"machines": machines, "metrics": said}, {}, toml="")) == who
