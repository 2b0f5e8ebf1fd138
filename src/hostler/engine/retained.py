"""Service for retained machines: list, restore and delete them.

Machines that the caller does not see are NotFound, exactly as if they did not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.retention import RETENTION, kept_for, loss_reason, own_vm
from hostler.engine.request import Written
from hostler.errors import Conflict, NotFound
from hostler.keys.families import MEMBER, RETAINED, RETAINED_REQUEST, VM
from hostler.model.node import RetainedRequest
from hostler.model.vm import Reinstatement, VirtualMachine, has_disk
from hostler.model.vm_api import RetainedPage, RetainedView, VmView

if TYPE_CHECKING:
    from hostler.engine.idempotent_writer import Writer
    from hostler.engine.quotas import Pieces
    from hostler.engine.request import Caller, Request
    from hostler.engine.runtime.env import Env
    from hostler.engine.view import View
    from hostler.engine.vms import VmService
    from hostler.keys.entry import Entry
    from hostler.model.node import Retained
    from hostler.model.vm import VmHandle
    from hostler.model.vm_api import RetainedRestore
    from hostler.ports.store import Comparison, Store

ACCEPTED = 202
_RESTORE = "retained.restore"


class RetainedService:
    """Lists, restores and deletes retained machines. One per process. `retention`: seconds for which they are kept."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        view: View,
        vms: VmService,
        env: Env,
        *,
        retention: float = RETENTION,
    ) -> None:
        self._store, self._writer, self._view, self._vms = store, writer, view, vms
        self._clock, self._new_id, self._retention = env.clock, env.new_id, retention

    async def list(self, caller: Caller) -> RetainedPage:
        """Return all that the caller sees, from the cache of this process, newest first."""
        entries = [e for e in self._view.retained.entries.values() if caller.sees(e.value.org, e.value.project)]
        entries.sort(key=lambda entry: (-entry.value.retained_at, entry.key))
        items = tuple(self._shown(entry) for entry in entries)
        return RetainedPage(items=items, revision=self._view.retained.revision)

    async def get(self, caller: Caller, node: str, name: str) -> RetainedView:
        """Return one retained machine."""
        return self._shown(await self._find(caller, node, name))

    async def restore(self, request: Request, node: str, name: str, wanted: RetainedRestore) -> Written[VmView]:
        """Restore the virtual machine to that disk, on that node; or create a new machine from the disk.

        Conflict: its virtual machine has a newer disk, the retained machine is being deleted, or no node has it.
        """
        request.caller.require("modify_workloads")

        async def once() -> Written[VmView]:
            while True:
                entry = await self._find(request.caller, node, name)
                try:
                    return await self._restore(request, entry, wanted)
                except Conflict:
                    again = await RETAINED.get(self._store, node=node, name=name)
                    if again is None or again.mod_revision == entry.mod_revision:
                        raise

        return await self._writer.once(request, VmView, once)

    async def _restore(self, request: Request, entry: Entry[Retained], wanted: RetainedRestore) -> Written[VmView]:
        retained, node, name = entry.value, entry.parts["node"], entry.parts["name"]
        if await RETAINED_REQUEST.get(self._store, node=node, name=name) is not None:
            raise Conflict(f"retained machine {node}/{name}: its deletion was requested and waits for its node")
        if why := loss_reason(self._view, entry):
            raise Conflict(f"retained machine {node}/{name}: {why}; start the agent of node {node} where its disk is")
        # The record is rewritten unchanged, so that a deletion decided from the older revision is refused.
        held: Pieces = (
            [RETAINED.unchanged(entry), RETAINED_REQUEST.absent(node=node, name=name)],
            [RETAINED.put(retained, node=node, name=name)],
        )
        link = Reinstatement(node=node, name=name)
        own = await self._own(retained) if wanted.name is None else None
        if own is None:
            return await self._vms.add(request, self._new_vm(retained, link, wanted.name), _RESTORE, held)

        def bring_back(found: VirtualMachine, handle: VmHandle | None) -> VirtualMachine:
            if found.deleting or has_disk(handle):
                has = "is being deleted" if found.deleting else f"has a newer disk on node {handle and handle.node}"
                raise Conflict(
                    f"retained machine {node}/{name}: vm {found.name} {has}; restore it as another: --as NAME"
                )
            snapshots = tuple(dict.fromkeys((*found.snapshots, *retained.snapshots)))
            return msgspec.structs.replace(found, reinstate=link, snapshots=snapshots)

        return await self._vms.change(request, own.value, _RESTORE, bring_back, held)

    async def delete(self, request: Request, node: str, name: str) -> Written[RetainedView]:
        """Delete it permanently, with disk and snapshots, once its node is reachable. Conflict: a vm needs it.

        If no node has it any more (`RetainedView.lost`), only its record is deleted; the disk stays where it is.
        """
        request.caller.require("manage_accounts")

        async def attempt() -> Written[RetainedView]:
            entry = await self._find(request.caller, node, name)
            if self._view.vms.revision < entry.mod_revision:  # a restore writes both records
                await self._view.vms.refresh()
            needed_by = self._linked(entry)
            if needed_by:
                raise Conflict(
                    f"retained machine {node}/{name}: vm {needed_by} gets its disk from it; delete that first"
                )
            ids = {"node": node, "name": name}
            asked = await RETAINED_REQUEST.get(self._store, node=node, name=name)
            when: list[Comparison] = [RETAINED.unchanged(entry)]
            view = msgspec.structs.replace(self._shown(entry), deleting=True)
            if view.lost:
                member = self._view.members.get(node=node)
                when.append(MEMBER.absent(node=node) if member is None else MEMBER.unchanged(member))
                revision = await self._writer.commit(
                    request,
                    "retained.forget",
                    entry.key,
                    entry.mod_revision,
                    when,
                    [RETAINED.delete(**ids), RETAINED_REQUEST.delete(**ids)],
                    status=ACCEPTED,
                    answer=view,
                    name=entry.value.vm_name,
                )
                return Written(view, revision, ACCEPTED)
            if asked is not None:
                await self._writer.remember(request, when, status=ACCEPTED, answer=view)
                return Written(view, entry.mod_revision, ACCEPTED)
            asked_for = RetainedRequest(by=request.caller.name, at=self._clock.wall())
            revision = await self._writer.commit(
                request,
                "retained.delete",
                entry.key,
                entry.mod_revision,
                [*when, RETAINED_REQUEST.absent(**ids)],
                [RETAINED_REQUEST.put(asked_for, node=node, name=name)],
                status=ACCEPTED,
                answer=view,
                name=entry.value.vm_name,
            )
            return Written(view, revision, ACCEPTED)

        return await self._writer.once(
            request, RetainedView, lambda: self._writer.retry(f"retained machine {node}/{name}", attempt)
        )

    # Internal

    async def _own(self, retained: Retained) -> Entry[VirtualMachine] | None:
        """Return the virtual machine that it belonged to, in any project; None: it was deleted."""
        found = await VM.get(self._store, org=retained.org, project=retained.project, vm=retained.vm)
        return found or own_vm(self._view, retained)

    async def _find(self, caller: Caller, node: str, name: str) -> Entry[Retained]:
        entry = await RETAINED.get(self._store, node=node, name=name)
        if entry is None or not caller.sees(entry.value.org, entry.value.project):
            raise NotFound(f"retained machine {node}/{name}: not found; list them: hostler vm retained list")
        return entry

    def _linked(self, entry: Entry[Retained]) -> str:
        """Return the virtual machine that is to get its disk from it; empty: none."""
        link = Reinstatement(node=entry.parts["node"], name=entry.value.name)
        return next((vm.value.name for vm in self._view.vms.entries.values() if vm.value.reinstate == link), "")

    def _new_vm(self, retained: Retained, link: Reinstatement, name: str | None) -> VirtualMachine:
        id_ = self._new_id()
        return VirtualMachine(
            id=id_,
            name=name or retained.vm_name or id_,
            org=retained.org,
            project=retained.project,
            spec=msgspec.structs.replace(retained.spec, origin=None),
            snapshots=retained.snapshots,
            reinstate=link,
            created_at=self._clock.wall(),
        )

    def _shown(self, entry: Entry[Retained]) -> RetainedView:
        retained, node = entry.value, entry.parts["node"]
        asked = self._view.retained_requests.get(node=node, name=retained.name)
        return RetainedView(
            node=node,
            name=retained.name,
            org=retained.org,
            project=retained.project,
            vm=retained.vm,
            vm_name=retained.vm_name,
            cpus=retained.spec.cpus,
            memory_mib=retained.spec.memory_mib,
            disk_gib=retained.spec.disk_gib,
            image=retained.spec.image,
            snapshots=retained.snapshots,
            disk_bytes=retained.disk_bytes,
            retained_at=retained.retained_at,
            until=retained.kept_since + self._retention,
            kept_for=kept_for(self._view, entry),
            deleting=asked is not None,
            alive=self._view.alive.get(node=node) is not None,
            lost=loss_reason(self._view, entry),
            revision=entry.mod_revision,
        )
