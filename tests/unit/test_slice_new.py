"""`hostler slice new` and `run`: what it makes works as its README says, without any server."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tomllib
import zipfile
from typing import TYPE_CHECKING

import pytest

from hostler.entry.cli import main
from hostler.entry.cli.slice.project import arguments_json
from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])

    def hostler(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        before = set(sys.modules)
        try:
            code = main([str(one) for one in arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            for name in set(sys.modules) - before:
                if not name.startswith(("hostler", "rich", "click")):
                    del sys.modules[name]
        told = capsys.readouterr()
        return code or 0, told.out, told.err

    return hostler


def test_what_is_made_has_a_test_that_passes_with_plain_pytest(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("slice", "new", "my-greeting", "--group", "com.example.shop")
    assert (code, "cd my-greeting" in out) == (0, True)
    folder = tmp_path / "my-greeting"
    assert {path.name for path in folder.iterdir()} == {
        *("pyproject.toml", "my_greeting.py", "test_my_greeting.py", "blueprint.toml", "README.md"),
    }
    assert not any("{{" in path.read_text() for path in folder.iterdir())
    blueprint = tomllib.loads((folder / "blueprint.toml").read_text())
    assert blueprint["slices"] == [{"artifact": "com.example.shop:my-greeting:1.0.0", "instances": 3}]
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PATH": "/usr/bin:/bin"},
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "3 passed" in tested.stdout


def test_what_the_readme_says_of_running_it_is_what_happens(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("slice", "new", "greeting")
    monkeypatch.chdir(tmp_path / "greeting")
    readme = (tmp_path / "greeting/README.md").read_text()
    said = re.findall(r"^\$ hostler (slice run .*?)(?:  +#.*)?\n((?:[^$`].*\n)+)", readme, re.MULTILINE)
    assert len(said) == 2
    for command, expected in said:
        code, out, _ = run(*command.split())
        assert (code, out) == (0, expected)


def test_each_line_is_a_call_where_no_method_is_named(run: Run) -> None:
    run("slice", "new", "greeting")
    lines = "greet\n\ngreet name='Ada L'\nnothing\ncount to=x\ncount to=2\ngreet 'open\n"
    code, out, err = run("slice", "run", "greeting", stdin=lines)
    assert (code, out) == (0, '"Hello, World!"\n"Hello, Ada L!"\n1\n2\n')
    assert "greet(name: str = 'World') -> str  (idempotent)" in err
    assert "no method nothing; it has greet, count" in err
    assert "argument to: Expected `int`" in err


def test_a_slice_that_cannot_be_run_says_why(run: Run, tmp_path: Path) -> None:
    for name, text, code, said in (
        ("broken.py", "x = 1 / 0\n", 1, "ZeroDivisionError"),
        ("empty_one.py", "x = 1\n", 2, "it has no methods"),
        ("hard.py", "from hostler.slices import method\n@method\ndef f(*a): ...\n", 2, "takes *a"),
        (
            "sick.py",
            "from hostler.slices import method\n@method\ndef f(): ...\ndef healthy(): return False\n",
            1,
            "healthy() returned False",
        ),
        (
            "ill.py",
            "from hostler.slices import method\n@method\ndef f(): ...\ndef healthy(): return []\n",
            1,
            "healthy() returned []",
        ),
        ("stops.py", "from hostler.slices import method\n@method\ndef f(): next(iter(()))\n", 1, "StopIteration"),
        ("raises.py", "from hostler.slices import method\n@method\ndef f(): raise OSError('no')\n", 1, "OSError: no"),
        ("no-name.py", "", 2, "not a module"),
        ("leaves.py", "import sys\nsys.exit(3)\n", 1, "cannot be imported: it ended the process, by sys.exit(3)"),
        ("quits.py", "from hostler.slices import method\n@method\ndef f(): raise SystemExit\n", 1, "f: it ended"),
        ("start.py", "from hostler.slices import method\n@method\ndef f(): ...\ndef start(): 1 / 0\n", 1, "start: r"),
    ):
        (tmp_path / name).write_text(text)
        found, _, err = run("slice", "run", name, "f")
        assert (found, said in err) == (code, True), (name, found, err)
    assert run("slice", "run", "nothing.py", "f")[0] == 3
    assert run("slice", "run", tmp_path, "f")[0] == 3


def test_where_a_slice_failed_is_told_as_python_tells_it_and_of_its_own_code_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "deep.py").write_text(
        "from hostler.slices import method\n"
        "def inner():\n    try:\n        {}['key']\n    except KeyError as error:\n"
        "        raise ValueError('a; b\\nc') from error\n"
        "@method\ndef f(): inner()\n@method\nasync def g(): inner()\n"
    )
    (tmp_path / "late.py").write_text("import broken_below\n")
    (tmp_path / "broken_below.py").write_text("\nx = 1 / 0\n")
    for name, method, last, own in (
        ("deep.py", "f", "ValueError: a; b", ["deep.py", "deep.py", "deep.py"]),
        ("deep.py", "g", "ValueError: a; b", ["deep.py", "deep.py", "deep.py"]),
        ("late.py", "f", "ZeroDivisionError: division by zero", ["late.py", "broken_below.py"]),
    ):
        code, _, err = run("slice", "run", name, method)
        lines = err.splitlines()
        assert code == 1
        assert last in lines
        assert [re.split(r'[/"]', line)[-2] for line in lines if line.startswith("  File ")] == own
        assert lines[-2].startswith("hostler: ")
        assert lines[-2].endswith(f"raised {last}")
        assert lines[-1] == "  next: see the lines above"


@pytest.mark.parametrize("name", ["random", "class", "1st", "a b", "../x", "hostler", "-x", "é", "a/b", "x-"])
def test_names_that_would_not_work_are_refused(run: Run, tmp_path: Path, name: str) -> None:
    code, _, err = run("slice", "new", "--", name)
    assert code == 2, err
    assert not list(tmp_path.iterdir())


def test_nothing_that_is_there_is_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "greeting").mkdir()
    (tmp_path / "greeting/mine.txt").write_text("mine")
    code, _, err = run("slice", "new", "greeting")
    assert (code, "--to" in err) == (4, True)
    assert [path.name for path in (tmp_path / "greeting").iterdir()] == ["mine.txt"]
    assert run("slice", "new", "greeting", "--group", "a b", "--to", "other")[0] == 2
    assert not (tmp_path / "other").exists()
    assert run("slice", "new", "greeting", "--to", tmp_path / "greeting/mine.txt")[0] == 2


def test_a_slice_is_published_into_a_folder_without_any_server(run: Run, tmp_path: Path) -> None:
    run("slice", "new", "greeting")
    code, out, _ = run("slice", "push", "greeting", "--to", "repository")
    assert (code, "published org.example:greeting:1.0.0" in out) == (0, True)
    found = tmp_path / "repository/org.example/greeting/1.0.0/greeting-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(found) as archive:
        assert archive.namelist()[0] == "greeting.py"
    assert run("slice", "push", "greeting", "--to", "repository", "-o", "json")[0] == 0
    module = tmp_path / "greeting/greeting.py"
    module.write_text(module.read_text() + "x = 1\n")
    code, _, err = run("slice", "push", "greeting", "--to", "repository")
    assert (code, "another version" in err) == (4, True)
    assert run("slice", "push", "greeting", "--to", "repository", "--version", "1.0.1")[0] == 0
    (tmp_path / "greeting/greeting.py").write_text("x = (\n")
    code, _, err = run("slice", "push", "greeting", "--to", "repository")
    assert (code, "greeting.py:1: " in err) == (2, True)


def test_arguments_are_json_where_they_can_be() -> None:
    assert arguments_json(("a=1", "b=x", "c=[1, 2]", "d=a=b", "e=", "f=true", 'g="1"')) == (
        b'{"a": 1, "b": "x", "c": [1, 2], "d": "a=b", "e": "", "f": true, "g": "1"}'
    )
    assert arguments_json((), '{"a": 1}') == b'{"a": 1}'
    for wrong in (("a",), ("=1",)):
        with pytest.raises(Invalid, match="key=value"):
            arguments_json(wrong)
    with pytest.raises(Invalid, match="not both"):
        arguments_json(("a=1",), "{}")
