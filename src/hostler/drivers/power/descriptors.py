"""The descriptors of power switches: how a URL opens each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hostler.errors import Invalid
from hostler.kit.host import is_loopback
from hostler.ports.url import PowerDriver, address

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

    from hostler.ports.power import Power
    from hostler.ports.url import Options

WHAT = "power URL"
PORTS = {"redfish": 443, "redfish+http": 80, "ipmi": 623}
CIPHERS = (3, 8, 12, 17)
"""The cipher suites of IPMI that authenticate, check integrity and encrypt."""
PRIVILEGES = ("ADMINISTRATOR", "OPERATOR")
SHA256 = 32
"""Bytes."""
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?|[0-9a-f:.]{2,45}")


def _redfish(url: SplitResult, options: Options, timeout: float, tell: Callable[[str], None]) -> Power | None:
    """`redfish://user@host[:port]/redfish/v1/Systems/ID?password_file=…`; `redfish+http` is not encrypted."""
    from hostler.drivers.power import BmcPower, RedfishAddress, RedfishBmc

    user, file = _credentials(url, options)
    host, port = address(url, PORTS[url.scheme], WHAT)
    tls, insecure = url.scheme == "redfish", options.flag("insecure") if url.scheme != "redfish" else False
    trust = (options.text("ca"), options.text("fingerprint"), options.flag("verify", default=True)) if tls else ()
    ca, fingerprint, verify = trust or (None, None, True)
    if (ca is not None) + (fingerprint is not None) + (not verify) > 1:
        raise Invalid(f"{WHAT} {url.scheme}://…: give one of ca, fingerprint and verify=false")
    if ca is not None and not ca.startswith("/"):
        raise Invalid(f"{WHAT} {url.scheme}://…: the option 'ca' must be an absolute path")
    uuid, serial = options.text("uuid"), options.text("serial")
    if not url.path.strip("/"):
        raise Invalid(f"{WHAT} {url.scheme}://…: the path after the host must name the system: /redfish/v1/Systems/ID")
    if not _HOST.fullmatch(host):
        return None
    if not tls and not insecure and not is_loopback(host):
        what = "the password would be sent in clear text"
        raise Invalid(f"{WHAT} {url.scheme}://…: {what}; use redfish://, or set insecure=true")
    board = RedfishBmc(
        RedfishAddress(
            host=host,
            port=port,
            path=url.path,
            user=user,
            password_file=file,
            tls=tls,
            ca=ca,
            fingerprint=None if fingerprint is None else _fingerprint(fingerprint),
            verify=verify,
            uuid=uuid,
            serial=serial,
        )
    )
    return BmcPower(board, timeout=timeout, tell=tell)


def _ipmi(url: SplitResult, options: Options, timeout: float, tell: Callable[[str], None]) -> Power | None:
    """`ipmi://user@host[:port]?password_file=…`."""
    from hostler.drivers.power import BmcPower, IpmiAddress, IpmiBmc

    user, file = _credentials(url, options)
    host, port = address(url, PORTS[url.scheme], WHAT)
    cipher = options.text("cipher")
    if cipher is not None and cipher not in map(str, CIPHERS):
        known = ", ".join(map(str, CIPHERS))
        raise Invalid(f"{WHAT} ipmi://…: the option 'cipher' must be one of {known}: others do not protect the session")
    privilege = (options.text("privilege") or PRIVILEGES[0]).upper()
    if privilege not in PRIVILEGES:
        raise Invalid(f"{WHAT} ipmi://…: the option 'privilege' must be administrator or operator")
    uuid = options.text("uuid")
    if url.path.strip("/"):
        raise Invalid(f"{WHAT} ipmi://…: no path is allowed after the host")
    if not _HOST.fullmatch(host):
        return None
    board = IpmiBmc(
        IpmiAddress(
            host=host,
            port=port,
            user=user,
            password_file=file,
            cipher=None if cipher is None else int(cipher),
            privilege=privilege,
            uuid=uuid,
        )
    )
    return BmcPower(board, timeout=timeout, tell=tell)


def _credentials(url: SplitResult, options: Options) -> tuple[str, str]:
    """Return user and password file.

    A password in the URL is refused: it would leak into the file and the environment.
    """
    subject = f"{WHAT} {url.scheme}://…"
    if url.password is not None or options.text("password") is not None:
        raise Invalid(f"{subject}: must not contain a password; write it to a file, and give password_file")
    user, file = unquote(url.username or ""), options.text("password_file")
    if not user or not user.isprintable() or ":" in user:
        raise Invalid(f"{subject}: needs a user before the host, without a colon: {url.scheme}://USER@HOST")
    if file is None or not file.startswith("/") or "\0" in file:
        raise Invalid(f"{subject}: the option 'password_file' must be given as an absolute path")
    return user, file


def _fingerprint(text: str) -> bytes:
    try:
        digest = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        digest = b""
    if len(digest) != SHA256:
        raise Invalid(f"{WHAT} redfish://…: the option 'fingerprint' must be a SHA-256 in hexadecimal, 64 digits")
    return digest


REDFISH = PowerDriver(about="a management board that speaks Redfish", open=_redfish)
REDFISH_HTTP = PowerDriver(about="the same without TLS; for loopback and trusted networks", open=_redfish)
IPMI = PowerDriver(about="a management board that speaks IPMI", open=_ipmi)
