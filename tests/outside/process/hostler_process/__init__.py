"""Machines for Hostler that are plain processes: an example of a driver in a distribution of its own (docs/drivers.md).

This module is the descriptor. It is imported at each start, so it does not import the driver.
"""

from __future__ import annotations

import shlex
import shutil
from typing import TYPE_CHECKING

from hostler.ports.machine_driver import Finding, FirstMachine, Level, MachineDriver
from hostler.settings.option import Option

if TYPE_CHECKING:
    from hostler.model.lab import LabTemplate
    from hostler.ports.machine_driver import NodeSetup
    from hostler.ports.machines import Machines
    from hostler.settings import Settings

COMMAND = ("sleep", "infinity")


def _read_command(found: object) -> tuple[str, ...]:
    words = shlex.split(found) if isinstance(found, str) else found
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) and word for word in words):
        raise ValueError("must be a program and its arguments")
    return tuple(words)


def _open(node: NodeSetup) -> Machines:
    from hostler_process.machines import ProcessMachines

    command = COMMAND if node.settings is None else node.settings.driver_options["process_command"]
    return ProcessMachines(node.folder, command=command)


async def _examine(settings: Settings, used: bool) -> list[Finding]:
    if not used:
        return []
    program = settings.driver_options["process_command"][0]
    found = shutil.which(program)
    if found is None:
        return [Finding("process", Level.FAIL, f"{program}: not found", "correct process_command")]
    return [Finding("process", Level.OK, f"machines run {found}")]


def _lab_refusal(template: LabTemplate) -> str:
    return "cloud_init: a process has no cloud-init; remove it" if template.user_data else ""


DRIVER = MachineDriver(
    about="plain processes of this host",
    options=(
        Option(
            *("process_command", "process_command", "HOSTLER_PROCESS_COMMAND", _read_command),
            "the program that each machine runs, with its arguments",
            COMMAND,
        ),
    ),
    lab_refusal=_lab_refusal,
    open=_open,
    examine=_examine,
    boots=64,
    first=FirstMachine(memory_mib=64, within=30.0, shows_steps=False, example="--memory 64M"),
)
