"""What an agent and the process of one slice instance say to each other.

The process reads its `Order` from its standard input, imports the slice, and then answers on a unix socket that it was
given: each message is one frame (`kit/frames.py`) of msgpack, and each question has an answer with its number.

    agent                        worker
    Look(1)                  ->
                             <-  State(1) | Problem(1)
    Activate(2)              ->
                             <-  State(2) | Problem(2)
                             <-  State(0)   it changed by itself
"""

from __future__ import annotations

import msgspec

from hostler.model.deployment import SliceSettings
from hostler.ports.slices import Life, Method  # noqa: TC001 - msgspec reads annotations at run time

MAX_LOG = 2 * 1024 * 1024
"""Bytes of each of the two files of a log."""


GATEWAY = "/run/hostler"
"""Where a confined worker with a root of its own finds the folder of the gateway."""


class Confinement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker makes of the namespaces that it is started in (`hostler.slices.confinement`)."""

    own_root: bool = False
    """Whether it sees the system's folders, read-only, the folders that are named here, and nothing else."""
    readable: tuple[str, ...] = ()
    """Folders that it needs: Python, Hostler, the slice."""
    hidden: str = ""
    """The data folder, which is empty for the worker but for the folders that are named here."""
    work: str = ""
    """The folder that it works in, and may write to."""
    temporary: str = ""
    """The folder that /tmp is."""
    gateway: str = ""
    """The folder of the gateway."""
    uid: int | None = None
    """Who it becomes; None: it stays who it is."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker is to be. Secrets are in here, and neither in its arguments nor in its first environment."""

    artifact: str
    instance: int
    module: str
    """What is imported."""
    path: tuple[str, ...] = ()
    """Where it is imported from, before all else."""
    template: int = 0
    settings: SliceSettings = SliceSettings()
    node: str = ""
    shown: tuple[str, ...] = ()
    """What each of these is called in tracebacks, if not so."""
    control: int = 3
    """The descriptor of the socket that it is asked on."""
    output: int = -1
    """The descriptor of the pipe into which it prints; whoever is the worker reads it. -1: nobody need."""
    logs: tuple[int, ...] = ()
    """The descriptors of its log, and of what was before: what is read there is written here, `MAX_LOG` bytes each."""
    host: str = "127.0.0.1"
    """Calls are taken there, at a port that is free."""
    tokens: frozenset[str] = frozenset()
    """SHA-256 sums of the tokens of those who may call."""
    gateway: str = ""
    """The unix socket by which it calls other slices; empty: there is none."""
    gateway_token: str = ""
    orphaned_after: float = 600.0
    """Seconds without a word from an agent, after which it ends by itself."""
    healthy_every: float = 5.0
    healthy_within: float = 50.0
    """Seconds that it may take after `start` until it is healthy."""


class Control(msgspec.Struct, frozen=True, array_like=True):
    """What is said on the control socket; `number` counts the agent's questions."""

    number: int


class Look(Control, frozen=True, tag=1):
    """How are you?"""


class Activate(Control, frozen=True, tag=2):
    """Call `start`, wait until healthy, take calls."""


class Deactivate(Control, frozen=True, tag=3):
    """Take no more calls, let those under way end within `grace` seconds, call `stop`."""

    grace: float = 0.0


class Admit(Control, frozen=True, tag=4):
    """Take calls from these."""

    tokens: frozenset[str] = frozenset()


class Gateway(Control, frozen=True, tag=5):
    """Show this token to the agent when calling other slices."""

    token: str = ""


class Quit(Control, frozen=True, tag=6):
    """End. No answer but the end."""


class State(Control, frozen=True, tag=7):
    """How it is. `number` 0: it changed by itself."""

    artifact: str
    instance: int
    template: int
    settings: SliceSettings
    life: Life
    methods: tuple[Method, ...]
    address: str
    """`host:port` that takes calls, whether they are admitted now or not."""
    detail: str = ""
    in_flight: int = 0


class Problem(Control, frozen=True, tag=8):
    """It could not be done, and will not do however often it is tried."""

    why: str


FromAgent = Look | Activate | Deactivate | Admit | Gateway | Quit
FromWorker = State | Problem
