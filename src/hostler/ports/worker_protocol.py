"""The protocol between an agent and the worker process of one slice instance.

The process reads its `Order` from its standard input, imports the slice, and then answers on a unix socket that it was
given: each message is one frame (`kit/frames.py`) of msgpack, and each answer has the number of its request.

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
"""Maximum size in bytes of each of the two files of a log."""


GATEWAY = "/run/hostler"
"""Path of the gateway's folder inside a confined worker that has its own root."""


class Confinement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a worker confines itself in the namespaces that it is started in (`hostler.slices.confinement`)."""

    own_root: bool = False
    """Whether it sees only the system's folders, read-only, and the folders that are named here."""
    readable: tuple[str, ...] = ()
    """Folders that it reads: Python, Hostler, the slice."""
    hidden: str = ""
    """The data folder. The worker sees it as empty except for the folders that are named here."""
    work: str = ""
    """Its working directory, which it may write to."""
    temporary: str = ""
    """The folder that is mounted as /tmp."""
    gateway: str = ""
    """The folder of the gateway."""
    uid: int | None = None
    """The user that it switches to; None: it keeps its user."""


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The configuration of a worker.

    It contains secrets, which are in neither the arguments nor the initial environment of the process.
    """

    artifact: str
    instance: int
    module: str
    """The module to import."""
    path: tuple[str, ...] = ()
    """Import path, searched before everything else."""
    template: int = 0
    settings: SliceSettings = SliceSettings()
    node: str = ""
    shown: tuple[str, ...] = ()
    """Names that tracebacks show for these paths."""
    control: int = 3
    """Descriptor of the control socket."""
    output: int = -1
    """Descriptor of the pipe that its output goes into; the worker itself reads it. -1: no pipe."""
    logs: tuple[int, ...] = ()
    """Descriptors of the current and the previous log file.

    The captured output is written there, `MAX_LOG` bytes each.
    """
    host: str = "127.0.0.1"
    """Address on which it takes calls, at a free port."""
    tokens: frozenset[str] = frozenset()
    """SHA-256 sums of the tokens of admitted callers."""
    gateway: str = ""
    """Unix socket through which it calls other slices; empty: it has none."""
    gateway_token: str = ""
    orphaned_after: float = 600.0
    """The worker ends by itself after this many seconds without a message from an agent."""
    healthy_every: float = 5.0
    healthy_within: float = 50.0
    """Seconds after `start` within which it must become healthy."""


class Control(msgspec.Struct, frozen=True, array_like=True):
    """A message on the control socket; `number` counts the agent's requests."""

    number: int


class Look(Control, frozen=True, tag=1):
    """Request the state."""


class Activate(Control, frozen=True, tag=2):
    """Call `start`, wait until healthy, take calls."""


class Deactivate(Control, frozen=True, tag=3):
    """Take no more calls, let calls in progress end within `grace` seconds, call `stop`."""

    grace: float = 0.0


class Admit(Control, frozen=True, tag=4):
    """Take calls from callers with these tokens."""

    tokens: frozenset[str] = frozenset()


class Gateway(Control, frozen=True, tag=5):
    """Set the token that the worker shows to the agent when it calls other slices."""

    token: str = ""


class Quit(Control, frozen=True, tag=6):
    """End the process. The only answer is the end of the connection."""


class State(Control, frozen=True, tag=7):
    """The state of the worker. `number` 0: it changed by itself."""

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
    """The request failed, and repeating it does not help."""

    why: str


FromAgent = Look | Activate | Deactivate | Admit | Gateway | Quit
FromWorker = State | Problem
