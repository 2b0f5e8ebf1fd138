"""Compiles the product and its tests once, before the workers of a run start: `python tests/harness/precompile.py`.

pytest keeps what it compiled, with its assertions rewritten, in files of its own. Without them every worker rewrites
every file that it collects: the workers collect the same files at the same time, so no one finds another's work.
"""

from __future__ import annotations

import compileall
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[2]
PROCESSES = 2


def rewritten_files() -> list[Path]:
    """Return the files whose assertions pytest rewrites: tests, their `conftest.py`, and the published suites."""
    tests = ROOT / "tests"
    suites = (ROOT / "src" / "hostler" / "testing").rglob("*.py")
    return sorted([*tests.rglob("test_*.py"), *tests.rglob("conftest.py"), *suites])


def compile_rewritten(path: Path) -> None:
    """Write the file that pytest reads instead of a test's source, unless it is up to date."""
    folder = rewrite.get_cache_dir(path)
    rewrite.try_makedirs(folder)
    kept = folder / (path.name[:-3] + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, kept) is None:
        config: Any = None  # of the options none matters here
        state: Any = SimpleNamespace(trace=print)
        digest, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(state, code, digest, kept)


def main() -> None:
    helpers = [path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")]
    with ProcessPoolExecutor(PROCESSES) as pool:
        plain = [pool.submit(compileall.compile_dir, os.fspath(ROOT / name), quiet=1) for name in ("src", "bench")]
        list(pool.map(compile_rewritten, rewritten_files(), chunksize=8))
        if not all(
            [
                *(compileall.compile_file(os.fspath(path), quiet=1) for path in helpers),
                *(each.result() for each in plain),
            ]
        ):
            sys.exit("a file does not compile")


if __name__ == "__main__":
    main()
