"""Addresses with the digest of a certificate: `http://HOST:PORT`, or `https://HOST:PORT#sha256:DIGEST`.

The digest is all that needs to be trusted there: the store says which process has which address.
"""

from __future__ import annotations

import hashlib
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp

if TYPE_CHECKING:
    from pathlib import Path

PIN = "sha256:"


def pin_of(cert: Path | None) -> str:
    """What the address of a server with that certificate ends in."""
    if cert is None:
        return ""
    text = cert.read_text(encoding="ascii")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)]
    return f"#{PIN}{hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()}"


def read_pinned(address: str) -> tuple[str, aiohttp.Fingerprint | None]:
    """The URL of an address, and the certificate that must be shown there. ValueError: the address does not say."""
    url, _, pinned = address.partition("#")
    if urlsplit(url).scheme == "http":
        return url, None
    return url, aiohttp.Fingerprint(bytes.fromhex(pinned.removeprefix(PIN)))
