"""`client.vms`: virtual machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import structs

from hostler.client.channel import Channel
from hostler.client.wait import Wait
from hostler.errors import Invalid, NotFound
from hostler.model.api import (
    ImageList,
    MoveRequest,
    SnapshotRequest,
    TerminalKey,
    TicketRequest,
    TicketView,
    VmCreate,
    VmLog,
    VmPage,
    VmRow,
    VmRowPage,
    VmView,
    Why,
)
from hostler.model.vm import Origin, Power

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from hostler.client.events import Events
    from hostler.client.pages import Pages
    from hostler.client.transport import HttpTransport
    from hostler.model.api import EventView, Phase, VmUpdate


class Vms:
    """Virtual machines. A machine is named by its id or its name.

    Every write takes `if_match`, the revision it is based on, and `key`, an Idempotency-Key. By default each write gets
    a new key, so that it can be repeated after a lost answer.
    """

    def __init__(self, wire: HttpTransport, events: Callable[..., Events]) -> None:
        self._wire, self._events = wire, events

    async def create(self, org: str, project: str, vm: VmCreate, *, key: str | None = None) -> VmView:
        """Create a machine."""
        return await self._wire.write("POST", VmView, *_vms(org, project), body=vm, key=key)

    async def get(self, org: str, project: str, vm: str, *, stale: bool = False) -> VmView:
        """Return a machine. `stale`: accept an answer from the server's memory; `client.stale_for` is its age."""
        return await self._wire.read(VmView, *_vms(org, project), vm, stale=stale)

    def list(
        self,
        org: str | None = None,
        project: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
        labels: Mapping[str, str] | None = None,
        stale: bool = False,
    ) -> Pages[VmPage, VmView]:
        """List the machines of a project, or all visible ones: `await` a page of `limit`, or `async for` over all."""
        path, query = _listed(org, project), {"labels": _labels(labels)}
        return self._wire.pages(VmPage, *path, limit=limit, after=after, query=query, stale=stale)

    def rows(
        self,
        org: str | None = None,
        project: str | None = None,
        *,
        limit: int | None = None,
        after: str | None = None,
        labels: Mapping[str, str] | None = None,
        stale: bool = False,
    ) -> Pages[VmRowPage, VmRow]:
        """List machines like `list`, but in short form, for long lists."""
        path, query = _listed(org, project), {"labels": _labels(labels)}
        return self._wire.pages(VmRowPage, *path, limit=limit, after=after, query={**query, "brief": True}, stale=stale)

    async def images(self) -> ImageList:
        """List the images for machines."""
        return await self._wire.read(ImageList, "images")

    async def update(
        self,
        org: str,
        project: str,
        vm: str,
        change: VmUpdate,
        *,
        if_match: int | None = None,
        key: str | None = None,
    ) -> VmView:
        """Change a machine. Fields that are left out do not change."""
        return await self._wire.write("PATCH", VmView, *_vms(org, project), vm, body=change, if_match=if_match, key=key)

    async def start(
        self, org: str, project: str, vm: str, *, if_match: int | None = None, key: str | None = None
    ) -> VmView:
        """Start the machine."""
        return await self._wire.write("POST", VmView, *_vms(org, project), vm, "start", if_match=if_match, key=key)

    async def stop(
        self, org: str, project: str, vm: str, *, if_match: int | None = None, key: str | None = None
    ) -> VmView:
        """Shut the machine down."""
        return await self._wire.write("POST", VmView, *_vms(org, project), vm, "stop", if_match=if_match, key=key)

    async def reset(
        self, org: str, project: str, vm: str, *, if_match: int | None = None, key: str | None = None
    ) -> VmView:
        """Reset the machine, like its reset button."""
        return await self._wire.write("POST", VmView, *_vms(org, project), vm, "reset", if_match=if_match, key=key)

    async def delete(
        self, org: str, project: str, vm: str, *, if_match: int | None = None, key: str | None = None
    ) -> VmView:
        """Delete the machine; it is gone once it is not found (`wait(…, gone=True)`)."""
        return await self._wire.write("DELETE", VmView, *_vms(org, project), vm, if_match=if_match, key=key)

    async def snapshot(
        self, org: str, project: str, vm: str, name: str, *, if_match: int | None = None, key: str | None = None
    ) -> VmView:
        """Take a snapshot."""
        body = SnapshotRequest(name=name)
        return await self._wire.write(
            "POST", VmView, *_vms(org, project), vm, "snapshot", body=body, if_match=if_match, key=key
        )

    async def restore(
        self, org: str, project: str, vm: str, name: str, *, if_match: int | None = None, key: str | None = None
    ) -> VmView:
        """Restore a snapshot."""
        body = SnapshotRequest(name=name)
        return await self._wire.write(
            "POST", VmView, *_vms(org, project), vm, "restore", body=body, if_match=if_match, key=key
        )

    async def drop_snapshot(
        self, org: str, project: str, vm: str, name: str, *, if_match: int | None = None, key: str | None = None
    ) -> VmView:
        """Delete a snapshot."""
        return await self._wire.write(
            "DELETE", VmView, *_vms(org, project), vm, "snapshots", name, if_match=if_match, key=key
        )

    async def why(self, org: str, project: str, vm: str) -> Why:
        """Explain the placement of the machine, or why it has no node: node by node."""
        return await self._wire.read(Why, *_vms(org, project), vm, "why")

    async def move(
        self,
        org: str,
        project: str,
        vm: str,
        to: str,
        *,
        stop: bool = False,
        drop_snapshots: bool = False,
        if_match: int | None = None,
        key: str | None = None,
    ) -> VmView:
        """Migrate the machine to another node while it runs; with `stop` it may be stopped if that is not possible.

        A machine that has snapshots is migrated only with `drop_snapshots`: they are lost.
        """
        body = MoveRequest(to=to, stop=stop, drop_snapshots=drop_snapshots)
        return await self._wire.write(
            "POST", VmView, *_vms(org, project), vm, "move", body=body, if_match=if_match, key=key
        )

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
        return (await self._wire.read(VmLog, *_vms(org, project), vm, "log", query={"tail": tail})).text

    async def ticket(self, org: str, project: str, vm: str, door: Literal["console", "ssh", "shell"]) -> TicketView:
        """Return a one-time ticket for a relay, valid for 30 s: for a browser, which cannot send a token there."""
        body = TicketRequest(door=door)
        return await self._wire.write("POST", TicketView, *_vms(org, project), vm, "tickets", body=body, repeat=False)

    def console(self, org: str, project: str, vm: str) -> Channel:
        """Return its serial port, as a channel to be entered."""
        return self._door(org, project, vm, "console")

    def ssh(self, org: str, project: str, vm: str) -> Channel:
        """Return a connection to the SSH server in the machine, as a channel to be entered, for an SSH client."""
        return self._door(org, project, vm, "ssh")

    async def terminal_key(self) -> str:
        """Return the public key with which the server opens shells for the web UI; empty: it has none."""
        return (await self._wire.read(TerminalKey, "terminal-key")).key

    def _door(self, org: str, project: str, vm: str, door: str) -> Channel:
        url = self._wire.address.to(*_vms(org, project), vm, door)
        return Channel(f"{door} of {vm}", lambda: self._wire.socket(url))

    async def wait(
        self,
        org: str,
        project: str,
        vm: str,
        *,
        phase: Phase | Collection[Phase] | None = None,
        settled: bool = False,
        available: bool = False,
        gone: bool = False,
        within: float = 300.0,
        on_change: Callable[[VmView], None] | None = None,
    ) -> VmView | None:
        """Wait until the machine is in `phase` (or one of them), matches its spec (`settled`), is `available` (settled,
        and its user can log in), or is `gone` (returns None).

        `on_change` gets the first state, and the state after each change. NotFound: there is no such machine, or it was
        deleted while waiting for something else. Unavailable: not reached within `within` seconds.
        """
        if phase is None and not (settled or available or gone):
            raise Invalid("wait: give phase, settled, available or gone")
        look = _Look(self, org, project, vm, on_change)
        events = self._events(org=org, project=project, kinds=("vm", "handle", "alive"))
        async with look.following(events, f"vm {vm}", within, "wait longer, or ask why"):
            while True:
                try:
                    view = await look.now()
                except NotFound:
                    if gone:
                        return None
                    raise
                if not gone and _arrived(view, phase, settled=settled or available, available=available):
                    return view
                await look.changed()


class _Look(Wait[VmView]):
    """Observes one machine."""

    def __init__(self, vms: Vms, org: str, project: str, vm: str, on_change: Callable[[VmView], None] | None) -> None:
        super().__init__(on_change)
        self._vms, self._org, self._project, self._vm = vms, org, project, vm

    async def now(self) -> VmView:
        """Return the current state."""
        view = await self._asked(lambda: self._vms.get(self._org, self._project, self._vm))
        self._vm = view.id  # the name may be given to another machine
        return view

    def _is_about_it(self, event: EventView) -> bool:
        return event.of == "alive" or event.type == "reset" or event.subject.endswith(f"/{self._vm}")


def _arrived(view: VmView, phase: Phase | Collection[Phase] | None, *, settled: bool, available: bool) -> bool:
    wanted = () if phase is None else (phase,) if isinstance(phase, str) else tuple(phase)
    # A machine that should be off never becomes available. Without a login, running is all that can be waited for.
    tells = view.readiness is not None or view.access is not None
    if available and not view.available and view.power is Power.ON and tells:
        return False
    return (not wanted or view.phase in wanted) and (not settled or view.settled)


def _listed(org: str | None, project: str | None) -> tuple[str, ...]:
    if (org is None) != (project is None):
        raise Invalid("vms: give both org and project, or neither")
    return ("vms",) if org is None or project is None else _vms(org, project)


def _labels(labels: Mapping[str, str] | None) -> str | None:
    return ",".join(f"{name}={value}" for name, value in (labels or {}).items()) or None


def _vms(org: str, project: str) -> tuple[str, ...]:
    return "orgs", org, "projects", project, "vms"
