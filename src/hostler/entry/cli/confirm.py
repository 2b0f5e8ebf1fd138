"""Confirmation before something is destroyed.

At a terminal the user is asked, unless `--yes` is given. Without a terminal, `ask_if_seen` proceeds: the script has
named the object, which is enough. `ask` demands `--yes` there: for an operation that affects more than was named, or
for which the operator takes responsibility.
"""

from __future__ import annotations

import sys

import click

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def can_ask() -> bool:
    """Return whether standard input is a terminal, so that a user can answer."""
    return sys.stdin.isatty()


def ask_if_seen(question: str, *, yes: bool) -> None:
    """Ask if there is a terminal. For an object that was named explicitly, or that can be restored."""
    if not yes and can_ask():
        click.confirm(question, abort=True, err=True)


def ask(question: str, *, yes: bool, otherwise: str = "") -> None:
    """Ask; without a terminal, refuse. For an operation that affects more than was named, or needs responsibility.

    `otherwise`: an alternative that the refusal suggests.
    """
    check_can_ask(yes=yes, question=question, otherwise=otherwise)
    if not yes:
        click.confirm(question, abort=True, err=True)


def check_can_ask(*, yes: bool, question: str, otherwise: str = "") -> None:
    """Refuse in the same cases as `ask`, before the caller looks up what the question needs."""
    if not yes and not can_ask():
        ways = f"add --yes if you are sure{otherwise and f', or {otherwise}'}"
        raise click.UsageError(f"{question} Cannot ask: standard input is not a terminal; {ways}")
