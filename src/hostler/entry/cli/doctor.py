"""`hostler doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from hostler.entry.cli import show
from hostler.entry.cli.store_option import complete, store_option

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
    from hostler.ports.finding import Level
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
