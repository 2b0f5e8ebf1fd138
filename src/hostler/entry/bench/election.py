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
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PATIENCE = 60.0
BLOCK = 10
"""Consecutive takeovers of one contestant before the next one's turn."""
POLLING = ("tooz", "redis-py")
"""Peers that wait by polling."""


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
            command = [sys.executable, "-m", "hostler.entry.bench.election_contestant"]
        else:
            command = [plan.peers_python, str(Path(__file__).with_name("election_peers.py")), entrant.kind]
        self._process = subprocess.Popen(
            [*command, entrant.url, f"{plan.ttl:g}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
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
    command = [sys.executable, "-m", "hostler.entry.bench.election_thousand", entrant.url, *map(str, numbers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return {"name": entrant.name, "ttl": plan.leadership_ttl, "leaderships": plan.leaderships} | found
