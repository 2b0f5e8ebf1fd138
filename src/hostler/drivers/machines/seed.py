"""Passes a machine's identity to the guest, as files of QEMU's firmware channel or as a NoCloud disk for cloud-init.

Texts of users (names, keys, user-data) are stored in files, and as JSON where they are embedded in other text: JSON is
YAML, and no string can break out of it.
"""

from __future__ import annotations

import email.parser
import email.policy
import io
import json
import re
import secrets
from email.message import EmailMessage
from typing import Any, ClassVar

import msgspec

from hostler.errors import Invalid

SEED_BYTES = 64
HOST_KEY_KIND = "ssh-ed25519"
MERGE = "list(append)+dict(no_replace,recurse_list)+str()"
"""How cloud-init merges the user's configuration into Hostler's: lists are appended, Hostler's values stay."""

_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_ADDRESS = re.compile(r"[0-9a-fA-F:.]*(/[0-9]{1,3})?")
_INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_MIME = re.compile(r"\A(content-type|mime-version):", re.IGNORECASE)


class _Concealing(msgspec.Struct, frozen=True, kw_only=True):
    """A value with secrets: `repr` hides them, so no message and no log shows them."""

    concealed: ClassVar[frozenset[str]] = frozenset()

    def __repr__(self) -> str:
        shown = (
            f"{name}={'…' if name in self.concealed and getattr(self, name) else repr(getattr(self, name))}"
            for name in self.__struct_fields__
        )
        return f"{type(self).__name__}({', '.join(shown)})"


class HostKey(_Concealing, frozen=True, kw_only=True):
    """The key that proves a machine's identity."""

    concealed = frozenset(("private",))

    private: str
    """In OpenSSH's format, without a passphrase."""
    public: str
    """`ssh-ed25519 AAAA…`"""


class Identity(_Concealing, frozen=True, kw_only=True):
    """The identity of a machine. Invalid on construction: a text that could be parsed as something else."""

    concealed = frozenset(("host_key", "user_data", "seed"))

    instance: str
    """If it differs from that of the last boot, the machine is new or a clone, and first-boot work is done again."""
    hostname: str
    user: str
    host_key: str
    """The private key (`HostKey.private`)."""
    ssh_keys: tuple[str, ...] = ()
    user_data: str = ""
    network_config: str = ""
    """For cloud-init, instead of the generated configuration."""
    mac: str
    ip4: str = ""
    gw4: str = ""
    ip6: str = ""
    gw6: str = ""
    dns: str = ""
    """Name servers, separated by spaces."""
    seed: bytes = msgspec.field(default_factory=lambda: secrets.token_bytes(SEED_BYTES))
    """Seed of its random number generator."""

    def __post_init__(self) -> None:
        for name, pattern in (("instance", _INSTANCE), ("hostname", _HOSTNAME), ("user", _USER), ("mac", _MAC)):
            if not pattern.fullmatch(getattr(self, name)):
                raise Invalid(
                    f"identity of a machine: {name} is {getattr(self, name)!r}; it must match {pattern.pattern}"
                )
        for name in ("ip4", "gw4", "ip6", "gw6"):
            if not _ADDRESS.fullmatch(getattr(self, name)):
                raise Invalid(f"identity of a machine: {name} is {getattr(self, name)!r}, which is not an address")
        if not all(_ADDRESS.fullmatch(server) for server in self.dns.split(" ")):
            raise Invalid(f"identity of a machine: dns is {self.dns!r}; give addresses with one space between them")
        for key in self.ssh_keys:
            if _CONTROL.search(key) or not key.strip():
                raise Invalid(f"SSH key {key[:40]!r}: not a single line of text; give one key per entry")


def new_host_key() -> HostKey:
    """Return a new ed25519 key."""
    import asyncssh

    key = asyncssh.generate_private_key(HOST_KEY_KIND)
    return HostKey(
        private=key.export_private_key("openssh").decode(),
        public=key.export_public_key("openssh").decode().strip(),
    )


def public_part(private: str) -> str:
    """Return the public part of a host key. Invalid: it is not a key."""
    import asyncssh

    try:
        key = asyncssh.import_private_key(private)
    except asyncssh.KeyImportError as error:
        raise Invalid(f"host key: cannot be read: {error}; create another one") from None
    return key.export_public_key("openssh").decode().strip()


def hostname_of(name: str, otherwise: str = "vm") -> str:
    """Return a host name derived from a machine's name, which may be any text, or from `otherwise` if that is empty."""
    for text in (name, otherwise):
        plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].strip("-")
        if plain:
            return plain
    return "vm"


def firmware_files(identity: Identity) -> dict[str, bytes]:
    """Return the files `opt/hostler/…` by base name. Empty ones are left out; the guest does without them."""
    texts = {
        "instance": identity.instance,
        "hostname": identity.hostname,
        "user": identity.user,
        "mac": identity.mac,
        "ip4": identity.ip4,
        "gw4": identity.gw4,
        "ip6": identity.ip6,
        "gw6": identity.gw6,
        "dns": identity.dns,
        "host_key": identity.host_key,
        "user_data": identity.user_data,
    }
    files = {name: text.encode() for name, text in texts.items() if text}
    # Never empty, so that a removed key is also removed in the guest.
    files["authorized_keys"] = "".join(f"{line}\n" for line in ("# from Hostler", *identity.ssh_keys)).encode()
    if identity.seed:
        files["seed"] = identity.seed
    return files


def nocloud_iso(identity: Identity) -> bytes:
    """Return a disk image for cloud-init's NoCloud source."""
    import pycdlib

    disk = pycdlib.PyCdlib()
    disk.new(interchange_level=3, vol_ident="cidata", joliet=3, rock_ridge="1.09")
    for number, (name, content) in enumerate(nocloud_files(identity).items()):
        disk.add_fp(
            io.BytesIO(content),
            len(content),
            f"/FILE{number}.;1",
            rr_name=name,
            joliet_path=f"/{name}",
            file_mode=0o100400,
        )
    whole = io.BytesIO()
    disk.write_fp(whole)
    disk.close()
    return whole.getvalue()


def nocloud_files(identity: Identity) -> dict[str, bytes]:
    """Return the files on that disk."""
    meta = {"instance-id": identity.instance, "local-hostname": identity.hostname}
    network = identity.network_config.encode() or _json(network_config(identity))
    return {"meta-data": _json(meta), "user-data": _user_data(identity), "network-config": network}


def cloud_config(identity: Identity) -> dict[str, Any]:
    """Return Hostler's part of the cloud-init configuration."""
    return {
        "hostname": identity.hostname,
        "preserve_hostname": False,
        "users": [
            {
                "name": identity.user,
                "ssh_authorized_keys": list(identity.ssh_keys),
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "shell": "/bin/bash",
                "lock_passwd": True,
            }
        ],
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": identity.host_key, "ed25519_public": public_part(identity.host_key)},
    }


def network_config(identity: Identity) -> dict[str, Any]:
    """Return the configuration in version 2. The card is matched by its MAC, because its name depends on the system."""
    card: dict[str, Any] = {"match": {"macaddress": identity.mac}}
    addresses = [address for address in (identity.ip4, identity.ip6) if address]
    if addresses:
        routes = [("0.0.0.0/0", identity.gw4), ("::/0", identity.gw6)]
        card |= {
            "dhcp4": False,
            "addresses": addresses,
            "routes": [{"to": to, "via": via} for to, via in routes if via],
        }
    else:
        card["dhcp4"] = True
    if identity.dns:
        card["nameservers"] = {"addresses": identity.dns.split()}
    return {"version": 2, "ethernets": {"primary": card}}


def _user_data(identity: Identity) -> bytes:
    """Return Hostler's part followed by the user's, of any kind: cloud-init detects it by its first line."""
    ours = b"#cloud-config\n" + _json(cloud_config(identity))
    if not identity.user_data:
        return ours
    whole = EmailMessage(email.policy.SMTP.clone(linesep="\n"))
    whole["MIME-Version"] = "1.0"
    whole.make_mixed()
    whole.attach(_part(ours.decode(), "cloud-config"))
    whole.attach(_users_part(identity.user_data))
    return whole.as_bytes()


def _users_part(text: str) -> EmailMessage:
    if _MIME.match(text):  # already of several parts
        return email.parser.Parser(EmailMessage, policy=email.policy.default).parsestr(text)
    part = _part(text, "plain")
    part["X-Merge-Type"] = MERGE
    return part


def _part(text: str, kind: str) -> EmailMessage:
    part = EmailMessage(email.policy.SMTP.clone(linesep="\n"))
    # Not as text: that would normalize line ends, and a script may need its own.
    part.set_content(text.encode(), maintype="text", subtype=kind, cte="base64")
    part.set_param("charset", "utf-8")
    return part


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
