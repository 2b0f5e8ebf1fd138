"""Time without a leader: takeovers between processes, of Hostler and of alternative election recipes.

Two processes alternate. After a release: from the moment before the leader gives up until the other knows that it
leads. After kill -9: from the signal to that moment, in units of the ttl. The contestants alternate in blocks, so that
load on the host affects all of them.
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bench.child import child_environ
from hostler.entry.cli.options import path_url
from hostler.entry.cli.progress import Ticker
from hostler.errors import Invalid, NotFound, Unavailable
from hostler.wiring import open_ttl_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE = 60.0
BLOCK = 10
"""Consecutive takeovers of one contestant before the next one's turn."""
PEERS = ("tooz", "redis-py", "kazoo")
POLLING = ("tooz", "redis-py")
"""Peers that wait by polling."""
TAKEOVER_HEADS = ("", "after release: p50", "p99", "most", "rounds", "after kill -9: p50", "most", "kills")
MANY_HEADS = ("", "leaderships", "ttl", "renewals per second", "CPU", "CPU per renewal", "acquired in", "still held")


class Entrant(msgspec.Struct, frozen=True):
    """A contestant to measure: `kind` is "hostler" or one of the peers."""

    kind: str
    url: str

    @property
    def name(self) -> str:
        """Return the name for tables, without secrets and random parts."""
        return f"{self.kind} on {self.url.partition(':')[0]}"


class Takeovers(msgspec.Struct, frozen=True):
    """The results of one contestant. After a release in milliseconds; after kill -9 in units of the ttl."""

    name: str
    rounds: int
    p50_ms: float
    p99_ms: float
    most_ms: float
    kills: int
    kill_p50_ttl: float
    kill_most_ttl: float
    polls: bool


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `peers_python`: the interpreter of the environment with the peers."""

    entrants: tuple[Entrant, ...]
    peers_python: str
    ttl: float = 2.0
    rounds: int = 100
    kills: int = 5
    leaderships: int = 1000
    leadership_ttl: float = 20.0
    seconds: float = 10.0


class Process:
    """One contestant process."""

    def __init__(self, entrant: Entrant, plan: Plan) -> None:
        self._name = entrant.name
        if entrant.kind == "hostler":
            command, environ = [sys.executable, "-m", "bench.election_contestant"], child_environ()
        else:
            script = Path(__file__).with_name("election_peers.py")
            command, environ = [plan.peers_python, str(script), entrant.kind], None
        self._process = subprocess.Popen(
            [*command, entrant.url, f"{plan.ttl:g}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environ,
        )
        self._said = b""
        try:
            self.answer("ready")
        except Unavailable:
            self.close()
            raise

    def ask(self, verb: str) -> None:
        """Send a command."""
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(verb.encode() + b"\n")

    def answer(self, what: str) -> float:
        """Wait for this answer, which must be the next one. Return its time."""
        assert self._process.stdout is not None  # noqa: S101
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._said:
            if not select.select([pipe], [], [], PATIENCE)[0]:
                raise Unavailable(f"{self._name}: a contestant did not answer {what!r} within {PATIENCE:g} s")
            more = os.read(pipe, 4096)
            if not more:
                raise Unavailable(f"{self._name}: a contestant ended unexpectedly; see its output above")
            self._said += more
        line, _, self._said = self._said.partition(b"\n")
        return float(json.loads(line)[what])

    def kill(self) -> float:
        """Send SIGKILL. Return the time."""
        at = time.monotonic()
        self._process.kill()
        self.close()
        return at

    def close(self) -> None:
        """End the process if it still runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Duel:
    """Two processes of one contestant: one leads, the other waits."""

    def __init__(self, entrant: Entrant, plan: Plan, rng: random.Random) -> None:
        self._entrant, self._plan, self._rng = entrant, plan, rng
        self.times: list[float] = []
        self.kills: list[float] = []
        self._leader = Process(entrant, plan)
        self._leader.ask("stand")
        self._leader.answer("leading")
        self._waiter = Process(entrant, plan)
        self._waiter.ask("stand")

    def take_over(self) -> None:
        """Measure a takeover after a release."""
        self._settle()
        self._leader.ask("release")
        began = self._leader.answer("releasing")
        self.times.append(self._waiter.answer("leading") - began)
        self._leader.answer("released")
        self._leader, self._waiter = self._waiter, self._leader
        self._waiter.ask("stand")

    def kill(self) -> None:
        """Measure a takeover after kill -9."""
        self._settle()
        began = self._leader.kill()
        self.kills.append(self._waiter.answer("leading") - began)
        self._leader, self._waiter = self._waiter, Process(self._entrant, self._plan)
        self._waiter.ask("stand")

    def _settle(self) -> None:
        """Wait until the other process waits too, for a random time, so that polling peers are met at any point."""
        time.sleep(self._rng.uniform(0.2, 0.2 + self._plan.ttl / 4))

    def close(self) -> None:
        """End both processes."""
        for process in (self._leader, self._waiter):
            process.close()

    def figures(self) -> Takeovers:
        """Return the results."""
        times, kills = sorted(self.times), sorted(self.kills)
        return Takeovers(
            name=self._entrant.name,
            rounds=len(times),
            p50_ms=times[len(times) // 2] * 1000,
            p99_ms=times[min(len(times) - 1, len(times) * 99 // 100)] * 1000,
            most_ms=times[-1] * 1000,
            kills=len(kills),
            kill_p50_ttl=kills[len(kills) // 2] / self._plan.ttl if kills else 0.0,
            kill_most_ttl=kills[-1] / self._plan.ttl if kills else 0.0,
            polls=self._entrant.kind in POLLING,
        )


def run(plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything in the plan. Return plain data."""
    rng = random.Random()  # noqa: S311 - spreads the instants; guards nothing
    duels: list[Duel] = []
    try:
        for entrant in plan.entrants:
            tell(f"starting {entrant.name}")
            duels.append(Duel(entrant, plan, rng))
        for done in range(0, plan.rounds, BLOCK):
            for duel, entrant in zip(duels, plan.entrants):
                tell(f"{entrant.name}: {done} of {plan.rounds} takeovers")
                for _ in range(min(BLOCK, plan.rounds - done)):
                    duel.take_over()
        for done in range(plan.kills):
            for duel, entrant in zip(duels, plan.entrants):
                tell(f"{entrant.name}: kill -9, {done} of {plan.kills}")
                duel.kill()
        takeovers = [duel.figures() for duel in duels]
    finally:
        for duel in duels:
            duel.close()
    many = [_many(entrant, plan, tell) for entrant in plan.entrants if entrant.kind == "hostler" and plan.leaderships]
    return {
        "ttl": plan.ttl,
        "takeovers": [msgspec.to_builtins(figures) for figures in takeovers],
        "ratios": ratios(takeovers),
        "leaderships": many,
    }


def ratios(takeovers: Sequence[Takeovers]) -> list[dict[str, Any]]:
    """Return how many times as fast as each peer on the same storage Hostler hands over, by medians."""
    ours = {figures.name.partition(" on ")[2]: figures for figures in takeovers if figures.name.startswith("hostler")}
    found = []
    for peer in takeovers:
        mine = ours.get(peer.name.partition(" on ")[2])
        if mine is not None and not peer.name.startswith("hostler"):
            found.append({"peer": peer.name, "polls": peer.polls, "times_as_fast": peer.p50_ms / mine.p50_ms})
    return found


def _many(entrant: Entrant, plan: Plan, tell: Callable[[str], None]) -> dict[str, Any]:
    tell(f"{entrant.name}: {plan.leaderships} leaderships in one process")
    numbers = (plan.leaderships, plan.leadership_ttl, plan.seconds)
    command = [sys.executable, "-m", "bench.election_thousand", entrant.url, *map(str, numbers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=child_environ())
    found: dict[str, Any] = json.loads(done.stdout)
    return {"name": entrant.name, "ttl": plan.leadership_ttl, "leaderships": plan.leaderships} | found


@click.command("election")
@click.option("--store", "urls", multiple=True, metavar="URL", help="A storage to measure; repeatable.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=URL",
    help=f"Compare with another library ({', '.join(PEERS)}); repeatable.",
)
@click.option(
    "--peers-python",
    type=click.Path(dir_okay=False),
    default=".local/bench-venv/bin/python",
    show_default=True,
    help="The Python interpreter with the peer libraries (scripts/bench-elections installs them).",
)
@click.option("--ttl", type=click.FloatRange(min=1, max=60), default=2.0, show_default=True, help="Leadership TTL.")
@click.option("--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="Takeovers after release.")
@click.option("--kills", type=click.IntRange(min=0), default=5, show_default=True, help="Takeovers after kill -9.")
@click.option("--leaderships", type=click.IntRange(min=0), default=1000, show_default=True, help="In one process.")
@click.option("--seconds", type=click.FloatRange(min=1), default=10.0, show_default=True, help="To watch renewals.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="Write JSON; - is stdout.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the tables as Markdown.")
def command(  # noqa: PLR0917
    urls: tuple[str, ...],
    peers: tuple[str, ...],
    peers_python: str,
    ttl: float,
    rounds: int,
    kills: int,
    leaderships: int,
    seconds: float,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure the time without a leader, after a release and after kill -9, in units of the TTL.

    Two processes take turns on each storage. Default: a new embedded store. The benchmark uses key 1 of the storage, so
    no replica may use that storage at the same time.
    """

    rivals = tuple(_entrant(text, peers_python) for text in peers)
    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        own = urls or (path_url("sqlite", Path(folder) / "db"),)
        plan = Plan(
            entrants=(*map(_own, own), *rivals),
            peers_python=peers_python,
            ttl=ttl,
            rounds=rounds,
            kills=kills,
            leaderships=leaderships,
            seconds=seconds,
        )
        found = run(plan, ticker.tell)
    if json_file is not None and str(json_file) == "-":
        click.echo(json.dumps(found, indent=2))
    else:
        _show(found)
        if json_file is not None:
            json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(found), encoding="utf-8")


def _own(url: str) -> Entrant:

    if url.startswith("memory:"):
        raise Invalid("--store memory://: two processes cannot share it; name another one")
    open_ttl_storage(url)  # raises Invalid if the URL does not name a TTL storage
    return Entrant("hostler", url)


def _entrant(text: str, python: str) -> Entrant:

    kind, _, url = text.partition("=")
    if kind not in PEERS or "://" not in url:
        raise Invalid(f"--peer {text!r}: must be NAME=URL, and NAME one of {', '.join(PEERS)}")
    if not Path(python).exists():
        raise NotFound(f"{python}: no such interpreter; run scripts/bench-elections, which installs the peers")
    return Entrant(kind, url)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160)
    tables = [("takeovers", TAKEOVER_HEADS, takeover_cells(found))]
    if found["leaderships"]:
        tables.append(("many leaderships in one process", MANY_HEADS, many_cells(found)))
    for title, heads, rows in tables:
        table = Table(title=f"{title}, ttl {found['ttl']:g} s" if title == "takeovers" else title, title_justify="left")
        for number, head in enumerate(heads):
            table.add_column(head, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in ratio_lines(found):
        click.echo(line)


def takeover_cells(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row for each contestant."""
    return [
        (
            row["name"] + (" (polls)" if row["polls"] else ""),
            f"{row['p50_ms']:.1f} ms",
            f"{row['p99_ms']:.1f} ms",
            f"{row['most_ms']:.1f} ms",
            str(row["rounds"]),
            f"{row['kill_p50_ttl']:.2f} ttl" if row["kills"] else "",
            f"{row['kill_most_ttl']:.2f} ttl" if row["kills"] else "",
            str(row["kills"]),
        )
        for row in found["takeovers"]
    ]


def many_cells(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return one row for each storage."""
    return [
        (
            row["name"],
            f"{row['leaderships']:,}",
            f"{row['ttl']:g} s",
            f"{row['renewals_per_second']:.0f}",
            f"{row['cpu_percent']:.1f} %",
            f"{row['cpu_us_per_renewal']:.0f} µs",
            f"{row['acquire_seconds']:.1f} s",
            f"{row['held']:,}",
        )
        for row in found["leaderships"]
    ]


def ratio_lines(found: dict[str, Any]) -> list[str]:
    """Return one line for each peer on a storage on which Hostler was measured too."""
    return [
        f"hostler hands over {row['times_as_fast']:.1f} times as fast as {row['peer']}"
        + (", which polls" if row["polls"] else "")
        for row in found["ratios"]
    ]


def markdown(found: dict[str, Any]) -> str:
    """Return the tables in Markdown."""
    lines = _markdown_table(TAKEOVER_HEADS, takeover_cells(found))
    if found["leaderships"]:
        lines += ["", *_markdown_table(MANY_HEADS, many_cells(found))]
    return "\n".join([*lines, "", *(f"- {line}" for line in ratio_lines(found))]).rstrip() + "\n"


def _markdown_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        "|---|" + "--:|" * (len(heads) - 1),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
