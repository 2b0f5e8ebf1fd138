"""`hostler.Client`: the way in for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from hostler.client.address import Address
from hostler.client.artifacts import Artifacts
from hostler.client.blueprints import Blueprints
from hostler.client.events import Events
from hostler.client.groups import Control, Nodes, Projects, Quotas, RetainedMachines, Users
from hostler.client.invoke import WITHIN, Invocation
from hostler.client.labs import Labs
from hostler.client.machines import Vms
from hostler.client.racks import Inventory, Racks
from hostler.client.sim import Sim
from hostler.client.traces import Traces
from hostler.client.transport import Wire
from hostler.client.workloads import Workloads
from hostler.kit.closing import Closing

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

    from hostler.model.api import TokenIssued

TIMEOUT = 30.0
RETRIES = 3


class Client(Closing):
    """The HTTP API of Hostler, typed.

        async with Client("https://hostler.example:8440", token) as client:
            vm = await client.vms.create("acme", "web", VmCreate(name="www", spec=VmSpec(cpus=2, memory_mib=2048)))
            await client.vms.wait("acme", "web", vm.id, phase=Phase.RUNNING)

    Errors are those of `hostler.errors`, with the server's own sentence. Reads are repeated when the connection is
        self._wire = Wire(address, token, timeout=timeout, retries=retries, ca=ca, unix=unix, on_slowed=on_slowed)
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = TIMEOUT,
        retries: int = RETRIES,
        ca: str | None = None,
        unix: str | None = None,
        insecure: bool = False,
        on_slowed: Callable[[str], None] | None = None,
    ) -> None:
        address = Address(url, token=token is not None, unix=unix, insecure=insecure)
        self._wire = Wire(address, token, timeout=timeout, retries=retries, ca=ca, unix=unix, on_slowed=on_slowed)
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
        self.traces = Traces(self._wire)
        self.sim = Sim(self._wire)
        self._invocation = Invocation(self._wire)

    @property
    def url(self) -> str:
        """Of the server that is asked; of several, the one that is in use."""
        return self._wire.address.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    async def __aenter__(self) -> Self:
        await self._wire.open()
        return self

    async def aclose(self) -> None:
        """Close every connection; it can be entered again."""
        await self._wire.aclose()

    @property
    def stale_for(self) -> float:
        """How many seconds old the last answer may be; 0.0 unless `stale=True` was asked for, and was needed."""
        return self._wire.stale_for

    async def login(self, name: str, password: str) -> TokenIssued:
        """Log in, and use the session from now on."""
        self._wire.address.check_token()
        issued = await self.users.login(name, password)
        self._wire.use_token(issued.token)
        return issued

    async def logout(self) -> None:
        """End the session, and forget its token."""
        await self.users.logout()
        self._wire.use_token(None)

    async def invoke(
        self, target: str, method: str, arguments: Mapping[str, Any] | None = None, *, within: float = WITHIN
    ) -> Any:
        """Call a method of a slice, `group:name` or exactly `group:name:version`; what it returns.

        Of a method that streams, a list. Raised: the method raised. Unavailable: nobody takes the call now; it did not
        start. DeadlinePassed, Uncertain: it may have been done.
        """
        return await self._invocation.invoke(target, method, arguments, within)

    def stream(
        self, target: str, method: str, arguments: Mapping[str, Any] | None = None, *, within: float = WITHIN
    ) -> AsyncGenerator[Any, None]:
        """The results of a method that streams, as they come: `async for` over it."""
        return self._invocation.stream(target, method, arguments, within)

    def answers(
        self, target: str, method: str, arguments: Mapping[str, Any] | None = None, *, within: float = WITHIN
    ) -> AsyncGenerator[tuple[Any, bool], None]:
        """Whatever the method answers, as it comes, and with each result whether the method streams."""
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
        """What changes from now on, or after an event's id or a list's revision: `async for` over it.

        `kinds` are of vm, handle, lab, node, alive, leader, blueprint, deployment, slice, endpoint, workload, region,
        zone, rack, blade, pdu, tor; none: all of them.
        """
        query = {"org": org, "project": project, "kinds": ",".join(kinds) or None}
        return Events(self._wire, query, after=None if after is None else str(after), patience=patience)
