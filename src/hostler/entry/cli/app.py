"""The root command. Each command lives in a module of its own that is imported when it is called."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from hostler.entry.cli.failure import BROKEN_PIPE, forget_stdout

# name: module, the object in it, and the line for --help, so that help imports nothing.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("hostler.entry.cli.up", "up", "Run everything in one process: control plane, API and nodes."),
    "down": ("hostler.entry.cli.down", "down", "End the hostler up of this machine."),
    "web": ("hostler.entry.cli.web", "web", "Open the web page, signed in."),
    "vm": ("hostler.entry.cli.vm", "vm", "Create, show, change and delete virtual machines."),
    "image": ("hostler.entry.cli.image", "image", "Show, add, build and remove images of machines."),
    "lab": ("hostler.entry.cli.lab", "lab", "Start, show, extend and stop labs: a machine for every student."),
    "labs": ("hostler.entry.cli.labs", "labs", "Run a worker of labs, which takes requests from Redis."),
    "workload": ("hostler.entry.cli.workload", "workload", "Apply, show, scale and delete workloads."),
    "blueprint": ("hostler.entry.cli.blueprint", "blueprint", "Apply, plan, show and roll back blueprints of slices."),
    "slice": ("hostler.entry.cli.slice", "slice_", "Write slices, publish them, and see what runs of them."),
    "invoke": ("hostler.entry.cli.invoke", "invoke", "Call a method of a slice."),
    "node": ("hostler.entry.cli.node", "node", "Show, drain and repair nodes."),
    "rack": ("hostler.entry.cli.rack", "rack", "Show racks, and what their blades do."),
    "inventory": ("hostler.entry.cli.inventory", "inventory", "Load, show and change what stands in the datacenter."),
    "user": ("hostler.entry.cli.user", "user", "Manage accounts and tokens."),
    "project": ("hostler.entry.cli.project", "project", "Create and list projects."),
    "quota": ("hostler.entry.cli.quota", "quota", "Show and set what a project may have."),
    "events": ("hostler.entry.cli.events", "events", "Show what happens, as it happens, or what led to what."),
    "why": ("hostler.entry.cli.why", "why", "Tell how something came to be as it is, step by step."),
    "audit": ("hostler.entry.cli.audit", "audit", "Show who wrote what, and check the files of it."),
    "leader": ("hostler.entry.cli.leader", "leader", "Show who leads and who stands by."),
    "doctor": ("hostler.entry.cli.doctor", "doctor", "Check everything, and say what to do."),
    "config": ("hostler.entry.cli.config", "config", "Show the settings and where they came from."),
    "replica": ("hostler.entry.cli.replica", "replica", "Run one replica of the control plane: API and controllers."),
    "agent": ("hostler.entry.cli.agent", "agent", "Run the agent of one node."),
    "sim": ("hostler.entry.cli.sim", "sim", "Simulate a datacenter, step through its time, and break it."),
    "whatif": ("hostler.entry.cli.whatif", "whatif", "Tell what would move if something were drained or broke."),
    "store": ("hostler.entry.cli.store", "store", "Read, write, watch, copy and back up a store."),
    "demo": ("hostler.entry.cli.demo", "demo", "See the store at work, in ten seconds."),
    "bench": ("hostler.entry.cli.bench", "bench", "Measure how fast Hostler is on this machine."),
    "completion": ("hostler.entry.cli.completion", "completion", "Print the completion script for a shell."),
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and loads them when they are called."""

    def __init__(self, *, commands_at: dict[str, tuple[str, str, str]], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self._at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        found = self._at.get(cmd_name)
        if found is None:
            return None
        command: click.Command = getattr(importlib.import_module(found[0]), found[1])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self._at and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], self._at, n=1)
            known = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(self._at)}"
            ctx.fail(f"no such command {args[0]!r}; {known}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # before click makes it a failure like any other
            forget_stdout()
            raise click.exceptions.Exit(BROKEN_PIPE) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self._at.items()])


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from hostler import __version__

        click.echo(f"hostler {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command says more with --help. Exit codes and settings: docs/cli.md.",
)
@click.option("--debug", is_flag=True, help="Show where an error came from. Also HOSTLER_DEBUG=1.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def app(debug: bool) -> None:
    """A control plane for virtual machines that keeps all it knows in one key-value store."""
