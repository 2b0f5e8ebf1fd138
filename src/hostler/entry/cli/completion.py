"""`hostler completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  hostler completion bash > ~/.local/share/bash-completion/completions/hostler
    zsh:   hostler completion zsh > "${fpath[1]}/_hostler"
    fish:  hostler completion fish > ~/.config/fish/completions/hostler.fish
    """
    from hostler.entry.cli.app import app

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell}")
    script = kind(app, {}, "hostler", "_HOSTLER_COMPLETE")
    # Not source(): for bash that starts a bash to ask for its version.
    click.echo(script.source_template % script.source_vars())
