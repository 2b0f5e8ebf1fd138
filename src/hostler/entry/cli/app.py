"""The root command. Each command is in a module, which is imported when the command runs."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

import click

from hostler.entry.cli.failure import BROKEN_PIPE, forget_stdout

# name: module, the object in it, and the line for --help, so that `hostler --help` imports no command module.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("hostler.entry.cli.up", "up", "Run everything in one process: control plane, API and nodes."),
    "down": ("hostler.entry.cli.up", "down", "Stop hostler up on this machine."),
    "web": ("hostler.entry.cli.user", "web", "Open the web UI, signed in."),
    "vm": ("hostler.entry.cli.vm", "vm", "Create, show, change and delete virtual machines."),
    "image": ("hostler.entry.cli.image", "image", "List, add, build and remove machine images."),
    "lab": ("hostler.entry.cli.lab", "lab", "Start, show, extend and stop labs: a machine for every student."),
    "workload": ("hostler.entry.cli.workload", "workload", "Apply, show, scale and delete workloads."),
    "blueprint": ("hostler.entry.cli.blueprint", "blueprint", "Apply, plan, show and roll back blueprints of slices."),
    "slice": ("hostler.entry.cli.slice", "slice_", "Write and publish slices, and show their instances."),
    "invoke": ("hostler.entry.cli.invoke", "invoke", "Call a method of a slice."),
    "node": ("hostler.entry.cli.node", "node", "Show, drain and repair nodes."),
    "rack": ("hostler.entry.cli.rack", "rack", "Show racks and the state of their blades."),
    "inventory": ("hostler.entry.cli.inventory", "inventory", "Load, show and change the datacenter inventory."),
    "user": ("hostler.entry.cli.user", "user", "Manage accounts and tokens."),
    "project": ("hostler.entry.cli.project", "project", "Create and list projects."),
    "quota": ("hostler.entry.cli.project", "quota", "Show and set the quota of a project."),
    "events": ("hostler.entry.cli.events", "events", "Follow events, or show past decisions and their causes."),
    "why": ("hostler.entry.cli.events", "why", "Explain the state of an object, decision by decision."),
    "audit": ("hostler.entry.cli.events", "audit", "Show the audit log, and verify its files."),
    "leader": ("hostler.entry.cli.leader", "leader", "Show the leader and the standby replicas."),
    "doctor": ("hostler.entry.cli.config", "doctor", "Check the installation and suggest fixes."),
    "config": ("hostler.entry.cli.config", "config", "Show the settings and their sources."),
    "replica": ("hostler.entry.cli.processes", "replica", "Run one replica of the control plane: API and controllers."),
    "agent": ("hostler.entry.cli.processes", "agent", "Run the agent of one node."),
    "sim": ("hostler.entry.cli.sim", "sim", "Simulate a datacenter in virtual time, and inject faults."),
    "whatif": ("hostler.entry.cli.whatif", "whatif", "Predict what a drain or a failure would move."),
    "store": ("hostler.entry.cli.store", "store", "Read, write, watch, copy and back up a store."),
    "demo": ("hostler.entry.cli.demo", "demo", "Show the store in action, in ten seconds."),
    "bench": ("hostler.entry.cli.bench", "bench", "Measure a store on this machine."),
    "completion": ("hostler.entry.cli.app", "completion", "Print the completion script for a shell."),
}


FORMER = {"labs": ("hostler.entry.cli.processes", "labs")}
"""Commands of earlier releases, which still work and are not listed (docs/deprecations.md)."""


class LazyGroup(click.Group):
    """A group that lists its commands by name and imports a command when it is called.

    `former`: commands that work and are not listed.
    """

    def __init__(
        self,
        *,
        commands_at: dict[str, tuple[str, str, str]],
        former: dict[str, tuple[str, str]] | None = None,
        **settings: object,
    ) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self._at, self._former = commands_at, former or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        found = self._at.get(cmd_name) or self._former.get(cmd_name)
        if found is None:
            return None
        command: click.Command = getattr(importlib.import_module(found[0]), found[1])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in {**self._at, **self._former} and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], self._at, n=1)
            known = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(self._at)}"
            ctx.fail(f"no such command {args[0]!r}; {known}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # before click turns it into an ordinary failure
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
    former=FORMER,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Run a command with --help for its options. Exit codes and settings: docs/cli.md.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error. Also HOSTLER_DEBUG=1.")
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def app(debug: bool) -> None:
    """A control plane for virtual machines that keeps all its state in one key-value store."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  hostler completion bash > ~/.local/share/bash-completion/completions/hostler
    zsh:   hostler completion zsh > "${fpath[1]}/_hostler"
    fish:  hostler completion fish > ~/.config/fish/completions/hostler.fish
    """

    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    script = kind(app, {}, "hostler", "_HOSTLER_COMPLETE")
    # Not source(): for bash that starts a bash to ask for its version.
    click.echo(script.source_template % script.source_vars())
