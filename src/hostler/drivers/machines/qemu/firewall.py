"""Rules of the host's packet filter (nftables), where it is installed and this process may set them.

Each purpose has one table, named after the node (and the machine), so that its owner can be identified later. Setting a
table again replaces it atomically.
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

from hostler.drivers.privileges import NET_ADMIN
from hostler.kit.processes import end_process, has_capabilities

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

WITHIN = 30.0


def find_nft() -> str | None:
    """Return the path of the command, also from the administrator's folders."""
    return shutil.which("nft", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def why_not() -> str:
    """Return why rules cannot be set; empty: they can."""
    if not has_capabilities(NET_ADMIN):
        return "CAP_NET_ADMIN is missing"
    return "" if find_nft() else "nft is not installed"


def table_name(place: str, number: int | None = None) -> str:
    """Return the table name of a node, or of one of its machines."""
    digest = hashlib.sha256(place.encode()).hexdigest()[:12]
    return f"hostler_{digest}" if number is None else f"hostler_{digest}_{number}"


def loopback_rules(table: str, uids: range, folder: Path | None = None) -> str:
    """Return rules that forbid processes of `uids` to open connections to any address of this host, except DNS.

    They need no connection tracking, which a host may not want: packets of a connection opened by the other side have
    other flags. `folder`: owner of the rules; when it is gone, they are `abandoned`.
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
    """Return rules for packets from `tap`: only IPv6 from the guest's addresses, no messages of routers or servers."""
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
    """Set the rules atomically; return why that failed, or an empty text."""
    return (await _nft("-f", "-", said=rules))[1]


async def remove(family: str, tables: Iterable[str]) -> None:
    """Delete tables, if they exist."""
    lines = [f"table {family} {name}\ndelete table {family} {name}\n" for name in tables]
    if lines:
        await _nft("-f", "-", said="".join(lines))


async def machine_tables(place: str) -> dict[int, str]:
    """Return the tables of a node's machines, by number."""
    answer, _ = await _nft("-j", "list", "tables")
    prefix, found = table_name(place) + "_", {}
    for item in json.loads(answer or "{}").get("nftables", ()):
        name = item.get("table", {}).get("name", "")
        if name.startswith(prefix) and name[len(prefix) :].isdecimal():
            found[int(name[len(prefix) :])] = name
    return found


async def abandoned(family: str = "inet") -> list[str]:
    """Return the tables of nodes whose folder was deleted without closing the driver."""
    answer, _ = await _nft("list", "ruleset", family)  # one command, however many tables other nodes have
    owners = re.findall(
        rf'^table {family} (hostler_[0-9a-f]{{12}}) {{\n\s*comment "([0-9]+) (/[^"]*)"', answer, re.MULTILINE
    )
    found = []
    for name, mounts, folder in owners:
        if int(mounts) == _mounts() and not await asyncio.to_thread(os.path.exists, folder):
            found.append(name)
    return found


def _comment(folder: Path | None) -> list[str]:
    """Return the comment that names the owner, where possible.

    It names the mount namespace, because paths depend on it.
    """
    text = f"{_mounts()} {folder}"
    usable = folder is not None and len(text.encode()) < 128 and text.isprintable() and not set(text) & set('"\\')
    return [f'comment "{text}"'] if usable else []


def _mounts() -> int:
    return os.stat("/proc/self/ns/mnt").st_ino


def _replacing(family: str, table: str, lines: Sequence[str]) -> str:
    inside = "\n".join(lines)
    return f"table {family} {table}\ndelete table {family} {table}\ntable {family} {table} {{\n{inside}\n}}\n"


async def _nft(*words: str, said: str = "") -> tuple[str, str]:
    """Run `nft`; return its output, and the error message if it failed."""
    nft = find_nft()
    if nft is None:
        return "", "nft is not installed"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(nft, *words, stdin=pipe, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(WITHIN):
            answer, complaint = await process.communicate(said.encode())
    except BaseException as error:
        await end_process(process)
        if isinstance(error, TimeoutError):
            return "", f"nft did not answer within {WITHIN:g} s"
        raise
    lines = complaint.decode(errors="replace").strip().splitlines() or [f"nft ended with {process.returncode}"]
    return answer.decode(errors="replace"), lines[0] if process.returncode else ""
