"""How a command ends: one or two clear lines on stderr and an exit code that says what to do next."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hostler.errors import (
    Closed,
    Conflict,
    Damaged,
    Forbidden,
    HostlerError,
    Invalid,
    Lagged,
    LeadershipLost,
    Missed,
    NotFound,
    QuotaExceeded,
    Raised,
    Unauthenticated,
    Unavailable,
    Uncertain,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130
BROKEN_PIPE = 141


class NotYet(HostlerError):
    """What was waited for has not happened; the wish stands, and work on it goes on."""


class GivenUp(HostlerError):
    """What was waited for will not happen: it failed, and is not tried again by itself."""


# The first kind that fits counts. `docs/cli.md` has this table for users.
EXIT_CODES: tuple[tuple[type[HostlerError], int, str], ...] = (
    (Invalid, 2, "correct what was asked and run it again"),
    (NotFound, 3, "check the name"),
    (Conflict, 4, "nothing was written; read again, then decide"),
    (Unavailable, 5, "nothing was written; check that the store can be reached, then run it again"),
    (Uncertain, 6, "it may have been written; read before you run it again"),
    (Lagged, 7, "watch again from the revision that is named"),
    (Missed, 7, "that history is gone; read the present state, and watch from there"),
    (Damaged, 8, "nothing was changed; restore a backup, or look at the file before anything writes to it"),
    (Unauthenticated, 9, "give a token that counts: HOSTLER_TOKEN, or --token-file"),
    (Forbidden, 9, "ask somebody who has the right, or use another account"),
    (QuotaExceeded, 9, "delete what is not needed, or ask for more"),
    (LeadershipLost, 10, "another process leads; ask that one"),
    (NotYet, 11, "look again later"),
    (Raised, 12, "what was called failed by itself; what it printed: hostler slice logs GROUP:NAME"),
    (GivenUp, 13, "what served before serves; correct what failed, and apply it again"),
    (Closed, 1, "run it again"),
    (HostlerError, 1, "run it again with --debug to see the details"),
)

_ABOUT_THE_STORE = (Unavailable, Uncertain, Damaged, Missed, Forbidden)
"""Kinds whose message gains by naming the store."""


def exit_code(error: HostlerError) -> int:
    """The code that this kind of error ends a command with."""
    return next(code for kind, code, _ in EXIT_CODES if isinstance(error, kind))


def describe(error: HostlerError) -> tuple[str, str]:
    """What happened, and what to do next."""
    text = _plain(one_line(str(error) or type(error).__name__))
    what, _, advice = text.rpartition("; ")  # what happened may be told in somebody else's words
    if not what:
        what, advice = text, next(text for kind, _, text in EXIT_CODES if isinstance(error, kind))
    return what, advice


_OF_A_FIELD = re.compile(r"\w+ at \$\.(?:\w+\.)*(\w+): expected (?:str|int|float) (of length )?(>|>=|<=|without) (.+)")
_FLAGS = {"memory_mib": "--memory", "disk_gib": "--disk", "cpus": "--cpus", "expires_in": "--expires"}
_LIMITS = {">": "more than", ">=": "at least", "<=": "at most", "without": "without"}


def _plain(text: str) -> str:
    """What is wrong with a field of a request, said of the flag that it came from; anything else as it is."""
    found = _OF_A_FIELD.fullmatch(text)
    if found is None:
        return text
    field, length, limit, value = found.groups()
    if length and (limit, value) == (">=", "1"):
        rule = "must not be empty"
    elif length:
        rule = f"must have {_LIMITS[limit]} {value} characters"
    else:
        rule = f"must be {_LIMITS[limit]} {value}"
    return f"{_FLAGS.get(field, field)}: {rule}"


def one_line(text: str) -> str:
    """The text with nothing in it that moves a terminal's cursor."""
    return "".join(c if c.isprintable() else " " if c in "\r\n\t" else repr(c)[1:-1] for c in text)


def tell_failure(error: HostlerError) -> None:
    """What happened and what to do next, in two lines."""
    what, advice = describe(error)
    if isinstance(error, _ABOUT_THE_STORE):
        what += "".join(f" ({text})" for text in getattr(error, "__notes__", ()))
    _say(f"hostler: {what}", f"  next: {advice}")


def note(text: str) -> None:
    """A line for the person, beside the output."""
    click.echo(one_line(text), err=True)


def tell(text: str) -> None:
    """A line of what goes on, with the time."""
    click.echo(f"{datetime.now().astimezone():%H:%M:%S} {one_line(text)}")


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run `command`; the exit code."""
    debug = os.environ.get("HOSTLER_DEBUG", "") not in ("", "0")
    debug = debug or "--debug" in (sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    try:
        code = command.main(arguments, prog_name="hostler", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - whatever it was, the person is told in a line
        if debug and not isinstance(error, KeyboardInterrupt | click.ClickException | click.exceptions.Exit):
            import traceback

            traceback.print_exc()
        return _ended_by(error)
    return code if isinstance(code, int) else 0


def _open_what_is_closed() -> None:
    """Where the shell closed one (`<&-`, `>&-`), Python has none at all: nothing is read then, or goes nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the end


def _ended_by(error: BaseException) -> int:
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            return INTERRUPTED
        case click.ClickException():
            error.show()
            return error.exit_code
        case BrokenPipeError():
            forget_stdout()
            return BROKEN_PIPE
        case HostlerError():
            tell_failure(error)
            return exit_code(error)
        case SystemExit():
            return error.code if isinstance(error.code, int) else 1
        case OSError() if error.strerror:
            place = f"{error.filename}: " if error.filename else ""
            _say(f"hostler: {one_line(place)}{error.strerror}", "  next: check the path, its rights and the free space")
            return 1
        case _:
            _say(
                f"hostler: unexpected {type(error).__name__}: {one_line(str(error))}",
                "  next: this is a fault in Hostler; run it again with --debug to see where, and report it",
            )
            return 1


def _say(*lines: str) -> None:
    with suppress(BrokenPipeError):
        for line in lines:
            click.echo(line, err=True)


def forget_stdout() -> None:
    """Keep the interpreter from writing to the closed pipe once more as it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
