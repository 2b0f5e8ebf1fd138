"""`hostler.Client`: the API client for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from hostler.client.accounts import Projects, Quotas, Users
from hostler.client.address import Address
from hostler.client.control import Control, Decisions, Sim
from hostler.client.deployments import Artifacts, Blueprints
from hostler.client.events import Events
from hostler.client.hardware import Inventory, Nodes, Racks
from hostler.client.invoke import WITHIN, Invocation
from hostler.client.labs import Labs
from hostler.client.machines import RetainedMachines, Vms, Workloads
from hostler.client.transport import HttpTransport
from hostler.kit.tasks import Closing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping
    from typing import Unpack

    from hostler.client.resource import TransportOptions
    from hostler.model.access_api import TokenIssued

TIMEOUT = 30.0
RETRIES = 3


class Client(Closing):
    """The HTTP API of Hostler, typed.

        async with Client("https://hostler.example:8440", token) as client:
            vm = await client.vms.create("acme", "web", VmCreate(name="www", spec=VmSpec(cpus=2, memory_mib=2048)))
            await client.vms.wait("acme", "web", vm.id, phase=Phase.RUNNING)

    Errors are those of `hostler.errors`, with the message of the server. Reads are repeated when the connection is
    lost. Writes are repeated, too, with an Idempotency-Key by which the server does them once; at most `retries` times.
    `url` may be several URLs, separated by commas: the first server that accepts connections is used, and another one
    when it no longer does. `ca` is a file of certificates to trust, `unix` a socket to connect to instead of the host
    of the URL. A token is not sent over plain http to another machine, unless `insecure` is set. `on_slowed` gets a
    message when a request waits for a rate limit.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        unix: str | None = None,
        insecure: bool = False,
        **options: Unpack[TransportOptions],
    ) -> None:
        address = Address(url, token=token is not None, unix=unix, insecure=insecure)
        self._wire = HttpTransport(address, token, timeout=timeout, retries=retries, unix=unix, **options)
        self.vms = Vms(self._wire, self.events)
        self.labs = Labs(self._wire, self.events)
        self.workloads = Workloads(self._wire)
        self.blueprints = Blueprints(self._wire)
        self.artifacts = Artifacts(self._wire)
        self.nodes = Nodes(self._wire)
        self.retained = RetainedMachines(self._wire)
        self.racks = Racks(self._wire)
        self.inventory = Inventory(self._wire)
        self.users = Users(self._wire)
        self.projects = Projects(self._wire)
        self.quotas = Quotas(self._wire)
        self.control = Control(self._wire)
        self.decisions = Decisions(self._wire)
        self.traces = self.decisions
        """The former name of `decisions` (docs/deprecations.md)."""
        self.sim = Sim(self._wire)
        self._invocation = Invocation(self._wire)

    @property
    def url(self) -> str:
        """Return the URL of the server; of several, the one in use."""
        return self._wire.address.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    async def __aenter__(self) -> Self:
        await self._wire.open()
        return self

    async def aclose(self) -> None:
        """Close every connection. The client can be entered again."""
        await self._wire.aclose()

    @property
    def stale_for(self) -> float:
        """Return how many seconds old the last answer may be; 0.0 unless `stale=True` was given and needed."""
        return self._wire.stale_for

    async def login(self, name: str, password: str) -> TokenIssued:
        """Log in, and use the session from now on."""
        self._wire.address.check_token()
        issued = await self.users.login(name, password)
        self._wire.use_token(issued.token)
        return issued

    async def logout(self) -> None:
        """End the session, and discard its token."""
        await self.users.logout()
        self._wire.use_token(None)

    async def invoke(
        self, target: str, method: str, arguments: Mapping[str, Any] | None = None, *, within: float = WITHIN
    ) -> Any:
        """Call a method of a slice, `group:name` or exactly `group:name:version`, and return its result.

        A method that streams gives a list. Raised: the method raised. Unavailable: no instance accepts the call; it did
        not start. DeadlinePassed, Uncertain: it may have been done.
        """
        return await self._invocation.invoke(target, method, arguments, within)

    def stream(
        self, target: str, method: str, arguments: Mapping[str, Any] | None = None, *, within: float = WITHIN
    ) -> AsyncGenerator[Any, None]:
        """Yield the results of a method that streams, as they arrive."""
        return self._invocation.stream(target, method, arguments, within)

    def answers(
        self, target: str, method: str, arguments: Mapping[str, Any] | None = None, *, within: float = WITHIN
    ) -> AsyncGenerator[tuple[Any, bool], None]:
        """Yield each result as it arrives, and with it whether the method streams."""
        return self._invocation.answers(target, method, arguments, within)

    def events(
        self,
        after: str | int | None = None,
        *,
        org: str | None = None,
        project: str | None = None,
        kinds: Iterable[str] = (),
        patience: float | None = None,
    ) -> Events:
        """Iterate over changes from now on, or after the id of an event or the revision of a list.

        `kinds` are of vm, handle, lab, node, alive, leader, blueprint, deployment, slice, endpoint, workload, region,
        zone, rack, blade, pdu, tor; none: all of them.
        """
        query = {"org": org, "project": project, "kinds": ",".join(kinds) or None}
        return Events(self._wire, query, after=None if after is None else str(after), patience=patience)
