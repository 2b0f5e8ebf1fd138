"""The documentation names only what is there: pages, headings, commands and their options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from hostler.entry.cli.app import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EVERYWHERE = {"--help", "--debug", "--version"}
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


def shown(text: str) -> Iterator[str]:
    """Commands that somebody could type: in blocks, and in the text where they are marked."""
    blocks = "".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)) + "".join(
        re.findall(r"^    .*\n", text, re.MULTILINE)
    )
    yield from re.findall(r"^(?:[#$] +| +|)hostler ([a-z].*)$", blocks, re.MULTILINE)
    yield from re.findall(r"`hostler ([a-z][^`\n]*)`", SAID_TO_HOSTLER.sub("``", prose(text)))


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    command, rest, context = app, list(words), click.Context(app)
    while rest and isinstance(command, click.Group) and (inner := command.get_command(context, rest[0])):
        command, context, rest = inner, click.Context(inner, parent=context), rest[1:]
    return command, rest


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    wrong: list[str] = []
    seen = 0
    for page in PAGES:
        for line in shown(page.read_text(encoding="utf-8")):
            seen += 1
            command, rest = command_of(ENDS.split(line)[0].split())
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | EVERYWHERE
            ours = " ".join(rest).partition(" -- ")[0]
            named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", ours))
            if command is app or not named <= known:
                wrong.append(f"{page.relative_to(ROOT)}: hostler {line}")
    assert seen > 200
    assert wrong == []
