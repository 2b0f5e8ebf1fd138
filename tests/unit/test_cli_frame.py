"""How the command line ends: one or two lines, an exit code that means something, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from hostler import errors
from hostler.entry.cli import main
from hostler.entry.cli.failure import describe, exit_code, run
from hostler.entry.cli.options import local_path, path_url, redacted
from hostler.entry.cli.vm.change import create
from hostler.entry.server.problem import tell

if TYPE_CHECKING:
    from pathlib import Path


def failing_with(error: BaseException) -> click.Command:
    @click.command()
    @click.option("--debug", is_flag=True)
    def command(debug: bool) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Invalid("x: is wrong; do better"), 2),
        (errors.TooLarge("x"), 2),
        (errors.NotFound("x"), 3),
        (errors.LeaseGone("x"), 3),
        (errors.Conflict("x"), 4),
        (errors.Unavailable("x"), 5),
        (errors.Uncertain("x"), 6),
        (errors.Compacted(7), 7),
        (errors.Lagged("/a", 7), 7),
        (errors.Damaged("x"), 8),
        (errors.Forbidden("x"), 9),
        (errors.LeadershipLost("x"), 10),
        (errors.Closed("x"), 1),
        (errors.HostlerError("x"), 1),
    ],
)
def test_every_kind_of_error_has_its_code_and_two_lines(
    error: errors.HostlerError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(failing_with(error), []) == exit_code(error) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    what, following = shown.err.splitlines()
    assert what.startswith("hostler: ")
    assert len(following.removeprefix("  next: ")) > 5


def test_the_advice_in_a_message_is_the_second_line(capsys: pytest.CaptureFixture[str]) -> None:
    run(failing_with(errors.Invalid("x: is wrong; do better")), [])
    assert capsys.readouterr().err == "hostler: x: is wrong\n  next: do better\n"


def test_a_message_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    run(failing_with(errors.NotFound("\x1b[2Jgone\nfake line; \x07look")), [])
    shown = capsys.readouterr().err
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert len(shown.splitlines()) == 2


def test_an_unexpected_error_is_one_line_and_a_way_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing_with(ZeroDivisionError("oh")), []) == 1
    shown = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: oh" in shown
    assert "--debug" in shown
    assert "Traceback" not in shown


def test_debug_shows_where_an_error_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(failing_with(errors.Conflict("x")), ["--debug"]) == 4
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("HOSTLER_DEBUG", "1")
    assert run(failing_with(errors.Conflict("x")), []) == 4
    assert "Traceback" in capsys.readouterr().err


def test_interrupting_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing_with(KeyboardInterrupt()), []) == 130
    shown = capsys.readouterr()
    assert (shown.out, shown.err.strip()) == ("", "")


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stroe"]) == 2
    assert "did you mean 'store'?" in capsys.readouterr().err
    assert main(["store", "lst"]) == 2
    assert "did you mean 'list'?" in capsys.readouterr().err
    assert main(["store", "get", "--bogus"]) == 2
    assert "--bogus" in capsys.readouterr().err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hostler 0.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_completion_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_HOSTLER_COMPLETE" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from hostler.entry.cli import main; main(['--help']); "
        "print(sorted({'apsw', 'grpc', 'rich', 'asyncio', 'google'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///a/b.db", "sqlite:///a/b.db"),
        ("etcd://h:1,g:2", "etcd://h:1,g:2"),
        ("etcd://h:1?user=u&password=s3cret", "etcd://h:1?user=u&password=***"),
        ("etcd://u:s3cret@h:1", "etcd://***@h:1"),
        ("etcd://h:1?password=s3cret@x", "etcd://***"),
        ("sqlite:///a@b/c d.db?timeout=2", "sqlite:///a@b/c d.db?timeout=2"),
        ("rediss://[::1]:1/0?ca=/ca.pem&other=s3cret&key=/k", "rediss://[::1]:1/0?ca=/ca.pem&***&key=/k"),
        ("http://h:1/a", "http://h:1/a"),
        ("localhost:8080", "localhost:8080"),
        ("me:s3cret@h", "***"),
        ("memory://", "memory://"),
    ],
)
def test_a_shown_url_has_no_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_a_path_survives_its_url(tmp_path: Path) -> None:
    odd = tmp_path / "a b#c?d%e.db"
    assert local_path(path_url("sqlite", odd)) == odd
    assert local_path("etcd://h:1") is None


def test_what_happened_may_have_semicolons_and_what_to_do_comes_last() -> None:
    assert describe(errors.Invalid("a: b; c; do this")) == ("a: b; c", "do this")
    assert describe(errors.Invalid("a: b"))[0] == "a: b"
    told = tell(errors.Raised("a:b f: raised OSError: no; such; thing", error="OSError", said="no; such; thing"))
    assert told.problem.detail == "a:b f: raised OSError: no; such; thing"
    assert "log" in told.problem.next


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("VmCreate at $.name: expected str of length >= 1", "name: must not be empty"),
        ("VmCreate at $.name: expected str of length <= 63", "name: must have at most 63 characters"),
        (
            "VmUpdate at $.name: expected str without '/' and control characters",
            "name: must be without '/' and control characters",
        ),
        ("VmCreate at $.spec.memory_mib: expected int >= 1", "--memory: must be at least 1"),
        ("VmCreate at $.spec.cpus: expected int <= 4096", "--cpus: must be at most 4096"),
        ("vm.json: VmCreate at $.spec.cpus: expected int >= 1", "vm.json: VmCreate at $.spec.cpus: expected int >= 1"),
        ("vm a: something else", "vm a: something else"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_of_its_flag(message: str, what: str) -> None:
    assert describe(errors.Invalid(message)) == (what, "correct the request and run it again")


def test_commands_and_options_of_an_earlier_release_work_and_are_not_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["labs", "worker", "--help"]) == 0
    former = capsys.readouterr().out
    assert main(["lab", "worker", "--help"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == former.splitlines()[2:]
    assert main(["--help"]) == 0
    assert " labs " not in capsys.readouterr().out
    with create.make_context("create", ["a", "--together", "node:a=b", "--apart", "rack:a=b"]) as ctx:
        assert ctx.params["affinity"] == ("node:a=b",)
        assert ctx.params["anti_affinity"] == ("rack:a=b",)
    with create.make_context("create", ["a", "--prefer-together", "node:a=b", "--prefer-apart", "rack:a=b"]) as ctx:
        assert ctx.params["prefer_affinity"] == ("node:a=b",)
        assert ctx.params["prefer_anti_affinity"] == ("rack:a=b",)
    assert main(["vm", "create", "--help"]) == 0
    said = capsys.readouterr().out
    assert "--anti-affinity LEVEL:NAME=VALUE" in said
    assert "--apart" not in said
    assert "--together" not in said
    assert "--prefer-together" not in said
    assert "--prefer-apart" not in said
