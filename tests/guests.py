"""Inside the tiny guest: until it can be logged into, and what is said there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh
from harness.pace import patience

from hostler.model.vm import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.model.vm import Access
    from hostler.ports.machines import Machine, Machines

KEY = asyncssh.generate_private_key("ssh-ed25519")
KEYS = (KEY.export_public_key().decode().strip(),)
SOME = 20.0
"""Seconds, at most, for what a quiet machine does in some: `patience(SOME)`."""
WITHIN = 60.0
"""For those who take a number and know nothing of the machine's pace."""


def repeat(command: str, *, every: float) -> str:
    """Return a loop for the guest's shell: a command, and a pause of so many seconds.

    Nothing is written to the fifo that it waits for. `usleep` would be a new process each time; with a pause of 20 ms
    that costs an emulated guest a fifth of a processor.
    """
    fifo = "/dev/shm/never"
    return (
        f"[ -p {fifo} ] || mkfifo {fifo}; exec 9<> {fifo};"
        f" while :; do {command}; read -r -t {every:g} nothing <&9; done"
    )


async def until(machines: Machines, vm: str, is_so: Callable[[Machine], bool], within: float = SOME) -> Machine:
    """The machine, once it is so."""
    seen: Machine | None = None
    try:
        async with asyncio.timeout(patience(within)):
            while True:
                seen = await machines.inspect(vm)
                assert seen is not None, f"{vm}: it is gone"
                if is_so(seen):
                    return seen
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{vm}: it is still {seen}") from None


def is_available(machine: Machine) -> bool:
    return machine.readiness is not None and machine.readiness.step is Step.AVAILABLE


async def available(machines: Machines, vm: str) -> Access:
    """Where a machine can be logged into, once it can."""
    access = (await until(machines, vm, is_available)).access
    assert access is not None
    return access


async def login(access: Access) -> asyncssh.SSHClientConnection:
    """Into the machine that was made, and no other."""
    known = asyncssh.import_known_hosts("".join(f"* {key}\n" for key in access.host_keys))
    async with asyncio.timeout(patience(SOME)):
        return await asyncssh.connect(
            access.host,
            access.port,
            username=access.user,
            client_keys=[KEY],
            known_hosts=known,
            config=None,
            agent_path=None,
        )


async def run(machines: Machines, vm: str, command: str, *, check: bool = True) -> str:
    """What a command says inside a machine, once that is available."""
    async with await login(await available(machines, vm)) as connection, asyncio.timeout(patience(SOME)):
        done = await connection.run(command, check=check)
    return str(done.stdout).strip()
