"""`client.vms`, `client.workloads` and `client.retained`: virtual machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, cast

from msgspec import UNSET, structs

from hostler.client.channel import Channel
from hostler.client.resource import Resource
from hostler.client.wait import Wait, check_wait, poll
from hostler.errors import Invalid, NotFound
from hostler.model.resources.machines import RetainedApi, TerminalApi, VmApi, VmChannelApi, WorkloadApi
from hostler.model.vm import Origin, Power
from hostler.model.vm_api import (
    MoveRequest,
    RetainedRestore,
    SnapshotRequest,
    TicketRequest,
    VmCreate,
    VmRowPage,
    VmView,
)
from hostler.model.workload_api import WorkloadScale

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Unpack

    from hostler.client.events import Events
    from hostler.client.resource import Keyed, Pages, StalePaging, WriteOptions
    from hostler.client.transport import HttpTransport
    from hostler.model.control_api import EventView
    from hostler.model.resources.operation import Operation
    from hostler.model.vm_api import (
        ImageList,
        RetainedPage,
        RetainedView,
        TicketView,
        VmPage,
        VmPhase,
        VmRow,
        VmUpdate,
        Why,
    )
    from hostler.model.workload_api import InstancePage, InstanceView, WorkloadApply, WorkloadPage, WorkloadView


class VmConditions(TypedDict, total=False):
    """What can be waited for."""

    phase: VmPhase | Collection[VmPhase] | None
    settled: bool
    available: bool
    gone: bool


class Vms:
    """Virtual machines. A machine is named by its id or its name.

    Every write takes `if_match`, the revision it is based on, and `key`, an Idempotency-Key. By default each write gets
    a new key, so that it can be repeated after a lost answer.
    """

    def __init__(self, wire: HttpTransport, events: Callable[..., Events]) -> None:
        self._wire, self._events = wire, events

    async def create(self, org: str, project: str, vm: VmCreate, **options: Unpack[Keyed]) -> VmView:
        """Create a machine."""
        return await self._wire.call(VmApi.create, org, project, body=vm, **options)

    async def get(self, org: str, project: str, vm: str, *, stale: bool = False) -> VmView:
        """Return a machine. `stale`: accept an answer from the server's memory; `client.stale_for` is its age."""
        return await self._wire.call(VmApi.get, org, project, vm, stale=stale)

    def list(
        self,
        org: str | None = None,
        project: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        **options: Unpack[StalePaging],
    ) -> Pages[VmPage, VmView]:
        """List the machines of a project, or all visible ones: `await` a page of `limit`, or `async for` over all."""
        operation, names = _list_operation(org, project)
        return self._wire.list(operation, *names, query={"labels": _labels(labels)}, **options)

    def rows(
        self,
        org: str | None = None,
        project: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        **options: Unpack[StalePaging],
    ) -> Pages[VmRowPage, VmRow]:
        """List machines like `list`, but in short form, for long lists."""
        operation, names = _list_operation(org, project)
        brief = cast("Operation[VmRowPage]", structs.replace(operation, answer=VmRowPage))
        return self._wire.list(brief, *names, query={"labels": _labels(labels), "brief": True}, **options)

    async def images(self) -> ImageList:
        """List the images for machines."""
        return await self._wire.call(VmApi.images)

    async def update(
        self,
        org: str,
        project: str,
        vm: str,
        change: VmUpdate,
        **options: Unpack[WriteOptions],
    ) -> VmView:
        """Change a machine. Fields that are left out do not change."""
        return await self._wire.call(VmApi.update, org, project, vm, body=change, **options)

    async def start(self, org: str, project: str, vm: str, **options: Unpack[WriteOptions]) -> VmView:
        """Start the machine."""
        return await self._wire.call(VmApi.start, org, project, vm, **options)

    async def stop(self, org: str, project: str, vm: str, **options: Unpack[WriteOptions]) -> VmView:
        """Shut the machine down."""
        return await self._wire.call(VmApi.stop, org, project, vm, **options)

    async def reset(self, org: str, project: str, vm: str, **options: Unpack[WriteOptions]) -> VmView:
        """Reset the machine, like its reset button."""
        return await self._wire.call(VmApi.reset, org, project, vm, **options)

    async def delete(self, org: str, project: str, vm: str, **options: Unpack[WriteOptions]) -> VmView:
        """Delete the machine; it is gone once it is not found (`wait(…, gone=True)`)."""
        return await self._wire.call(VmApi.delete, org, project, vm, **options)

    async def snapshot(self, org: str, project: str, vm: str, name: str, **options: Unpack[WriteOptions]) -> VmView:
        """Take a snapshot."""
        body = SnapshotRequest(name=name)
        return await self._wire.call(VmApi.snapshot, org, project, vm, body=body, **options)

    async def restore(self, org: str, project: str, vm: str, name: str, **options: Unpack[WriteOptions]) -> VmView:
        """Restore a snapshot."""
        body = SnapshotRequest(name=name)
        return await self._wire.call(VmApi.restore, org, project, vm, body=body, **options)

    async def drop_snapshot(
        self, org: str, project: str, vm: str, name: str, **options: Unpack[WriteOptions]
    ) -> VmView:
        """Delete a snapshot."""
        return await self._wire.call(VmApi.drop_snapshot, org, project, vm, name, **options)

    async def why(self, org: str, project: str, vm: str) -> Why:
        """Explain the placement of the machine, or why it has no node: node by node."""
        return await self._wire.call(VmApi.why, org, project, vm)

    async def move(
        self,
        org: str,
        project: str,
        vm: str,
        to: str,
        *,
        stop: bool = False,
        drop_snapshots: bool = False,
        **options: Unpack[WriteOptions],
    ) -> VmView:
        """Migrate the machine to another node while it runs; with `stop` it may be stopped if that is not possible.

        A machine that has snapshots is migrated only with `drop_snapshots`: they are lost.
        """
        body = MoveRequest(to=to, stop=stop, drop_snapshots=drop_snapshots)
        return await self._wire.call(VmApi.move, org, project, vm, body=body, **options)

    async def clone(
        self, org: str, project: str, vm: str, snapshot: str, name: str, *, key: str | None = None, **changes: Any
    ) -> VmView:
        """Create a machine with a disk from a snapshot of this one. `changes`: fields of its spec that differ."""
        origin = await self.get(org, project, vm)
        spec = structs.replace(origin.spec, origin=Origin(vm=origin.id, snapshot=snapshot), **changes)
        return await self.create(org, project, VmCreate(name=name, spec=spec, labels=origin.labels), key=key)

    # Relays

    async def log(self, org: str, project: str, vm: str, *, tail: int | None = None) -> str:
        """Return the latest output of its serial port, at most `tail` bytes; also of a machine that is off."""
        return (await self._wire.call(VmChannelApi.log, org, project, vm, query={"tail": tail})).text

    async def ticket(self, org: str, project: str, vm: str, door: Literal["console", "ssh", "shell"]) -> TicketView:
        """Return a one-time ticket for a relay, valid for 30 s: for a browser, which cannot send a token there."""
        body = TicketRequest(door=door)
        return await self._wire.call(VmChannelApi.ticket, org, project, vm, body=body)

    def console(self, org: str, project: str, vm: str) -> Channel:
        """Return its serial port, as a channel to be entered."""
        return self._channel(org, project, vm, "console")

    def ssh(self, org: str, project: str, vm: str) -> Channel:
        """Return a connection to the SSH server in the machine, as a channel to be entered, for an SSH client."""
        return self._channel(org, project, vm, "ssh")

    async def terminal_key(self) -> str:
        """Return the public key with which the server opens shells for the web UI; empty: it has none."""
        return (await self._wire.call(TerminalApi.key)).key

    def _channel(self, org: str, project: str, vm: str, kind: str) -> Channel:
        url = self._wire.address.to(*VmApi.get.segments(org, project, vm), kind)
        return Channel(f"{kind} of {vm}", lambda: self._wire.socket(url))

    async def wait(
        self,
        org: str,
        project: str,
        vm: str,
        *,
        within: float = 300.0,
        on_change: Callable[[VmView], None] | None = None,
        **until: Unpack[VmConditions],
    ) -> VmView | None:
        """Wait until the machine is in `phase` (or one of them), matches its spec (`settled`), is `available` (settled,
        and its user can log in), or is `gone` (returns None).

        `on_change` gets the first state, and the state after each change. NotFound: there is no such machine, or it was
        deleted while waiting for something else. Unavailable: not reached within `within` seconds.
        """
        aim = _Aim(**until)
        if aim == _Aim():
            raise Invalid("wait: give phase, settled, available or gone")
        look = _Look(self, org, project, vm, on_change)
        events = self._events(org=org, project=project, kinds=("vm", "handle", "alive"))
        async with look.following(events, f"vm {vm}", within, "wait longer, or ask why"):
            while True:
                try:
                    view = await look.now()
                except NotFound:
                    if aim.gone:
                        return None
                    raise
                if not aim.gone and aim.is_reached(view):
                    return view
                await look.changed()


class _Look(Wait[VmView]):
    """Observes one machine."""

    def __init__(self, vms: Vms, org: str, project: str, vm: str, on_change: Callable[[VmView], None] | None) -> None:
        super().__init__(on_change)
        self._vms, self._org, self._project, self._vm = vms, org, project, vm

    async def now(self) -> VmView:
        """Return the current state."""
        view = await self._read_state(lambda: self._vms.get(self._org, self._project, self._vm))
        self._vm = view.id  # the name may be given to another machine
        return view

    def _is_about_it(self, event: EventView) -> bool:
        return event.of == "alive" or event.type == "reset" or event.subject.endswith(f"/{self._vm}")


class _Aim(NamedTuple):
    """What is waited for."""

    phase: VmPhase | Collection[VmPhase] | None = None
    settled: bool = False
    available: bool = False
    gone: bool = False

    def is_reached(self, view: VmView) -> bool:
        wanted = () if self.phase is None else (self.phase,) if isinstance(self.phase, str) else tuple(self.phase)
        # A machine that should be off never becomes available. Without a login, running is all that can be waited for.
        tells = view.readiness is not None or view.access is not None
        if self.available and not view.available and view.power is Power.ON and tells:
            return False
        return (not wanted or view.phase in wanted) and (view.settled or not (self.settled or self.available))


def _list_operation(org: str | None, project: str | None) -> tuple[Operation[VmPage], tuple[str, ...]]:
    if (org is None) != (project is None):
        raise Invalid("vms: give both org and project, or neither")
    return (VmApi.list_all, ()) if org is None or project is None else (VmApi.list, (org, project))


def _labels(labels: Mapping[str, str] | None) -> str | None:
    return ",".join(f"{name}={value}" for name, value in (labels or {}).items()) or None


class RetainedMachines(Resource):
    """Machines that are out of service and are kept with their disks."""

    async def list(self) -> RetainedPage:
        """List all visible retained machines, newest first."""
        return await self._wire.call(RetainedApi.list)

    async def get(self, node: str, name: str) -> RetainedView:
        """Return one retained machine."""
        return await self._wire.call(RetainedApi.get, node, name)

    async def restore(self, node: str, name: str, *, as_name: str | None = None, **options: Unpack[Keyed]) -> VmView:
        """Restore its virtual machine to that disk, or create a new machine `as_name` from it."""
        body = RetainedRestore(name=as_name)
        return await self._wire.call(RetainedApi.restore, node, name, body=body, **options)

    async def delete(self, node: str, name: str, **options: Unpack[Keyed]) -> RetainedView:
        """Delete it permanently, with disk and snapshots."""
        return await self._wire.call(RetainedApi.delete, node, name, **options)


class Workloads(Resource):
    """Workloads. Writes take `key`, an Idempotency-Key, and `if_match`, the revision that was read."""

    async def apply(self, workload: WorkloadApply, **options: Unpack[WriteOptions]) -> WorkloadView:
        """Create the workload, or change it to this. Applying the same again changes nothing."""
        return await self._wire.call(WorkloadApi.apply, workload.name, body=workload, **options)

    async def get(self, name: str, *, stale: bool = False) -> WorkloadView:
        """Return a workload with its progress. NotFound: there is none."""
        return await self._wire.call(WorkloadApi.get, name, stale=stale)

    def list(self, **options: Unpack[StalePaging]) -> Pages[WorkloadPage, WorkloadView]:
        """List all visible workloads: `await` a page of `limit`, or `async for` over all."""
        return self._wire.list(WorkloadApi.list, **options)

    def instances(self, name: str, **options: Unpack[StalePaging]) -> Pages[InstancePage, InstanceView]:
        """List the instances of a workload in the order of their numbers: `await` a page, or `async for` over all."""
        return self._wire.list(WorkloadApi.instances, name, **options)

    async def scale(
        self,
        name: str,
        instances: int | None = None,
        *,
        enabled: bool | None = None,
        **options: Unpack[WriteOptions],
    ) -> WorkloadView:
        """Change the number of instances, or switch them on or off."""
        body = WorkloadScale(
            instances=UNSET if instances is None else instances, enabled=UNSET if enabled is None else enabled
        )
        return await self._wire.call(WorkloadApi.scale, name, body=body, **options)

    async def delete(self, name: str, **options: Unpack[WriteOptions]) -> WorkloadView:
        """Delete the workload and its machines."""
        return await self._wire.call(WorkloadApi.delete, name, **options)

    async def wait(
        self,
        name: str,
        *,
        settled: bool = False,
        gone: bool = False,
        within: float = 600.0,
        on_change: Callable[[WorkloadView], None] | None = None,
    ) -> WorkloadView | None:
        """Wait until the workload matches its spec, or until it is `gone` (returns None).

        `on_change` gets the first state, and the state after each change. NotFound: it was deleted while waiting for
        something else. Unavailable: not reached within `within` seconds.
        """
        check_wait(settled=settled, gone=gone)
        return await poll(
            f"workload {name}", lambda: self.get(name), lambda view: view.settled, gone, within, on_change
        )
