"""Signals to a command in a machine."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from hostler.entry.cli.vm.ssh import Session, _caught


class Told:
    """Stands for the command of the other side."""

    def __init__(self) -> None:
        self.signals: list[str] = []

    def send_signal(self, name: str) -> None:
        self.signals.append(name)


async def test_a_signal_that_comes_before_the_command_is_known_to_run_is_passed_on() -> None:
    told: Any = Told()
    with _caught() as early:
        os.kill(os.getpid(), signal.SIGTERM)
        while not early:
            await asyncio.sleep(0.01)
        with Session(told).signals(early):
            assert told.signals == ["TERM"]
