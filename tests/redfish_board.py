"""A stand-in for a management board that speaks Redfish over HTTP, honest or not."""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from typing import Any

SYSTEM = "/redfish/v1/Systems/1"
RESET = f"{SYSTEM}/Actions/ComputerSystem.Reset"


class RedfishBoardStandIn:
    """One system. `faults` holds what it does to requests, by method; "" is honest."""

    def __init__(self) -> None:
        self.state = "On"
        self.coming: list[str] = []
        """States of the reads after a request that was obeyed; the last one stays."""
        self.obeys = True
        self.system: dict[str, Any] = {
            "@odata.id": SYSTEM,
            "UUID": "4C4C4544-0042-3510-8051-B4C04F4B4D32",
            "SerialNumber": "SN-1",
            "Actions": {"#ComputerSystem.Reset": {"target": RESET}},
        }
        self.faults: dict[str, str | bytes] = {}
        self.faults_after_reset: dict[str, str | bytes] = {}
        self.system_after_reset: dict[str, Any] = {}
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        self._reset = False
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> RedfishBoardStandIn:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._server.wait_closed()

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def resets(self) -> list[bytes]:
        return [body for method, path, _, body in self.asked if (method, path) == ("POST", RESET)]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split()
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append((method, path, headers, body))
            fault = (self.faults_after_reset if self._reset else self.faults).get(method, "")
            answer = self._answer(method, path, str(fault) if isinstance(fault, str) else "")
            if fault == "hangs":
                await reader.read()
            elif fault == "drips":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n")
                while not reader.at_eof():
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.02)
            elif fault != "closes":
                writer.write(fault if isinstance(fault, bytes) else answer)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

    def _answer(self, method: str, path: str, fault: str) -> bytes:
        """Whether it answers or not, this is what it does."""
        if method == "POST" and path == RESET:
            self._reset = True
            if self.obeys:
                self.coming = self.coming or ["Off"]
            status, body = (fault if fault.isdecimal() else "204"), b""
        elif path.rstrip("/") == SYSTEM:
            if self.coming:
                self.state = self.coming.pop(0) if len(self.coming) > 1 else self.coming[0]
            told = self.system | (self.system_after_reset if self._reset else {})
            status, body = (
                (fault if fault.isdecimal() else "200"),
                json.dumps({"PowerState": self.state, **told}).encode(),
            )
        else:
            status, body = "404", b"{}"
        extra = f"Location: http://127.0.0.1:{self.port}/elsewhere\r\n" if status.startswith("3") else ""
        return f"HTTP/1.1 {status} x\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body
