"""Checks of the certificates on this host: key pair, validity and names."""

from __future__ import annotations

import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from cryptography import x509

from hostler.kit.host import WILDCARDS
from hostler.ports.finding import Finding, Level
from hostler.settings.value import split_address

if TYPE_CHECKING:
    from hostler.settings import Settings

SOON = 14
"""Days before expiry from which a warning is given."""
DAY = 86400.0
OF = "certificate"


def certificates(settings: Settings) -> list[Finding]:
    """Return findings about the server's certificate, and about those for a store with TLS."""
    found = []
    if settings.tls_cert is not None and settings.tls_key is not None:
        addresses = [settings.listen, settings.agent_listen]
        found += _examine(settings.tls_cert, settings.tls_key, [split_address(each)[0] for each in addresses])
    parts = urlsplit(settings.store)
    if parts.scheme == "etcds":
        given = {name: Path(values[0]) for name, values in parse_qs(parts.query).items()}
        if "ca" in given:
            found += _examine(given["ca"], None, [])
        if "cert" in given and "key" in given:
            found += _examine(given["cert"], given["key"], [])
    return found


def _examine(cert: Path, key: Path | None, hosts: list[str]) -> list[Finding]:
    """Check one certificate; `hosts` are the addresses at which it is presented."""
    try:
        first = x509.load_pem_x509_certificates(cert.read_bytes())[0]
    except OSError as error:
        return [
            Finding(
                OF,
                Level.FAIL,
                f"{cert} cannot be read: {(error.strerror or str(error)).lower()}",
                "check its path and permissions",
            )
        ]
    except ValueError:
        return [Finding(OF, Level.FAIL, f"{cert} is not a certificate", "name a file in PEM format")]
    if key is not None and (why := _pair_problem(cert, key)):
        return [Finding(OF, Level.FAIL, f"{cert} and {key}: {why}", "name the key that the certificate was issued for")]
    begins, ends = first.not_valid_before_utc.timestamp(), first.not_valid_after_utc.timestamp()
    now, until = time.time(), f"{first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    renew = "replace it, then send SIGHUP to the processes that use it, or restart them"
    if now >= ends:
        return [Finding(OF, Level.FAIL, f"{cert} expired at {until}", renew)]
    if now < begins:
        since = f"{first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
        return [Finding(OF, Level.FAIL, f"{cert} is valid from {since} on", "check the clock")]
    names = _names(first)
    missing = [
        host for host in dict.fromkeys(hosts) if host not in (*names, *WILDCARDS, *WILDCARDS.values(), "localhost")
    ]
    shown = f" for {', '.join(names)}" if names else ""
    found = [
        Finding(
            OF, Level.WARN, f"{cert}{shown}: not valid for {host}, where it is presented", f"issue one for {host} too"
        )
        for host in missing
    ]
    if ends - now < SOON * DAY:
        return [*found, Finding(OF, Level.WARN, f"{cert} expires at {until}", renew)]
    return found or [Finding(OF, Level.OK, f"{cert}{shown}, until {until}")]


def _pair_problem(cert: Path, key: Path) -> str:
    """Return why certificate and key cannot be used together; empty: they can."""
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is that of another certificate"
        return (error.reason or str(error)).replace("_", " ").lower()
    except OSError as error:
        return f"cannot be read: {(error.strerror or str(error)).lower()}"
    return ""


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
