"""A management board that speaks IPMI 2.0, through `ipmitool`. The tool gets the password as the name of a file."""

from __future__ import annotations

import asyncio

import msgspec

from hostler.drivers.power.bmc import OFF, show
from hostler.drivers.power.program import Ended, describe_end, run_program
from hostler.errors import Invalid, Unavailable, Uncertain
from hostler.settings.password import read_private_password

STATES = {"Chassis Power is on": "on", "Chassis Power is off": OFF}
TAKEN = "Chassis Power Control: Down/Off"
REFUSED = "Set Chassis Power Control to Down/Off failed"
GUID = "System GUID"


class IpmiAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a board, and the account to use."""

    host: str
    port: int
    user: str
    password_file: str
    cipher: int | None = None
    """The cipher suite; None: the strongest that both the tool and the board support."""
    privilege: str = "ADMINISTRATOR"
    uuid: str | None = None
    """The system's GUID, as `ipmitool mc guid` shows it."""


class IpmiBmc:
    """`drivers.power.bmc.Bmc` over the network (RMCP+)."""

    def __init__(self, address: IpmiAddress, *, program: str = "ipmitool") -> None:
        self._address, self._program = address, program
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.name = f"ipmi://{host}:{address.port}"

    async def read_state(self, within: float) -> str:
        """Return the power state. Unavailable: no answer, or an answer of another system."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        if self._address.uuid is not None:
            ended = await self._run("mc", "guid", within=within)
            found = {line.partition(":")[2].strip().casefold() for line in ended.lines if line.startswith(GUID)}
            if ended.status != 0 or len(found) != 1:
                raise Unavailable(self._failure("mc guid", ended, within))
            if found != {self._address.uuid.casefold()}:
                theirs = show(found.pop())
                what = f"{self.name}: has uuid {theirs!r}, not {self._address.uuid!r}"
                raise Unavailable(f"{what}; correct the URL: this is another system")
        ended = await self._run("chassis", "power", "status", within=max(end - loop.time(), 0.01))
        states = {STATES[line] for line in ended.lines if line in STATES}
        if ended.status != 0 or len(states) != 1:
            raise Unavailable(self._failure("chassis power status", ended, within))
        return states.pop()

    async def request_off(self, within: float) -> None:
        """Request power-off. Unavailable: the board refused. Uncertain: the tool does not confirm that it accepted."""
        ended = await self._run("chassis", "power", "off", within=within)
        if ended.status == 0 and TAKEN in ended.lines:
            return
        refusal = next((line for line in ended.lines if line.startswith(REFUSED)), None)
        if refusal is not None:
            raise Unavailable(f"{self.name}: {show(refusal)}; check the board")
        raise Uncertain(self._failure("chassis power off", ended, within))

    async def _run(self, *command: str, within: float) -> Ended:
        """Run ipmitool. Unavailable: it was not run."""
        address = self._address
        try:
            # The tool reads the file itself, and would accept one that all users can read.
            await asyncio.to_thread(read_private_password, address.password_file, self.name)
        except Invalid as error:
            raise Unavailable(str(error)) from None
        words = [self._program, "-I", "lanplus", "-H", address.host, "-p", str(address.port), "-U", address.user]
        words += ["-f", address.password_file, "-L", address.privilege]
        words += [] if address.cipher is None else ["-C", str(address.cipher)]
        try:
            return await run_program([*words, *command], timeout=within)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            what = f"{self.name}: {self._program} cannot be started: {why.lower()}; install ipmitool"
            raise Unavailable(what) from None

    def _failure(self, command: str, ended: Ended, within: float) -> str:
        end = describe_end(ended.status, within)
        said = f" ({show(ended.last_line)})" if ended.lines else ""
        return f"{self.name}: ipmitool {command} {end}{said}; check address, user, password_file and cipher"
