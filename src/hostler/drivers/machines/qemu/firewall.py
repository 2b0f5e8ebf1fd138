"""Rules of the host's packet filter (nftables), where it is there and we may set them.

One table per purpose, named after the place (and the machine), so that whoever comes later knows whose it is. Setting a
table again replaces it in one step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.privileges import NET_ADMIN, has_capabilities
from hostler.drivers.machines.qemu.subprocess import end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

WITHIN = 30.0


def find_nft() -> str | None:
    """The command, wherever administrators' commands are."""
    return shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def why_not() -> str:
    """Why no rules can be set; empty: they can."""
    if not has_capabilities(NET_ADMIN):
        return "that takes CAP_NET_ADMIN"
    return "" if find_nft() else "nft is not installed"


def table_name(place: str, number: int | None = None) -> str:
    """Of a place, or of one of its machines."""
    digest = hashlib.sha256(place.encode()).hexdigest()[:12]
    return f"hostler_{digest}" if number is None else f"hostler_{digest}_{number}"


def loopback_rules(table: str, uids: range, folder: Path | None = None) -> str:
    """Whoever runs as one of `uids` opens no connection to this host, by whichever of its addresses; DNS excepted.

    Without connection tracking, which a host may not want: what belongs to a connection that was opened from the other
    side has other flags. `folder`: without which the rules are nobody's any more (`abandoned`).
    """
    who = f"meta skuid {uids[0]}-{uids[-1]} oifname lo"
    return _replacing(
        "inet",
        table,
        [
            *_comment(folder),
            "chain output {",
            "type filter hook output priority 0; policy accept;",
            f"{who} meta l4proto {{ tcp, udp }} th dport 53 accept",
            f"{who} tcp flags & (syn | ack) == syn reject with tcp reset",
            f"{who} meta l4proto != tcp reject",
            "}",
        ],
    )


def guest_rules(table: str, tap: str, mac: str, addresses: Sequence[IPv6Address]) -> str:
    """What may come out of `tap`: IPv6 from its own addresses, and nothing that only routers and servers say."""
    sources = ", ".join(str(address) for address in (*addresses, IPv6Address("::")))
    own = [f"icmpv6 type nd-neighbor-advert @th,64,128 {int(address):#x} accept" for address in addresses]
    return _replacing(
        "netdev",
        table,
        [
            "chain guest {",
            f"type filter hook ingress device {tap} priority 0; policy drop;",
            f"ether saddr != {mac} drop",
            f"ip6 saddr != {{ {sources} }} drop",
            *own,
            "icmpv6 type { nd-neighbor-advert, nd-router-advert, nd-redirect } drop",
            "udp sport 547 drop",
            "meta protocol ip6 accept",
            "}",
        ],
    )


async def apply(rules: str) -> str:
    """Set them, all or none; why it could not be done, or nothing."""
    return (await _nft("-f", "-", said=rules))[1]


async def remove(family: str, tables: Iterable[str]) -> None:
    """Take tables away, if they are there."""
    lines = [f"table {family} {name}\ndelete table {family} {name}\n" for name in tables]
    if lines:
        await _nft("-f", "-", said="".join(lines))


async def machine_tables(place: str) -> dict[int, str]:
    """The tables of the machines of a place, by number."""
    answer, _ = await _nft("-j", "list", "tables")
    prefix, found = table_name(place) + "_", {}
    for item in json.loads(answer or "{}").get("nftables", ()):
        name = item.get("table", {}).get("name", "")
        if name.startswith(prefix) and name[len(prefix) :].isdecimal():
            found[int(name[len(prefix) :])] = name
    return found


async def abandoned(family: str = "inet") -> list[str]:
    """Tables of places whose folder is gone: somebody deleted it, and never came back to tell."""
    answer, _ = await _nft("-j", "list", "tables", family)
    found = []
    for item in json.loads(answer or "{}").get("nftables", ()):
        name = item.get("table", {}).get("name", "")
        if re.fullmatch(r"hostler_[0-9a-f]{12}", name):
            said = re.search(r'comment "([0-9]+) (/[^"]*)"', (await _nft("list", "table", family, name))[0])
            if said and int(said[1]) == _mounts() and not await asyncio.to_thread(os.path.exists, said[2]):
                found.append(name)
    return found


def _comment(folder: Path | None) -> list[str]:
    """Whose a table is, where that can be written; in other namespaces a path may mean something else."""
    text = f"{_mounts()} {folder}"
    usable = folder is not None and len(text.encode()) < 128 and text.isprintable() and not set(text) & set('"\\')
    return [f'comment "{text}"'] if usable else []


def _mounts() -> int:
    return os.stat("/proc/self/ns/mnt").st_ino


def _replacing(family: str, table: str, lines: Sequence[str]) -> str:
    inside = "\n".join(lines)
    return f"table {family} {table}\ndelete table {family} {table}\ntable {family} {table} {{\n{inside}\n}}\n"


async def _nft(*words: str, said: str = "") -> tuple[str, str]:
    """Its answer, and its complaint if it failed."""
    nft = find_nft()
    if nft is None:
        return "", "nft is not installed"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(nft, *words, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(WITHIN):
            answer, complaint = await process.communicate(said.encode())
    except BaseException as error:
        await end(process)
        if isinstance(error, TimeoutError):
            return "", f"nft did not answer within {WITHIN:g} s"
        raise
    lines = complaint.decode(errors="replace").strip().splitlines() or [f"nft ended with {process.returncode}"]
    return answer.decode(errors="replace"), lines[0] if process.returncode else ""
