"""The API fuzzed from its own OpenAPI document, on a server that is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from dose import dose, rotation, seeds

from hostler.entry.server.table import API

HERE = Path(__file__).parent
EXAMPLES = dose(test=2, full=150)
PARTS = 8
"""Every boundary value of every field is tried of one operation in so many; of others with each commit."""


class Running:
    """The server's process."""

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "api_process.py"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors.open("wb"),
            text=True,
            env={"PYTHONPATH": str(HERE.parent), "PATH": "/usr/bin:/bin"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert len(line) == 2, self.log
        self.url, self.token = line

    @property
    def log(self) -> str:
        return self._errors.read_text()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    try:
        yield running
    finally:
        running.stop()


@pytest.mark.timeout(600 if EXAMPLES <= 10 else 7200)
def test_no_request_that_can_be_made_of_the_document_breaks_it(server: Running, tmp_path: Path) -> None:
    """No 5xx, no traceback, every answer documented: status, headers, media type, and body by its schema.

    Left out: the event stream, which never ends, and the console, which answers 501 where no machine runs; both have
    tests of their own. That what fits the schema is also accepted is not promised (a name may be taken).
    """
    tried = {route.name for number, route in enumerate(API) if number % PARTS in seeds(test=1, pool=PARTS)}
    left = [route.name for route in API if route.name not in tried]
    if left:
        (tmp_path / "schemathesis.toml").write_text(
            f"[[operations]]\ninclude-operation-id = {left}\nphases.coverage.enabled = false\n"
        )
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "run", f"{server.url}/openapi.json"),
        *("--header", f"Authorization: Bearer {server.token}"),
        *("--exclude-path", "/v1/events", "--exclude-path-regex", "/console$"),
        *("--exclude-checks", "positive_data_acceptance,ignored_auth"),
        *("--max-examples", str(EXAMPLES), "--generation-database", "none", "--no-color", "--seed", str(rotation())),
        *("--suppress-health-check", "all", "--request-timeout", "60"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:] + server.log[-2000:]
    fuzzed = len(API) - 2 + 4  # the document itself is not fuzzed
    assert f"Tested: {fuzzed}" in ended.stdout, ended.stdout[-2000:]
    assert "request failed" not in server.log
    assert server.process.poll() is None
