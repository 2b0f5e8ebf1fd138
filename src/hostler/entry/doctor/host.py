"""Findings of `hostler doctor` about this host and what it reaches: certificates, drivers, power switches, packages."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import stat
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from cryptography import x509

from hostler.entry.backend import is_cluster
from hostler.errors import HostlerError, Invalid
from hostler.keys.families import ALIVE, MEMBER, REPLICA
from hostler.kit.host import WILDCARDS
from hostler.kit.plural import counted
from hostler.model.node import HOST, HOST_SHARE, Lifecycle
from hostler.model.vm import MachineState
from hostler.ports.machine_driver import Finding, Level
from hostler.settings.driver import GROUPS, installed
from hostler.settings.value import COMMAND, read_power_command, split_address
from hostler.wiring import machine_driver, machine_drivers, open_power_reader, why_no_slice_users

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.engine.view import View
    from hostler.model.node import NodeRecord
    from hostler.ports.power import PowerReader
    from hostler.ports.store import Store
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


AT_ONCE = 16
"""Management boards that are asked at the same time."""
MOST = 20
"""Nodes that are listed by name."""


def power(settings: Settings) -> list[Finding]:
    """Check the commands of `power_command` and `power`; empty if none is set."""
    found = [_command(settings.power_command[0], "power_command", settings)] if settings.power_command else []
    for node, url in settings.power.items():
        if url.startswith(COMMAND):
            try:
                program = read_power_command(url.removeprefix(COMMAND))[0]
            except ValueError:
                continue  # `boards` reports it
            found.append(_command(program, f"power, node {node}", settings))
    return found


def _command(program: str, setting: str, settings: Settings) -> Finding:
    if "/" in program and not program.startswith("/"):
        return Finding("power", Level.FAIL, f"{program} is not an absolute path", f"use an absolute path in {setting}")
    found = shutil.which(program)
    if found is None:
        what = "cannot be run" if os.path.exists(program) else "not found"
        advice = "make it executable: chmod +x" if os.path.exists(program) else f"install it, or correct {setting}"
        return Finding("power", Level.FAIL, f"{program} {what}", f"{advice}; unreachable nodes are not switched off")
    if os.stat(found).st_mode & stat.S_IWOTH:
        return Finding("power", Level.FAIL, f"{found}: writable by all users", f"chmod o-w {found}")
    grace, limit = settings.power_grace, settings.power_timeout
    return Finding("power", Level.OK, f"{found}, {grace:g} s after a node became unreachable, for at most {limit:g} s")


async def boards(settings: Settings, nodes: Mapping[str, bool]) -> list[Finding]:
    """Read the power state of each node in `power` and in `nodes`, which maps each node to whether it is alive."""
    if not settings.power:
        return []
    try:
        reader = open_power_reader(settings.power_command, settings.power)
    except Invalid as error:
        return [_failure(str(error))]
    named = {node for node in settings.power if not any(each in node for each in "*?[")}
    turn = asyncio.Semaphore(AT_ONCE)
    states: Counter[str] = Counter()
    wrong: list[Finding] = []

    async def ask(node: str) -> None:
        async with turn:
            try:
                state = await _state(reader, node, alive=nodes.get(node, False))
            except HostlerError as error:
                wrong.append(_failure(f"node {node}: {error}"))
            else:
                if state is not None:
                    states[state] += 1

    await asyncio.gather(*(ask(node) for node in sorted(named | set(nodes))))
    found = []
    if states:
        said = ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        found.append(Finding("power", Level.OK, f"{counted(states.total(), 'management board')} answer: {said}"))
    unreached = sorted(node for node in nodes if not reader.reaches(node))
    if unreached:
        shown = ", ".join(unreached[:MOST]) + (f" and {len(unreached) - MOST:,} more" if len(unreached) > MOST else "")
        advice = "add an entry to power; machines of such a node wait until it returns or is confirmed off"
        found.append(Finding("power", Level.WARN, f"no switch for {counted(len(unreached), 'node')}: {shown}", advice))
    wrong.sort(key=lambda finding: finding.what)
    if len(wrong) > MOST:
        more = f"{counted(len(wrong) - MOST, 'node')} more cannot be switched off"
        wrong[MOST:] = [Finding("power", Level.FAIL, more, "correct those above first")]
    return [*found, *wrong]


async def _state(reader: PowerReader, node: str, *, alive: bool) -> str | None:
    state = await reader.read_state(node)
    if alive and state == "off":
        what = "its management board reports off, but its agent is alive"
        raise Invalid(f"{what}; the URL names another system: correct it before this node fails")
    return state


def _failure(error: str) -> Finding:
    what, _, advice = error.partition("; ")
    return Finding("power", Level.FAIL, what, advice or "correct the setting power")


def watchdog(settings: Settings) -> list[Finding]:
    """Check the watchdog device; empty if none is set. The device is not opened, as that would start it."""
    path = settings.watchdog
    if path is None:
        return []
    try:
        mode = path.stat().st_mode
    except OSError as error:
        why = (error.strerror or "cannot be read").lower()
        advice = "load the driver of this host's watchdog (such as softdog), or remove `watchdog` from the settings"
        return [Finding("watchdog", Level.FAIL, f"{path}: {why}", f"{advice}; agents do not start")]
    if not stat.S_ISCHR(mode):
        return [Finding("watchdog", Level.FAIL, f"{path} is not a device", "name the device, such as /dev/watchdog")]
    if not os.access(path, os.W_OK):
        advice = "let the agent's user write to it with a udev rule; agents do not start"
        return [Finding("watchdog", Level.FAIL, f"{path}: no write permission", advice)]
    return [Finding("watchdog", Level.OK, f"{path}, fed while no fenced machine runs past its lease")]


async def machines(settings: Settings) -> list[Finding]:
    """Run the checks of every installed machine driver, and report drivers that cannot be used."""
    found: list[Finding] = []
    here = machine_driver(settings.machines).on_this_host
    for kind, driver in machine_drivers():
        if driver.examine is not None and (here or kind == settings.machines):
            try:
                found += await driver.examine(settings, kind == settings.machines)
            except Exception as error:  # noqa: BLE001 - a defect in one driver must not hide the other findings
                what = f"the check of {kind} failed: {type(error).__name__}: {error}"
                found.append(Finding("drivers", Level.WARN, what, "report it to the author of that driver"))
    for group in GROUPS:
        found += [
            Finding("drivers", Level.WARN, f"{group}: {name} cannot be used: {why}", "repair its package, or remove it")
            for name, why in installed(group).broken.items()
        ]
    return found


async def refusals(store: Store) -> list[Finding]:
    """Report live nodes that do not accept machines."""
    alive = {entry.parts["node"] for entry in (await ALIVE.list(store, strict=False)).entries}
    return [
        Finding(
            "nodes",
            Level.WARN,
            f"{entry.value.node} accepts no machines: {entry.value.refuses}",
            "fix that on the node",
        )
        for entry in (await MEMBER.list(store, strict=False)).entries
        if entry.value.refuses and entry.parts["node"] in alive
    ]


async def shared_hosts(store: Store) -> list[Finding]:
    """Report every host on which one node offers the whole capacity and another a share.

    Placement counts machines on any of its nodes against the nodes that offer the whole host. A share is always
    offered.
    """
    hosts: dict[str, list[NodeRecord]] = {}
    for entry in (await MEMBER.list(store, strict=False)).entries:
        record = entry.value
        if record.facts.get(HOST) and record.lifecycle is not Lifecycle.DECOMMISSIONED:
            hosts.setdefault(record.facts[HOST], []).append(record)
    found = []
    for records in hosts.values():
        whole = sorted(record.node for record in records if not record.facts.get(HOST_SHARE))
        shares = sorted(record.node for record in records if record.facts.get(HOST_SHARE))
        if whole and shares:
            both = f"{', '.join(whole)} and {', '.join(shares)}"
            what = f"{both} are on one host: the former offer all of its capacity, the latter a share"
            advice = (
                f"set nodes = {len(records)} (HOSTLER_NODES) for each of these agents, or give them one data folder"
            )
            found.append(Finding("nodes", Level.WARN, what, advice))
    return found


def paused_guests(view: View) -> list[Finding]:
    """Return a finding for every guest that is paused because its node has no free disk space."""
    advice = "free some space on its node, or enlarge it; the guest then resumes"
    found = []
    for entry in view.handles.entries.values():
        handle = entry.value
        if handle.paused and handle.state is MachineState.RUNNING:
            vm = view.vms.get(org=entry.parts["org"], project=entry.parts["project"], vm=entry.parts["vm"])
            name = f"{entry.parts['org']}/{entry.parts['project']}/{handle.id if vm is None else vm.value.name}"
            found.append(Finding("machines", Level.WARN, f"{name} on {handle.node} is paused: {handle.detail}", advice))
    return found


async def slices(settings: Settings) -> list[Finding]:
    """Return the findings; empty if separate users work, or if the agent is not root and they are not required."""
    level = Level.FAIL if settings.slice_users == "required" else Level.WARN
    try:
        why, advice = await why_no_slice_users(settings)
    except HostlerError as error:
        what, _, advice = str(error).partition("; ")
        return [Finding("slices", Level.FAIL, what, advice)]
    return [Finding("slices", level, why, advice)] if why else []


async def repository(store: Store, settings: Settings) -> list[Finding]:
    """Return a finding for every replica from which agents of other hosts cannot fetch artifacts."""
    if not is_cluster(settings.store) or "://" in settings.artifacts:
        return []
    return [
        Finding(
            "artifacts",
            Level.WARN,
            f"replica {entry.value.address} has no address for others: artifacts that are only there cannot"
            " be fetched by agents of other hosts",
            "start it with --address HOST:PORT, or let it listen on that address",
        )
        for entry in (await REPLICA.list(store, strict=False)).entries
        if not entry.value.url
    ]
