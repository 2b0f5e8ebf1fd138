"""The checks of `hostler doctor`. They work while nothing runs, change no record, and need no token."""

from __future__ import annotations

import asyncio
import email.utils
import http.client
import os
import shlex
import shutil
import socket
import ssl
import stat
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from hostler.engine.cluster_id import ACCEPT, moved_away, objection, read_identity
from hostler.engine.overview import FILLING, REPAIR, fill_of
from hostler.entry.backend import control_plane_of, is_cluster
from hostler.entry.cli.options import local_path, redacted
from hostler.entry.data_dir import DataFolder
from hostler.entry.doctor.host import (
    boards,
    certificates,
    machines,
    paused_guests,
    power,
    refusals,
    repository,
    shared_hosts,
    slices,
    watchdog,
)
from hostler.entry.doctor.records import deployments, few, inventory, lab_problems, labs, retained_machines
from hostler.entry.leader import look
from hostler.entry.process import examine_open_files
from hostler.errors import HostlerError, Unavailable, Uncertain
from hostler.keys.families import ALIVE, BRAKE, CLOCK_DISPUTE, FENCING, LEADER_CLOCK, LOCK, MEMBER, REPLICA
from hostler.keys.namespace import enter, maintained_store
from hostler.kit.clock import SystemClock
from hostler.kit.host import WILDCARDS
from hostler.kit.plural import counted, sized
from hostler.model.node import Lifecycle
from hostler.ports.machine_driver import Finding, Level
from hostler.settings.value import split_address
from hostler.wiring import open_store, ttl_storage_on

if TYPE_CHECKING:
    from hostler.engine.cluster_id import Memory
    from hostler.ports.store import Store
    from hostler.settings import Settings

WITHIN = 5.0
LOW_MIB, EMPTY_MIB = 2_048, 256
DRIFT = 2.0
"""Clock difference in seconds from which a warning is given."""
EPOCH = 1_735_689_600.0
"""Start of 2025: an earlier date means that the clock was never set."""


async def examine(settings: Settings) -> list[Finding]:
    """Run all checks, in order of their dependencies."""
    folder = DataFolder(settings.data)
    found = [
        *_folder(folder),
        _disk(folder),
        examine_open_files(folder),
        *_clock(),
        *await machines(settings),
        *power(settings),
        *watchdog(settings),
    ]
    found += certificates(settings)
    found += await slices(settings)
    found += await labs(settings)
    served, health = await asyncio.to_thread(_server, settings, folder)
    found.append(served)
    found += health
    nodes: dict[str, bool] = {}
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(WITHIN * 2):
                store, findings = await _store(settings, stack)
                found += findings
                if store is not None:
                    found += await _plane(store)
                    found += await retained_machines(store, settings)
                    found += await repository(store, settings)
                    found += await lab_problems(store, settings)
                    nodes = await _standing_nodes(store)
        except (HostlerError, TimeoutError) as error:
            what = str(error) if isinstance(error, HostlerError) else f"no answer within {WITHIN * 2:g} s"
            found.append(_store_failed(settings, what))
    return [*found, *await boards(settings, nodes)]


# This host


def _folder(folder: DataFolder) -> list[Finding]:
    path = folder.path
    if not path.exists():
        return [Finding("data folder", Level.WARN, f"{path} does not exist yet", "hostler up creates it")]
    if not os.access(path, os.W_OK | os.X_OK):
        return [
            Finding("data folder", Level.FAIL, f"{path} cannot be written", "change its permissions, or name another")
        ]
    found = []
    holder = folder.holder()
    used = f", used by process {holder}" if holder else ", no hostler up runs here"
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        found.append(Finding("data folder", Level.WARN, f"{path}: accessible to other users", f"chmod 700 {path}"))
    else:
        found.append(Finding("data folder", Level.OK, f"{path}{used}"))
    if folder.token_file.exists() and stat.S_IMODE(folder.token_file.stat().st_mode) & 0o077:
        file = folder.token_file
        found.append(
            Finding(
                "admin token", Level.FAIL, f"{file}: other users can read it", f"chmod 600 {file}; hostler user recover"
            )
        )
    return found


def _disk(folder: DataFolder) -> Finding:
    path = folder.path
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    free = usage.free // 2**20
    what = f"{free:,} MiB free of {usage.total // 2**20:,} MiB at {path}"
    if free < EMPTY_MIB:
        return Finding("disk", Level.FAIL, what, "free some space now: a full disk stops every write")
    if free < LOW_MIB:
        return Finding("disk", Level.WARN, what, "free some space soon")
    return Finding("disk", Level.OK, what)


def _clock() -> list[Finding]:
    clock = SystemClock()
    first = clock.now()
    if clock.wall() < EPOCH:
        return [Finding("clock", Level.FAIL, f"the date is {time.strftime('%Y-%m-%d')}", "set it; run NTP")]
    if clock.now() < first:
        return [Finding("clock", Level.FAIL, "the monotonic clock runs backwards", "use another kernel")]
    return [Finding("clock", Level.OK, f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}")]


# The server


def _server(settings: Settings, folder: DataFolder) -> tuple[Finding, list[Finding]]:
    """Check the server's address: Hostler, another program, or nothing answers."""
    url = folder.read(folder.server_file)
    if url is not None:
        answer = _server_date(url)
        if answer is not None:
            simulated = folder.read(folder.simulation_file) is not None  # its Date header is simulated time
            return Finding("server", Level.OK, f"{url} answers"), [] if simulated else _drift(url, answer)
        if folder.holder() is not None:
            return Finding("server", Level.FAIL, f"{url} does not answer", f"see {folder.log_file}"), []
    host, port = split_address(settings.listen)
    if port and _taken(host, port):
        # A replica does not write its address to the data folder.
        host = WILDCARDS.get(host, host)
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        for url in (f"https://{place}", f"http://{place}")[:: 1 if settings.tls_cert else -1]:
            answer = _server_date(url)
            if answer is not None:
                return Finding("server", Level.OK, f"{url} answers"), _drift(url, answer)
        advice = "stop that program, or listen elsewhere: --listen HOST:PORT"
        return Finding("server", Level.FAIL, f"{settings.listen} is in use by another program", advice), []
    advice = "start it: hostler up"
    if is_cluster(settings.store):  # `up` would start a separate control plane if it were given another store
        advice = "start the replica of this host: hostler replica, or its service"
    return Finding("server", Level.WARN, f"not running here; {settings.listen} is free", advice), []


def _server_date(url: str) -> str | None:
    """Return the Date header of the server's answer; None: there was no answer."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 443
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing secret is sent
        connection = http.client.HTTPSConnection(host, port, timeout=WITHIN, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=WITHIN)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        return answer.headers.get("Date", "") if answer.read() == b"ok\n" else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _drift(url: str, date: str) -> list[Finding]:
    try:
        theirs = email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return []
    apart = abs(time.time() - theirs)
    if apart > DRIFT + 1:  # the header has whole seconds
        return [Finding("clocks", Level.WARN, f"the clock of {url} differs by {apart:.0f} s", "run NTP on both")]
    return []


def _taken(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError:
        return True
    return False


# The store and its records


async def _store(settings: Settings, stack: AsyncExitStack) -> tuple[Store | None, list[Finding]]:
    path = local_path(settings.store)
    shown = redacted(settings.store)
    if path is not None and not path.exists():
        return None, [Finding("store", Level.WARN, f"{shown} does not exist yet", "hostler up creates it")]
    store = await stack.enter_async_context(open_store(settings.store))
    members = await _members(store)
    if any(finding.level is Level.FAIL for finding in members):
        return None, members
    status = await store.status()
    seen, _ = await enter(
        store, msgspec.structs.replace(settings.namespace, pre_clean_store=False), clock=SystemClock()
    )
    size = f"{sized(status.size_bytes)}, revision {status.revision:,}"
    told = Finding("store", Level.OK, f"{shown}: {status.engine} {status.version}, {size}")
    refused = "" if maintained_store(store) is None else await _write_refused(store)
    if refused:
        said, _, advice = refused.partition("; ")
        told = Finding("store", Level.FAIL, f"{shown} refuses writes: {said}", advice or REPAIR)
    elif status.fraction >= FILLING:
        told = Finding("store", Level.WARN, f"{shown}: {fill_of(status)}", REPAIR)
    elif status.alarms:
        advice = "replace the member whose data is damaged"
        told = Finding("store", Level.FAIL, f"{shown} raises the alarm {', '.join(status.alarms)}", advice)
    return seen, [told, *members, *await identity(seen, control_plane_of(settings, DataFolder(settings.data).path))]


async def identity(store: Store, memory: Memory | None) -> list[Finding]:
    """Check whether the store was copied or moved away, or is not the one that this folder last belonged to."""
    found = await read_identity(store)
    if found.moved is not None:
        advice = "name the store that took over with --store; to keep using this one: hostler store activate"
        if found.moved.read_only:
            advice = "name the store in service with --store"
        return [Finding("store", Level.FAIL, f"nothing starts on it: {moved_away(found.moved)}", advice)]
    try:
        last = None if memory is None else await memory.read()
    except HostlerError as error:
        return [Finding("store", Level.FAIL, str(error), f"if this store is the right one, start once with {ACCEPT}")]
    if why := objection(last, found):
        advice = f"name the store that is in service; if this one is, start once with {ACCEPT}"
        return [Finding("store", Level.FAIL, f"nothing starts on it here: {why}", advice)]
    return []


async def _members(store: Store) -> list[Finding]:
    """Check the members of a store cluster; report by name those that do not answer."""
    kept = maintained_store(store)
    members = () if kept is None else await kept.members()
    dead = [one for one in members if not one.answers]
    if not dead:
        return []
    named = ", ".join(f"{one.name} ({one.why})" for one in dead)
    verb = "does not answer" if len(dead) == 1 else "do not answer"
    told = f"{len(dead)} of {counted(len(members), 'member')} {verb}: {named}"
    needed = len(members) // 2 + 1
    enough = len(members) - len(dead) >= needed
    advice = f"start them: {needed} of {len(members)} must answer"
    if enough:
        advice = f"start {'it' if len(dead) == 1 else 'them'} again, or replace"
    known = "; ".join(dict.fromkeys(one.advice for one in dead if one.advice))
    return [Finding("store", Level.WARN if enough else Level.FAIL, told, known or advice)]


async def _write_refused(store: Store) -> str:
    """Return the store's error on a write; empty: it accepts writes. A lease without a key is the smallest write."""
    try:
        await (await store.grant(WITHIN)).revoke()
    except (Unavailable, Uncertain) as error:
        return str(error)
    return ""


def _store_failed(settings: Settings, what: str) -> Finding:
    said, _, advice = what.partition("; ")
    if advice == "try again later":
        advice = ""
    shared = "start it, or check the address and the network" if is_cluster(settings.store) else "check the file"
    return Finding("store", Level.FAIL, f"{redacted(settings.store)}: {said}", advice or shared)


async def _plane(store: Store) -> list[Finding]:
    return [
        await _leader(store),
        *await nodes(store),
        *await _brake(store),
        *await refusals(store),
        *await shared_hosts(store),
        *await _clocks(store),
        *await _records(store),
        *await locks_without_lease(store),
    ]


async def locks_without_lease(store: Store) -> list[Finding]:
    """Report locks of VMs that never expire: another program created them without a lease."""
    keys: list[str] = []
    after: str | None = None
    while True:
        page = await store.range(LOCK.prefix(), after=after, limit=1000)
        keys += [kv.key for kv in page.items if not kv.lease]
        if not page.more:
            break
        after = page.items[-1].key
    if not keys:
        return []
    what = f"{counted(len(keys), 'lock has', 'locks have')} no lease and never expire: {few(keys)}"
    advice = f"if the program that put it no longer runs: hostler store delete {shlex.quote(keys[0])}"
    return [Finding("locks", Level.WARN, what, advice)]


async def _leader(store: Store) -> Finding:
    scene = await look(ttl_storage_on(store))
    if scene.leader is not None:
        waiting = len(scene.standing_by or ())
        others = f", {waiting} stand by" if waiting else ""
        return Finding("leader", Level.OK, f"{scene.leader.address} with fence {scene.leader.fence}{others}")
    if scene.standing_by:
        advice = "wait for the ttl of the last leader; then see the replicas' logs"
        return Finding("leader", Level.FAIL, f"no leader, though {len(scene.standing_by)} stand by", advice)
    return Finding("leader", Level.WARN, "no leader: nothing is placed or moved", "hostler up, or hostler replica")


async def nodes(store: Store) -> list[Finding]:
    members = await MEMBER.list(store, strict=False)
    alive = {entry.parts["node"] for entry in (await ALIVE.list(store, strict=False)).entries}
    if not members.entries:
        return [Finding("nodes", Level.WARN, "no nodes", "hostler up, or hostler agent --node NAME")]
    found = []
    awaited: list[str] = []
    for entry in members.entries:
        record = entry.value
        if entry.parts["node"] in alive or record.lifecycle is Lifecycle.DECOMMISSIONED:
            continue
        if record.awaited:
            if record.off is None:
                awaited.append(record.node)
        elif record.lifecycle is Lifecycle.SHUTTING_DOWN:
            advice = "start its agent again, where its machines are"
            if record.off is None:
                advice += f"; if they are off for good: hostler node confirm-off {record.node}"
            found.append(Finding("nodes", Level.WARN, f"{record.node} was shut down", advice))
        elif record.off is None:
            advice = f"check the node; if it is certainly off: hostler node confirm-off {record.node}"
            found.append(Finding("nodes", Level.WARN, f"{record.node} is unreachable", advice))
    if awaited:
        verb = "has" if len(awaited) == 1 else "have"
        since = "since this store was copied, restored or activated"
        what = f"{few(awaited)} {verb} not registered {since}; the machines of such a node wait"
        advice = "start their agents on this store; for a node that is off for good: hostler node confirm-off NODE"
        found.append(Finding("nodes", Level.WARN, what, advice))
    serving = len(members.entries) - len(found) - max(0, len(awaited) - 1)
    if serving:
        total = counted(len(members.entries), "node")
        found.insert(0, Finding("nodes", Level.OK, f"{serving:,} of {total} healthy"))
    return found


async def _standing_nodes(store: Store) -> dict[str, bool]:
    """Return each node that may have machines, and whether it is alive."""
    alive = {entry.parts["node"] for entry in (await ALIVE.list(store, strict=False)).entries}
    members = (await MEMBER.list(store, strict=False)).entries
    standing = [each for each in members if each.value.lifecycle is not Lifecycle.DECOMMISSIONED]
    return {entry.parts["node"]: entry.parts["node"] in alive for entry in standing}


async def _brake(store: Store) -> list[Finding]:
    entry = await BRAKE.get(store, scope=FENCING)
    if entry is None or entry.value.released:
        return []
    record = entry.value
    what = f"it holds: {len(record.nodes)} of {counted(record.of, 'node')} became unreachable together, {record.cause}"
    advice = "repair that, and the nodes register again; if they are lost for good: hostler node brake release"
    return [Finding("brake", Level.WARN, what, advice)]


async def _clocks(store: Store) -> list[Finding]:
    """Report processes whose start time is in the future: their clocks are ahead."""
    now = time.time()
    starts = [
        (entry.value.started_at, entry.parts["node"]) for entry in (await ALIVE.list(store, strict=False)).entries
    ]
    dispute = await CLOCK_DISPUTE.get(store, name=LEADER_CLOCK)
    advice = "run NTP on the leader and on the nodes; until then machines, labs, tokens and audit do not expire"
    level = Level.FAIL
    if dispute is not None and not dispute.value.node:
        level, advice = Level.WARN, "check the date; nothing expires for an hour, so that it can be corrected"
    disputes = [] if dispute is None else [Finding("clocks", level, dispute.value.why, advice)]
    replicas = (await REPLICA.list(store, strict=False)).entries
    starts += [(entry.value.started_at, entry.value.address) for entry in replicas]
    return disputes + [
        Finding("clocks", Level.WARN, f"{who} is at least {at - now:.0f} s ahead of this host", "run NTP on both")
        for at, who in starts
        if at > now + DRIFT
    ]


async def _records(store: Store) -> list[Finding]:
    """Report records that are unreadable or belong to nothing."""
    from hostler.engine.controllers.consistency_check import inspected, names_without_vm
    from hostler.engine.view import View

    view = View(store, clock=SystemClock())
    await view.refresh()
    mirrors = (view.vms, view.handles, view.commands, view.members, view.alive, view.users, view.tokens)
    mirrors += tuple(view.inventory.mirrors.values())
    unreadable = [key for mirror in mirrors for key in mirror.unreadable]
    found = [
        Finding("records", Level.FAIL, f"{key} cannot be read", f"inspect it: hostler store get {shlex.quote(key)}")
        for key in unreadable
    ]
    advice = "the leader repairs it; check again in a minute"
    lines = [line for line in inspected(view, {}) if not line.startswith(tuple(unreadable))]
    found += [Finding("records", Level.WARN, line, advice) for line in lines]
    lost = await names_without_vm(store, view, {})
    found += [Finding("records", Level.WARN, line, _free(line)) for line in lost]
    machines = f"{counted(len(view.vms.entries), 'machine')}, {counted(len(view.members.entries), 'node')}"
    found = found or [Finding("records", Level.OK, f"{machines}; every record can be read and belongs to something")]
    return [*found, *paused_guests(view), *inventory(view), *await deployments(store, view)]


def _free(line: str) -> str:
    """Return the advice for a name that belongs to no machine."""
    key, colon, _ = line.partition(": ")
    return (
        f"hostler store delete {shlex.quote(key)}" if colon and key.startswith("/") else "delete those, and check again"
    )
