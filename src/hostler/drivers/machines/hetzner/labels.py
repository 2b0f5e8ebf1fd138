"""The record of a machine, stored as labels of its Hetzner Cloud server.

The value of a label has at most 63 characters of a small alphabet. Text that fits is stored unchanged. Text that nearly
fits is stored with `_xx` for each other byte, so that people can read it. Other text is stored in base32, in pieces
under `key.0`, `key.1`, …. Every encoding is lossless.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Damaged, Invalid
from hostler.ports.machines import Label

if TYPE_CHECKING:
    from collections.abc import Mapping

OWNER, OURS = "managed-by", "hostler"
SELECTOR = f"{OWNER}={OURS}"
"""Selects all of Hostler's objects, of every control plane."""
VM_HASH = "hostler/id"
"""Digest of the virtual machine's id, short enough for a label selector."""
SNAPSHOT = "hostler/snapshot"
_TAG, _ODD = "hostler.tag/", "hostler.odd/"
_MOST = 63
_FITS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_TAG_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,48}[A-Za-z0-9])?")
_OTHER = re.compile(rb"[^A-Za-z0-9.-]")
_ESCAPE = re.compile(r"_([0-9a-f]{2})")


def encode_text(key: str, text: str) -> dict[str, str]:
    """Encode a text as one or several labels. Invalid: it is not valid Unicode."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise Invalid(f"label {key!r}: {text!r} is not valid Unicode") from None
    readable = _OTHER.sub(lambda found: b"_%02x" % found[0][0], data).decode()
    if not readable or (len(readable) <= _MOST and _FITS.fullmatch(readable)):
        return {key: readable}
    coded = _base32(data)
    return {f"{key}.{n}": coded[at : at + _MOST] for n, at in enumerate(range(0, len(coded), _MOST))}


def decode_text(labels: Mapping[str, str], key: str) -> str | None:
    """Return the text under a key; None: no such label. Damaged: another client changed it."""
    try:
        if key in labels:
            plain = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), labels[key])
            return plain.encode("latin-1").decode()
        pieces: list[str] = []
        while (piece := labels.get(f"{key}.{len(pieces)}")) is not None:
            pieces.append(piece)
        return _unbase32("".join(pieces)).decode() if pieces else None
    except ValueError:
        raise Damaged(f"label {key!r}: {labels.get(key) or labels.get(f'{key}.0')!r} cannot be read") from None


def vm_hash(vm: str) -> str:
    return hashlib.sha256(vm.encode()).hexdigest()[:32]


def server_name(vm: str) -> str:
    """Return the server name of a machine. It is unique in a project, so a machine cannot be created twice."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", vm):
        return f"hostler-{vm}"
    return f"hostler-x{vm_hash(vm)}"


def of_vm(vm: str) -> str:
    """Return the label selector of a virtual machine's objects."""
    return f"{SELECTOR},{VM_HASH}={vm_hash(vm)}"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a machine: everything that the server itself does not report."""

    label: Label
    tags: dict[str, str] = {}
    life: str = ""
    """`creating` until it is complete, `deleting` once its deletion began."""
    spec: str
    """Digest of its spec. The spec itself is stored on the node because it may be large."""
    shape: tuple[int, int, int]
    """CPUs, memory in MiB, disk in GiB: the part of the spec that is known without the node."""
    image: str = ""
    user: str = ""
    host_key: str = ""
    """Public key: the 32 bytes of an ed25519 key in base32."""
    resets: int = 0
    restored: int = 0
    restoring: int = 0
    """Number of a restore that began and has not ended; `restoring_to` is its snapshot."""
    restoring_to: str = ""
    snapshots: bool = False
    """It has, or may have, snapshots. Without this flag the driver does not list them."""
    home: str = ""
    """Id that its snapshots are stored under once it was retained, because another machine may use the original id."""
    retained: str = ""
    """Name that it is retained under; empty: it is in service."""
    retained_at: int = 0

    @property
    def key(self) -> str:
        """Id under which its snapshots, and its spec on the node, are stored."""
        return self.home or self.label.vm

    def labels(self) -> dict[str, str]:
        found = {OWNER: OURS, VM_HASH: vm_hash(self.key), "hostler/spec": self.spec}
        found["hostler/shape"] = "-".join(map(str, self.shape))
        for name in Label.__struct_fields__:
            found |= encode_text(f"hostler/{name}", getattr(self.label, name))
        for key in _TEXTS:
            if text := getattr(self, key):
                found |= encode_text(f"hostler/{key}", text)
        for key in _NUMBERS:
            if number := getattr(self, key):
                found[f"hostler/{key}"] = str(number)
        if self.snapshots:
            found["hostler/snapshots"] = "yes"
        return found | _tag_labels(self.tags)


def card_of(labels: Mapping[str, str]) -> Card | None:
    """Return the record in a server's labels. None: not Hostler's. Damaged: another client changed the labels."""
    if labels.get(OWNER) != OURS or VM_HASH not in labels:
        return None
    texts = {name: decode_text(labels, f"hostler/{name}") or "" for name in (*Label.__struct_fields__, *_TEXTS)}
    try:
        cpus, memory_mib, disk_gib = (int(part) for part in labels.get("hostler/shape", "").split("-"))
        numbers = {key: int(labels.get(f"hostler/{key}", "0")) for key in _NUMBERS}
    except ValueError:
        raise Damaged("labels of a server: hostler/shape or a number cannot be read") from None
    label = Label(**{name: texts.pop(name) for name in Label.__struct_fields__})
    if vm_hash(texts["home"] or label.vm) != labels[VM_HASH]:
        raise Damaged(
            f"labels of a server: hostler/vm is {label.vm!r}, hostler/home {texts['home']!r}; {VM_HASH} matches neither"
        )
    card = Card(
        label=label,
        tags=_tags(labels),
        spec=labels.get("hostler/spec", ""),
        shape=(cpus, memory_mib, disk_gib),
        snapshots="hostler/snapshots" in labels,
    )
    return msgspec.structs.replace(card, **texts, **numbers)


_TEXTS = ("life", "image", "user", "host_key", "restoring_to", "home", "retained")
_NUMBERS = ("resets", "restored", "restoring", "retained_at")


def snapshot_labels(card: Card, name: str) -> dict[str, str]:
    """Return the labels of an image that is a snapshot of a machine."""
    return {
        OWNER: OURS,
        VM_HASH: vm_hash(card.key),
        **encode_text("hostler/vm", card.label.vm),
        **encode_text(SNAPSHOT, name),
    }


def _tag_labels(tags: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    odd = 0
    for name, text in sorted(tags.items()):
        if _TAG_NAME.fullmatch(name):
            found |= encode_text(_TAG + name, text)
        else:
            # The label key cannot carry this name, so the pair is stored as JSON, always in base32 and in pieces.
            try:
                coded = _base32(msgspec.json.encode([name, text]))
            except UnicodeEncodeError:
                raise Invalid(f"tag {name!r}: {text!r} is not valid Unicode") from None
            found |= {f"{_ODD}{odd}.{n}": coded[at : at + _MOST] for n, at in enumerate(range(0, len(coded), _MOST))}
            odd += 1
    return found


def _tags(labels: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in labels:
        if key.startswith(_TAG):
            name = key.removeprefix(_TAG).partition(".")[0]
            found[name] = decode_text(labels, _TAG + name) or ""
        elif key.startswith(_ODD) and key.endswith(".0"):
            text = decode_text(labels, key.removesuffix(".0"))
            try:
                name, value = msgspec.json.decode(text or "", type=tuple[str, str])
            except msgspec.DecodeError:
                raise Damaged(f"label {key!r}: it cannot be read") from None
            found[name] = value
    return found


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def _unbase32(text: str) -> bytes:
    try:
        return base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def pack_key(public: str) -> str:
    """Return the 32 bytes of `ssh-ed25519 AAAA…` in base32, so that they fit into a label."""
    return _base32(base64.b64decode(public.split()[1])[-32:])


def unpack_key(packed: str) -> str:
    """Return the public key of `pack_key`'s result; empty: it is not a key."""
    try:
        raw = _unbase32(packed)
    except ValueError:
        return ""
    if len(raw) != 32:
        return ""
    blob = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + raw
    return f"ssh-ed25519 {base64.b64encode(blob).decode()}"
