"""The browser of the web tests: Chromium without a window, one process for a worker, and what its pages complain of."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from harness import pace

from hostler.testing.servers import ServerProcess

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, Request

BINARY = "chromium-headless-shell"
MISSING = "chromium-headless-shell is not installed, and the page is tested in it: run scripts/setup test"
OPTIONS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--disable-default-apps", "--disable-breakpad", "--metrics-recording-only", "--password-store=basic"),
    # A page that no one looks at is slowed down; here several are looked at, one after the other.
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--disable-backgrounding-occluded-windows", "--disable-features=Translate,MediaRouter,OptimizationHints"),
    *("--force-color-profile=srgb", "--font-render-hinting=none", "--hide-scrollbars", "--mute-audio"),
    *("--lang=en-GB", "--remote-debugging-port=0", "about:blank"),
]
START = 10.0
"""Seconds that it may take to start on a quiet machine, where it takes less than two, and to end."""
LONGEST_FOLDER = 60
"""It makes a socket below it, and the path of one has at most 107 characters."""


class Chromium:
    """One Chromium process, driven by its debugging port on loopback. Its files are in `folder`, which goes with it."""

    def __init__(self, folder: Path) -> None:
        found = shutil.which(BINARY)
        if found is None:
            raise FileNotFoundError(MISSING)
        if len(str(folder)) > LONGEST_FOLDER:
            folder = Path(tempfile.mkdtemp(prefix="hostler-chromium-"))
        self._profile = folder
        command = ["env", f"TMPDIR={folder}", found, f"--user-data-dir={folder}", *OPTIONS]
        self.process = ServerProcess(command, folder / "log")
        self.address = self._listening()

    def _listening(self) -> str:
        said, end = self._profile / "DevToolsActivePort", time.monotonic() + pace.patience(START)
        while not (said.exists() and len(lines := said.read_text().split()) == 2):
            if not self.process.running or time.monotonic() > end:
                said_last = self.process.tail()
                self.stop()
                raise RuntimeError(f"chromium did not start: {said_last}")
            time.sleep(0.02)
        return f"ws://127.0.0.1:{lines[0]}{lines[1]}"

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        end = time.monotonic() + pace.patience(START)
        while self._profile.exists():  # what it started writes until it is gone too
            shutil.rmtree(self._profile, ignore_errors=time.monotonic() < end)


WATCH = """
addEventListener("securitypolicyviolation", (event) =>
  console.error(`CSP: ${event.effectiveDirective} forbids ${event.blockedURI} ${event.sample}`));
"""
"""Runs in every page before its own scripts."""


class Trouble:
    """What the pages of a test complained of: errors, violations of the policy, requests to strangers."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.own: set[str] = set()
        """Servers of this test."""
        self._ended = False
        self._allowed: list[str] = []
        self._expected: list[str] = []

    def expect(self, *patterns: str, must: bool = True) -> None:
        """Complaints in which one of these patterns is found are wanted. Each must come, unless not `must`."""
        self._allowed += patterns
        self._expected += patterns if must else ()

    @property
    def unexpected(self) -> list[str]:
        return [one for one in self.seen if not any(re.search(pattern, one) for pattern in self._allowed)]

    @property
    def missed(self) -> list[str]:
        return [pattern for pattern in self._expected if not any(re.search(pattern, one) for one in self.seen)]

    async def come(self, within: float = 2.0) -> None:
        """Until all that is expected is there: a page may tell of it a moment after what caused it."""
        end = time.monotonic() + pace.patience(within)
        while self.missed and time.monotonic() < end:
            await asyncio.sleep(0.02)

    def end(self) -> None:
        """What comes now is the end of the servers, and no complaint."""
        self._ended = True

    async def watch(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda told: self._tell(f"page error: {told.error}"))
        context.on("requestfinished", self._request)
        context.on("requestfailed", self._request)
        await context.add_init_script(WATCH)

    def _tell(self, complaint: str) -> None:
        if not self._ended:
            self.seen.append(complaint)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type != "error":
            return
        place: Any = message.location
        self._tell(f"console: {message.text} ({place['url']})")

    def _request(self, request: Request) -> None:
        if request.failure == "csp":
            return  # it was not sent, and the console has said so
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc not in self.own:
            self._tell(f"request to a stranger: {request.method} {request.url}")
