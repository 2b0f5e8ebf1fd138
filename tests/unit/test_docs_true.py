"""The documentation names only what is there: pages, headings, commands and their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from bench.__main__ import group as benchmarks
from hostler.entry.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EVERYWHERE = {"--help", "--debug", "--version"}
OF_THE_PAST = {"found-bugs.md", "deprecations.md", "CHANGELOG.md"}
"""Pages that name modules as they were."""
ENDS = re.compile(r"\s+#|;| && | \| |\\\|| > ")
"""Where a command ends: a remark, or the shell."""
SAID_TO_HOSTLER = re.compile(r"`hostler (?:booted|failed|ready|template)\b")
"""What guests say, which is no command."""


def prose(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@cache
def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in found}


def test_every_link_leads_to_a_page_and_a_heading_that_are_there() -> None:
    wrong: list[str] = []
    seen = 0
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8"))):
            if re.match("[a-z]+:", target):
                continue
            seen += 1
            name, _, heading = target.partition("#")
            there = (page.parent / name).resolve() if name else page
            if not there.exists() or (heading and there.suffix == ".md" and heading not in headings(there)):
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert seen > 200
    assert wrong == []


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / name.partition("#")[0]).resolve()
        for page in PAGES
        for name in re.findall(r"\]\(([^)\s:]+)\)", page.read_text(encoding="utf-8"))
    }
    assert [page.name for page in sorted((ROOT / "docs").glob("*.md")) if page not in linked] == []


def test_every_module_that_is_named_is_there() -> None:
    package = ROOT / "src" / "hostler"
    pages = [page for page in PAGES if page.parent.name != "decisions" and page.name not in OF_THE_PAST]
    named = [
        (page.name, path)
        for page in pages
        for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", page.read_text(encoding="utf-8"))
    ]
    assert len(named) > 20
    assert [
        one for one in named if not any((root / one[1]).is_file() for root in (ROOT, package, ROOT / "tests"))
    ] == []


def test_the_figure_of_the_architecture_shows_every_folder() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    figure = page.split("```")[1]
    package = ROOT / "src" / "hostler"
    rooms = [path.name for path in (package / "engine").iterdir() if (path / "__init__.py").is_file()]
    assert [room for room in rooms if not re.search(rf"(?<![\w/]){room}/", figure)] == []
    rows = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    packages = [path.name for path in package.iterdir() if (path / "__init__.py").is_file()]
    assert [name for name in packages if name not in rows] == []


def shown(text: str, program: str = "hostler") -> Iterator[str]:
    """Commands that somebody could type: in blocks, and in the text where they are marked."""
    blocks = "".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)) + "".join(
        re.findall(r"^    .*\n", text, re.MULTILINE)
    )
    yield from re.findall(rf"^(?:[#$] +| +|){program} ([a-z].*)$", blocks, re.MULTILINE)
    yield from re.findall(rf"`{program} ([a-z][^`\n]*)`", SAID_TO_HOSTLER.sub("``", prose(text)))


def command_of(words: list[str], root: click.Command = app) -> tuple[click.Command, list[str]]:
    command, rest, context = root, list(words), click.Context(root)
    while rest and isinstance(command, click.Group) and (inner := command.get_command(context, rest[0])):
        command, context, rest = inner, click.Context(inner, parent=context), rest[1:]
    return command, rest


@pytest.mark.parametrize(("program", "root", "enough"), [("hostler", app, 200), ("python -m bench", benchmarks, 8)])
def test_every_command_that_is_shown_exists_with_its_options(program: str, root: click.Command, enough: int) -> None:
    wrong: list[str] = []
    seen = 0
    for page in PAGES:
        for line in shown(page.read_text(encoding="utf-8"), program):
            seen += 1
            command, rest = command_of(ENDS.split(line)[0].split(), root)
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | EVERYWHERE
            ours = " ".join(rest).partition(" -- ")[0]
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", ours))
            if command is root or not named <= known:
                wrong.append(f"{page.relative_to(ROOT)}: {program} {line}")
    assert seen > enough
    assert wrong == []
