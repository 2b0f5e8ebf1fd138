"""Before something is destroyed.

At a terminal one is asked, unless `--yes` is there. Where nobody can be asked, a script has named what is to go, and
that is enough; what takes more than was named, or what somebody has to stand for, wants `--yes` there (`ask`).
"""

from __future__ import annotations

import sys

import click

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def can_ask() -> bool:
    """Whether somebody is there who could answer."""
    return sys.stdin.isatty()


def ask_if_seen(question: str, *, yes: bool) -> None:
    """Ask where somebody can be asked. For what is named, or can be brought back."""
    if not yes and can_ask():
        click.confirm(question, abort=True, err=True)


def ask(question: str, *, yes: bool, otherwise: str = "") -> None:
    """Ask; where nobody can be asked, refuse. For what takes more than was named, or has to be stood for.

    `otherwise`: what else could be done there.
    """
    check_can_ask(yes=yes, question=question, otherwise=otherwise)
    if not yes:
        click.confirm(question, abort=True, err=True)


def check_can_ask(*, yes: bool, question: str, otherwise: str = "") -> None:
    """Refuse where `ask` would, before what the question is about is looked up."""
    if not yes and not can_ask():
        ways = f"add --yes if you are sure{otherwise and f', or {otherwise}'}"
        raise click.UsageError(f"{question} Nobody can be asked here; {ways}")
