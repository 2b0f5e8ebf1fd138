"""How a command ends: one or two lines on stderr, and an exit code that tells a script what to do next."""

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
    """The awaited state was not reached in time. The request remains in place and work on it continues."""


class GivenUp(HostlerError):
    """The awaited state will not be reached: the operation failed and is not retried automatically."""


# The first matching class counts. `docs/cli.md` has this table for users.
EXIT_CODES: tuple[tuple[type[HostlerError], int, str], ...] = (
    (Invalid, 2, "correct the request and run it again"),
    (NotFound, 3, "check the name"),
    (Conflict, 4, "nothing was written; read again, then decide"),
    (Unavailable, 5, "nothing was written; check that the store can be reached, then run it again"),
    (Uncertain, 6, "it may have been written; read before you run it again"),
    (Lagged, 7, "watch again from the revision in the message"),
    (Missed, 7, "that history is gone; read the current state, and watch from there"),
    (Damaged, 8, "nothing was changed; restore a backup, or inspect the file before anything writes to it"),
    (Unauthenticated, 9, "give a valid token: HOSTLER_TOKEN, or --token-file"),
    (Forbidden, 9, "ask an administrator for the permission, or use another account"),
    (QuotaExceeded, 9, "delete what is not needed, or ask for more"),
    (LeadershipLost, 10, "another process leads; ask that one"),
    (NotYet, 11, "check again later"),
    (Raised, 12, "the called method failed; see its output: hostler slice logs GROUP:NAME"),
    (GivenUp, 13, "the previous version still serves; correct the failure, and apply again"),
    (Closed, 1, "run it again"),
    (HostlerError, 1, "run it again with --debug to see the details"),
)

_ABOUT_THE_STORE = (Unavailable, Uncertain, Damaged, Missed, Forbidden)
"""Error classes whose message also names the store."""


def exit_code(error: HostlerError) -> int:
    """Return the exit code for this error."""
    return next(code for kind, code, _ in EXIT_CODES if isinstance(error, kind))


def describe(error: HostlerError) -> tuple[str, str]:
    """Return what happened, and what to do next."""
    text = _plain(one_line(str(error) or type(error).__name__))
    what, _, advice = text.rpartition("; ")  # the last one: the first part may quote a foreign message with "; " in it
    if not what:
        what, advice = text, next(text for kind, _, text in EXIT_CODES if isinstance(error, kind))
    return what, advice


_OF_A_FIELD = re.compile(r"\w+ at \$\.(?:\w+\.)*(\w+): expected (?:str|int|float) (of length )?(>|>=|<=|without) (.+)")
_FLAGS = {"memory_mib": "--memory", "disk_gib": "--disk", "cpus": "--cpus", "expires_in": "--expires"}
_LIMITS = {">": "more than", ">=": "at least", "<=": "at most", "without": "without"}


def _plain(text: str) -> str:
    """Rewrite a validation error of a request field to name the flag it came from; return other text unchanged."""
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
    """Return the text without characters that move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " if c in "\r\n\t" else repr(c)[1:-1] for c in text)


def tell_failure(error: HostlerError) -> None:
    """Print two lines: what happened, and what to do next."""
    what, advice = describe(error)
    if isinstance(error, _ABOUT_THE_STORE):
        what += "".join(f" ({text})" for text in getattr(error, "__notes__", ()))
    _say(f"hostler: {what}", f"  next: {advice}")


def note(text: str) -> None:
    """Print a line for the user on stderr, apart from the output."""
    click.echo(one_line(text), err=True)


def tell(text: str) -> None:
    """Print a progress line with the time."""
    click.echo(f"{datetime.now().astimezone():%H:%M:%S} {one_line(text)}")


def run(command: click.Command, arguments: Sequence[str] | None = None, *, prog_name: str = "hostler") -> int:
    """Run `command` and return the exit code."""
    debug = os.environ.get("HOSTLER_DEBUG", "") not in ("", "0")
    debug = debug or "--debug" in (sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    try:
        code = command.main(arguments, prog_name=prog_name, standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - every error ends as one line for the user
        if debug and not isinstance(error, KeyboardInterrupt | click.ClickException | click.exceptions.Exit):
            import traceback

            traceback.print_exc()
        return _ended_by(error)
    return code if isinstance(code, int) else 0


def _open_what_is_closed() -> None:
    """Open /dev/null for each standard stream that the shell closed (`<&-`, `>&-`), where Python sets None."""
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
            _say(f"hostler: {one_line(place)}{error.strerror}", "  next: check the path, permissions and free space")
            return 1
        case _:
            _say(
                f"hostler: unexpected {type(error).__name__}: {one_line(str(error))}",
                "  next: this is a bug in Hostler; run it again with --debug to see where, and report it",
            )
            return 1


def _say(*lines: str) -> None:
    with suppress(BrokenPipeError):
        for line in lines:
            click.echo(line, err=True)


def forget_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter does not write to the closed pipe again at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
