"""Management boards that speak IPMI 2.0 over UDP on loopback, honest or not: a program of its own.

`python ipmi_boards.py ADDRESS` serves one board of each kind, and prints `KIND=PORT` of each.
"""

from __future__ import annotations

import socket
import sys
import uuid
from typing import Any

USER, PASSWORD = "hostler", "s3cr3t-pa55"
GUID = uuid.UUID("4c4c4544-0042-3510-8051-b4c04f4b4d32")
PRESENT_STATE = 0xD5
"""Completion code: not supported in the present state."""


def serve(address: str) -> None:
    from pyghmi.ipmi.bmc import Bmc

    class Board(Bmc):  # type: ignore[misc]
        """Does what it is asked."""

        state, reads_until_off = "on", 0

        def get_power_state(self) -> str:
            if self.reads_until_off > 1:
                self.reads_until_off -= 1
            elif self.reads_until_off:
                self.state = "off"
            return self.state

        def power_off(self) -> int | None:
            self.reads_until_off = 1
            return None

        def get_system_guid(self) -> uuid.UUID:
            return GUID

    class Slow(Board):
        def power_off(self) -> int | None:
            self.reads_until_off = 3
            return None

    class Liar(Board):
        def power_off(self) -> int | None:
            return None

    class Refuser(Board):
        def power_off(self) -> int | None:
            return PRESENT_STATE

    class RefuserOff(Refuser):
        state = "off"

    class Loser(Board):
        """Does what it is asked, and does not answer."""

        def control_chassis(self, *_: Any) -> None:
            self.power_off()

    class LiarLoser(Board):
        def control_chassis(self, *_: Any) -> None:
            pass

    class SilentAfter(Board):
        """Does what it is asked, and says no more about it."""

        def get_chassis_status(self, session: Any) -> None:
            if not self.reads_until_off:
                super().get_chassis_status(session)

    kinds = {
        "honest": Board,
        "slow": Slow,
        "lies": Liar,
        "refuses": Refuser,
        "off already": RefuserOff,
        "loses": Loser,
        "lies and loses": LiarLoser,
        "silent": SilentAfter,
        "read": Board,
    }
    boards = []
    for kind, board in kinds.items():
        port = free_port(address)
        boards.append(board({USER: PASSWORD}, port=port, address=address, bmcuuid=GUID))
        print(f"{kind}={port}", flush=True)
    # Its thread already waits, for the sockets that there were by then: the first is one of them.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as waker:
        waker.sendto(b"wake", (address, boards[0].port))
    print("ready", flush=True)
    Board.listen()


def free_port(address: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    serve(sys.argv[1])
