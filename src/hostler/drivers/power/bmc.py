"""Management boards (BMCs): request power-off, and trust only the state that is read back.

A board that speaks Redfish gets the request `ForceOff`. Answers are bounded in time and size, redirects are not
followed, and an answer about another system is discarded.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import msgspec
from yarl import URL

from hostler.errors import HostlerError, Invalid, Unavailable, Uncertain
from hostler.settings.password import read_private_password

if TYPE_CHECKING:
    from collections.abc import Callable

OFF = "off"
"""The only state that counts: a system that is powering off is not off."""
READS = 2
"""Consecutive reads that must say off.

A board that has just restarted may report a system as off that it has not detected yet.
"""
SHOWN = 60
"""Maximum number of characters of a foreign text that are shown."""


class Bmc(Protocol):
    """A management board of one system. Each verb ends within `within` seconds."""

    name: str
    """Its address, without secrets."""

    async def read_state(self, within: float) -> str:
        """Return the power state that the board reports now, `OFF` or another one. Unavailable: it is not known."""

    async def request_off(self, within: float) -> None:
        """Request immediate power-off. Unavailable: it was not done. Uncertain: it may have been done."""


class BmcPower:
    """`ports.power.Power` by one board.

    Read the state, request the power-off, then read until the board reports off. Its answer to the request does not
    count.
    """

    def __init__(
        self,
        board: Bmc,
        *,
        timeout: float = 60.0,
        request_within: float = 10.0,
        every: float = 1.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.board = board
        self._timeout, self._request_within, self._every, self._tell = timeout, request_within, every, tell

    @property
    def system(self) -> str:
        """Return the address of the system."""
        return self.board.name.rstrip("/")

    async def read_state(self) -> str:
        """Return the power state; nothing is changed. Unavailable: it is not known."""
        return await self.board.read_state(self._request_within)

    async def switch_off(self, node: str) -> bool:
        """Switch the node off. Unavailable: nothing was requested, or refused. Uncertain: off was not confirmed."""
        try:
            await self._switch_off()
        except (Unavailable, Uncertain) as error:
            what = f"power of node {node}: {error}"
            self._tell(what)
            raise type(error)(what) from None
        self._tell(f"power of node {node}: off, as read back from {self.board.name}")
        return True

    async def _switch_off(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        await self.board.read_state(min(self._request_within, self._timeout))
        refused: Unavailable | None = None
        seen = f"{self.board.name} accepted the request"
        try:
            await self.board.request_off(min(self._request_within, max(deadline - loop.time(), 0.01)))
        except Unavailable as error:
            refused = error  # some boards refuse it for a system that is already off
        except Uncertain as error:
            seen = str(error)
        reads = 0
        while (left := deadline - loop.time()) > 0:
            try:
                state = await self.board.read_state(min(self._request_within, left))
            except Unavailable as error:
                reads, seen = 0, str(error)
            else:
                reads = reads + 1 if state == OFF else 0
                if reads == READS:
                    return
                seen = f"{self.board.name} says {state}"
                if refused is not None and state != OFF:
                    raise refused
            await asyncio.sleep(max(min(self._every, deadline - loop.time()), 0.0))
        if refused is not None:
            raise refused
        raise Uncertain(f"not read as off within {self._timeout:g} s, last: {seen}; the node may be on or off")


def show(text: str) -> str:
    """Return text from a board in a form that is safe for a log."""
    plain = "".join(each if each.isprintable() else "?" for each in text[: SHOWN + 1])
    return plain if len(plain) <= SHOWN else f"{plain[:SHOWN]}…"


MAX_ANSWER = 1024 * 1024
CHUNK = 64 * 1024
RESET = "#ComputerSystem.Reset"
FORCE_OFF = "ForceOff"


class RedfishAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a system, how its board is trusted, and how the system is identified."""

    host: str
    port: int
    path: str
    """Path of the system, such as /redfish/v1/Systems/1."""
    user: str
    password_file: str
    tls: bool = True
    ca: str | None = None
    fingerprint: bytes | None = None
    """The SHA-256 of the board's certificate, which is then the only trusted one."""
    verify: bool = True
    uuid: str | None = None
    serial: str | None = None


class _Action(msgspec.Struct):
    target: str | None = None
    allowed: list[str] | None = msgspec.field(default=None, name="ResetType@Redfish.AllowableValues")


class _System(msgspec.Struct):
    """The fields of a ComputerSystem that are read."""

    id: str | None = msgspec.field(default=None, name="@odata.id")
    state: str | None = msgspec.field(default=None, name="PowerState")
    uuid: str | None = msgspec.field(default=None, name="UUID")
    serial: str | None = msgspec.field(default=None, name="SerialNumber")
    actions: dict[str, Any] = msgspec.field(default_factory=dict, name="Actions")


class RedfishBmc:
    """`drivers.power.bmc.Bmc` of one system. The password file is read at each use, so it may be changed."""

    def __init__(self, address: RedfishAddress) -> None:
        self._address = address
        host = f"[{address.host}]" if ":" in address.host else address.host
        scheme, place = ("https", "redfish") if address.tls else ("http", "redfish+http")
        self._base = f"{scheme}://{host}:{address.port}"
        self.name = f"{place}://{host}:{address.port}{address.path}"

    async def read_state(self, within: float) -> str:
        """Return the power state. Unavailable: no answer, or an answer about another system."""
        state = (await self._system(within)).state
        if state is None:
            raise Unavailable(f"{self.name}: reports no PowerState; name the path of a system")
        return OFF if state == "Off" else show(state)

    async def request_off(self, within: float) -> None:
        """Request `ForceOff`. Unavailable: refused, or not sent. Uncertain: the answer was lost, or is inconclusive."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        target = self._target(await self._system(within))
        body = msgspec.json.encode({"ResetType": FORCE_OFF})
        status, _ = await self._ask("POST", target, max(end - loop.time(), 0.01), body)
        if 200 <= status < 300:
            return
        what = f"{self.name}: answers {status} to {FORCE_OFF}"
        if status >= 500 or status == 408:
            raise Uncertain(f"{what}; it may have been done")
        advice = "give the user permission to control power" if status in (401, 403) else "check the board"
        raise Unavailable(f"{what}, so it was refused; {advice}")

    # The system

    async def _system(self, within: float) -> _System:
        status, data = await self._ask("GET", self._address.path, within)
        if status in (401, 403):
            raise Unavailable(f"{self.name}: refuses the credentials ({status}); correct the user or password_file")
        if status == 404:
            raise Unavailable(f"{self.name}: no such system (404); correct the path, see /redfish/v1/Systems")
        if 300 <= status < 400:
            raise Unavailable(f"{self.name}: redirects ({status}), which is not followed; correct the URL")
        if status != 200:
            raise Unavailable(f"{self.name}: answers {status}; check the board")
        try:
            system = msgspec.json.decode(data, type=_System)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise Unavailable(f"{self.name}: the answer is not a ComputerSystem; correct the path") from None
        self._check_identity(system)
        return system

    def _check_identity(self, system: _System) -> None:
        address = self._address
        if system.id is not None and system.id.rstrip("/") != address.path.rstrip("/"):
            raise Unavailable(f"{self.name}: answers for another system, {show(system.id)}; correct the path")
        for what, ours, theirs in (
            ("uuid", (address.uuid or "").casefold(), (system.uuid or "").strip().casefold()),
            ("serial", address.serial or "", (system.serial or "").strip()),
        ):
            if ours and ours != theirs:
                found = f"has {what} {show(theirs)!r}" if theirs else f"reports no {what}"
                raise Unavailable(f"{self.name}: {found}, not {ours!r}; correct the URL: this is another system")

    def _target(self, system: _System) -> str:
        """Return the path for reset requests."""
        own = f"{self._address.path.rstrip('/')}/Actions/ComputerSystem.Reset"
        try:
            action = msgspec.convert(system.actions.get(RESET, {}), _Action)
        except msgspec.ValidationError:
            action = _Action()
        if action.allowed is not None and FORCE_OFF not in action.allowed:
            raise Unavailable(f"{self.name}: does not offer {FORCE_OFF}; use power_command for this node")
        if action.target is not None and action.target.rstrip("/") != own:
            raise Unavailable(f"{self.name}: expects resets at {show(action.target)}, elsewhere; correct the path")
        return action.target or own

    # Requests

    async def _ask(self, method: str, path: str, within: float, body: bytes | None = None) -> tuple[int, bytes]:
        """Return the status, and the body for a read.

        Unavailable: not sent, or a read. Uncertain: the answer was lost.
        """
        try:
            async with asyncio.timeout(within):
                password, trust = await asyncio.to_thread(self._secrets)
                connector = aiohttp.TCPConnector(ssl=trust, force_close=True)
                async with aiohttp.ClientSession(
                    connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
                ) as session:
                    session._retry_connection = False
                    return await self._answer(session, method, path, body, password)
        except HostlerError:
            raise
        except (aiohttp.ClientConnectorError, aiohttp.ServerFingerprintMismatch) as error:
            raise Unavailable(self._connection_advice(error)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:  # includes TimeoutError
            why = f"no answer within {within:g} s" if isinstance(error, TimeoutError) else type(error).__name__
            if body is None:
                raise Unavailable(f"{self.name}: does not answer correctly ({why}); check the board") from None
            raise Uncertain(f"{self.name}: the answer to {FORCE_OFF} is lost ({why}); it may have been done") from None

    async def _answer(
        self, session: aiohttp.ClientSession, method: str, path: str, body: bytes | None, password: str
    ) -> tuple[int, bytes]:
        token = base64.b64encode(f"{self._address.user}:{password}".encode()).decode()
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Authorization": f"Basic {token}",
            "Cache-Control": "no-cache",
            "OData-Version": "4.0",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = URL(self._base + path, encoded=True)
        async with session.request(method, url, headers=headers, data=body, allow_redirects=False) as answer:
            data = bytearray()
            if body is None and answer.status == 200:
                async for chunk in answer.content.iter_chunked(CHUNK):
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise Unavailable(f"{self.name}: answers more than {MAX_ANSWER} bytes; correct the path")
            return answer.status, bytes(data)

    def _secrets(self) -> tuple[str, ssl.SSLContext | aiohttp.Fingerprint | bool]:
        """Return the password, and how the board is trusted. Unavailable: a file cannot be used."""
        address = self._address
        try:
            password = read_private_password(address.password_file, self.name)
        except Invalid as error:
            raise Unavailable(str(error)) from None
        if address.fingerprint is not None:
            return password, aiohttp.Fingerprint(address.fingerprint)
        if not address.verify or not address.tls:
            return password, False
        try:
            return password, ssl.create_default_context(cafile=address.ca)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or error
            what = f"{self.name}: ca {address.ca!r} cannot be used ({reason}); name a PEM file of certificates"
            raise Unavailable(what) from None

    def _connection_advice(self, error: Exception) -> str:
        advice = "compare it with the board's, and correct fingerprint"
        if isinstance(error, aiohttp.ServerFingerprintMismatch):
            return f"{self.name}: the certificate is not the one that fingerprint names; {advice}"
        cause = getattr(error, "certificate_error", None)
        if cause is not None:
            why = getattr(cause, "verify_message", "") or type(cause).__name__
            return f"{self.name}: the certificate is not trusted ({why}); set ca, or fingerprint"
        reason = getattr(error, "os_error", None)
        why = getattr(reason, "strerror", None) or type(reason or error).__name__
        return f"{self.name}: cannot be reached ({str(why).lower()}); check the address and the network"
