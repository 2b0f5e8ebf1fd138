"""`hostler config` and `hostler doctor`: the settings of this installation, and checks of it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import click

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.options import complete, redacted, store_option

COMMANDS = {
    "show": (__name__, "show_", "Show each setting and its source."),
    "drivers": (__name__, "drivers", "List the installed drivers and their settings."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def config() -> None:
    """Show the settings: defaults < hostler.toml < environment < flags."""


@click.command("show")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder, as for hostler up.")
@show.output_option
def show_(data: Path | None, output: str) -> None:
    """Show each setting, its value and its source.

    Secrets are not shown. An unknown name in hostler.toml or in the environment is an error.
    """
    rows = settled({"data": data})
    if output != "table":
        show.emit({row["name"]: {"value": row["value"], "from": row["from"]} for row in rows}, output)
        return
    shown = [[row["name"], show.safe(_text(row["name"], row["value"])), show.safe(row["from"])] for row in rows]
    show.Columns("SETTING", "VALUE", "FROM").rows(shown)


@click.command("drivers")
@show.output_option
def drivers(output: str) -> None:
    """List the installed drivers: of machines, stores, TTL storages and power switches.

    A driver is a Python package with an entry point in the group hostler.machines, hostler.stores, hostler.ttl or
    hostler.power. To add one, install its package into the environment of Hostler; to remove it, uninstall it.
    """
    rows = driver_rows()
    if output != "table":
        show.emit(rows, output)
        return
    shown = [
        [row["kind"], row["name"], row["from"], ",".join(row["settings"]), row["problem"] or row["about"]]
        for row in rows
    ]
    show.Columns("KIND", "NAME", "FROM", "SETTINGS", "ABOUT").rows([[show.safe(cell) for cell in row] for row in shown])


def driver_rows() -> list[dict[str, Any]]:
    """Return each installed driver as plain data. `problem`: why it cannot be used."""
    from hostler.settings.driver import GROUPS, Driver, broken_drivers, installed

    rows: list[dict[str, Any]] = []
    for name in GROUPS:
        group, kind = installed(name), name.partition(".")[2]
        for driver, found in group.all(Driver):
            settings = [option.name for option in found.options]
            row = {"kind": kind, "name": driver, "from": group.distribution(driver), "settings": settings}
            rows.append({**row, "about": found.about, "problem": ""})
        broken_drivers()
        rows += [
            {"kind": kind, "name": driver, "from": "", "settings": [], "about": "", "problem": f"cannot be used: {why}"}
            for driver, why in group.broken.items()
        ]
    return rows


def settled(flags: dict[str, object]) -> list[dict[str, Any]]:
    """Return each setting as plain data."""
    from hostler.settings import NamespaceOptions, load
    from hostler.settings.driver import all_options, driver_options

    settings = load(flags)
    rows: list[dict[str, Any]] = []
    of_drivers = {option.name for option in driver_options()}
    for option in all_options():
        holder = settings.namespace if option.name in NamespaceOptions.__struct_fields__ else settings
        value = settings.driver_options[option.name] if option.name in of_drivers else getattr(holder, option.name)
        if option.name in ("store", "redis"):
            value = None if value is None else redacted(value)
        elif option.name == "power":
            value = {node: _redacted_switch(url) for node, url in value.items()}
        elif option.secret:
            value = None if value is None else "***"
        rows.append(
            {
                "name": option.name,
                "value": str(value) if isinstance(value, Path) else value,
                "from": str(settings.origins[option.name]),
            }
        )
    if settings.state_path is not None:
        value, origin = str(settings.state_path), str(settings.origins["state_path"])
        rows.append({"name": "state_path", "value": value, "from": origin})
    rows += [
        {"name": variable, "value": "ignored", "from": "a variable of another program"} for variable in settings.ignored
    ]
    for name, variable, secret in (("server", "HOSTLER_SERVER", False), ("token", "HOSTLER_TOKEN", True)):
        given = os.environ.get(variable)
        if given:
            rows.append({"name": name, "value": "***" if secret else redacted(given), "from": variable})
    return rows


def _redacted_switch(url: str) -> str:
    """Return a power switch URL without secrets. A command is shown in full; `{node}` is never treated as a secret."""
    from hostler.settings.value import COMMAND, NODE

    stands = "node-goes-here"
    return url if url.startswith(COMMAND) else redacted(url.replace(NODE, stands)).replace(stands, NODE)


def _text(name: str, value: object) -> str:
    """Format a value as an environment variable would hold it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        pairs = [f"{label}={found}" for label, found in value.items()]
        return shlex.join(pairs) if name == "power" else ",".join(pairs)
    if isinstance(value, tuple):
        return shlex.join(value) if name == "power_command" else ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder, as for hostler up.")
@store_option
@show.output_option
def doctor(data: Path | None, store_url: str | None, output: str) -> None:
    """Check data folder, disk, clock, QEMU, port, store, leader, nodes and records, and suggest fixes.

    No server is needed. Exit code 1 if a check fails; warnings do not change the exit code.
    """
    import msgspec

    from hostler.entry.doctor.examination import examine
    from hostler.ports.machine_driver import Level
    from hostler.settings import load

    findings = complete(examine(load({"data": data, "store": store_url})))
    if output != "table":
        show.emit(msgspec.to_builtins(findings), output)
    else:
        width = max(len(finding.of) for finding in findings)
        for finding in findings:
            mark = click.style(finding.level.value.ljust(4), fg=COLOURS[finding.level.value])
            click.echo(f"{mark}  {finding.of.ljust(width)}  {show.safe(finding.what)}")
            if finding.next:
                click.echo(f"      {' ' * width}  → {show.safe(finding.next)}")
    if any(finding.level is Level.FAIL for finding in findings):
        click.get_current_context().exit(1)
