"""Addresses with the digest of a certificate: `http://HOST:PORT`, or `https://HOST:PORT#sha256:DIGEST`.

The digest is all that the client has to trust: the store vouches for the address of each process.
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
    """Return the suffix of the address of a server with that certificate."""
    if cert is None:
        return ""
    text = cert.read_text(encoding="ascii")
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = text[text.index(begin) : text.index(end) + len(end)]
    return f"#{PIN}{hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()}"


def read_pinned(address: str) -> tuple[str, aiohttp.Fingerprint | None]:
    """Return the URL of an address and the certificate that the server must present. ValueError: it has no digest."""
    url, _, pinned = address.partition("#")
    if urlsplit(url).scheme == "http":
        return url, None
    return url, aiohttp.Fingerprint(bytes.fromhex(pinned.removeprefix(PIN)))
