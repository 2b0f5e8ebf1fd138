"""Creates servers, and resizes servers that are off: the types that are large enough, and the order of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.hetzner.api_types import OFF, RUNNING, Absent, Full, Unfit, is_full
from hostler.drivers.machines.hetzner.labels import Card, of_vm, pack_key, server_name
from hostler.drivers.machines.seed import Identity, hostname_of, new_host_key, nocloud_files
from hostler.errors import Refused, Unavailable, Uncertain
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.drivers.machines.hetzner.api_types import Action, Kind, Server
    from hostler.drivers.machines.hetzner.context import HetznerContext
    from hostler.drivers.machines.hetzner.descriptor import HetznerOptions
    from hostler.model.vm import VmSpec
    from hostler.ports.machines import MachinePlan


def fitting(spec: VmSpec, kinds: Sequence[Kind], options: HetznerOptions) -> Sequence[Kind]:
    """Return the types that are large enough, best first. Refused: none is."""
    if options.server_types:
        by_name = {kind.name: kind for kind in kinds}
        unknown = [name for name in options.server_types if name not in by_name]
        if unknown:
            raise Refused(
                f"server type {unknown[0]!r}: not found at Hetzner Cloud; set hcloud_server_type to one of"
                f" {', '.join(sorted(by_name))}"
            )
        known = [by_name[name] for name in options.server_types if by_name[name].is_in("")]
        if not known:
            raise Refused(
                f"server type {', '.join(options.server_types)}: no longer available at Hetzner Cloud; set"
                f" hcloud_server_type to one of {', '.join(sorted(kind.name for kind in kinds if kind.is_in('')))}"
            )
    else:
        plain = [kind for kind in kinds if kind.shared and kind.architecture == "x86" and kind.is_in("")]
        known = sorted(plain, key=lambda kind: (kind.cpus, kind.memory_mib, kind.disk_gib, kind.name))
    found = [kind for kind in known if fits(spec, kind)]
    if not found:
        sizes = ", ".join(f"{kind.name} ({counted(kind.cpus, 'cpu')}, {kind.memory_mib} MiB)" for kind in known)
        raise Refused(
            f"{counted(spec.cpus, 'cpu')}, {spec.memory_mib} MiB of memory, {spec.disk_gib} GiB of disk: no server type"
            f" is large enough; available: {sizes or 'none'}; ask for less, or name larger ones in hcloud_server_type"
        )
    return found


def fits(spec: VmSpec, kind: Kind) -> bool:
    return kind.cpus >= spec.cpus and kind.memory_mib >= spec.memory_mib and kind.disk_gib >= spec.disk_gib


def tries(kinds: Sequence[Kind], options: HetznerOptions) -> Iterator[tuple[str, str]]:
    """Yield type and location in the order of attempts; an empty location: Hetzner Cloud chooses."""
    for location in options.locations or ("",):
        for kind in kinds:
            if kind.is_in(location):
                yield kind.name, location


CREATING = "creating"
USER_DATA_BYTES = 32 * 1024
_NO_MAC = "52:54:00:00:00:00"
_TOLD_ONCE = ("user_data", "network_config", "ssh_keys", "origin")
replace = msgspec.structs.replace


class ServerCreation:
    """Creates and resizes the servers of one driver."""

    def __init__(self, site: HetznerContext) -> None:
        self._site = site
        self._firewall: int | None = None
        self._kinds: tuple[float, Sequence[Kind]] | None = None

    async def kinds(self, *, fresh: bool = False) -> Sequence[Kind]:
        """Return the server types, possibly cached; `fresh`: read from the API."""
        now = self._site.clock.now()
        if fresh or self._kinds is None or now - self._kinds[0] > self._site.options.pace.types_for:
            self._kinds = now, await self._site.api.kinds()
        return self._kinds[1]

    async def make(self, plan: MachinePlan) -> Server:
        """Create a complete server that is off. Taken: the name exists after all; inspect it."""
        vm, site = plan.label.vm, self._site
        candidates = fitting(plan.spec, await self.kinds(), site.options)
        image = await self._image(plan)
        firewall = await self._firewall_id()
        key = new_host_key()
        user = plan.spec.user or site.options.user
        user_data = self._user_data(plan, user, key.private)
        card = Card(
            label=plan.label,
            tags=plan.tags,
            life=CREATING,
            spec=site.kept.keep(vm, plan.spec),
            shape=(plan.spec.cpus, plan.spec.memory_mib, plan.spec.disk_gib),
            image=plan.spec.image or site.options.image,
            user=user,
            host_key=pack_key(key.public),
        )
        tried: list[str] = []
        refused = True
        for kind, location in tries(candidates, site.options):
            try:
                server, going = await site.api.create(
                    server_name(vm),
                    kind=kind,
                    location=location,
                    image=image,
                    user_data=user_data,
                    labels=card.labels(),
                    firewall=firewall,
                )
            except (Full, Unfit) as error:
                tried.append(f"{kind}{f' in {location}' * bool(location)}: {error}")
                if isinstance(error, Unfit):
                    self._kinds = None  # the cached server types are out of date
                else:
                    refused = False
                continue
            except Absent as error:
                self._firewall = None  # another firewall may have its name by now
                raise Refused(f"machine {vm!r}: {error}; see its image, hcloud_ssh_key and hcloud_firewall") from None
            failed = await self._first_failure(going, vm)
            if failed is None:
                return await self._whole(server, card)
            await site.destroy(server)
            if not is_full(failed.code):
                raise Unavailable(f"machine {vm!r}: creating its server failed: {failed.message}; try again")
            tried.append(f"{kind}{f' in {location}' * bool(location)}: {failed.message}")
            refused = False
        if tried and refused:
            raise Refused(
                f"machine {vm!r}: Hetzner Cloud offers no suitable server; tried {'; '.join(tried)}; name others in"
                " hcloud_server_type and hcloud_location"
            )
        raise Unavailable(
            f"machine {vm!r}: Hetzner Cloud has no capacity for it at present; tried {'; '.join(tried) or 'nothing'};"
            " name more in hcloud_server_type and hcloud_location, or try again later"
        )

    async def finish(self, server: Server, card: Card) -> Server | None:
        """Complete a server whose creation was interrupted. None: that is impossible, and the server is deleted."""
        going = [action for action in await self._site.api.actions_of(server) if action.command == "create_server"]
        if not going or await self._first_failure(going, card.label.vm) is not None:
            await self._site.destroy(server)
            return None
        return await self._whole(server, card)

    async def reshape(self, server: Server, card: Card, plan: MachinePlan) -> Server:
        """Change a server that is off to match the plan. Refused: that is impossible."""
        site, spec = self._site, self._site.kept.spec_of(card)
        if plan.spec != spec:
            self._check_reshape(card, spec, plan)
            server = await self._resize_server(server, plan)
        wanted = replace(
            card,
            label=plan.label,
            tags=plan.tags,
            shape=(plan.spec.cpus, plan.spec.memory_mib, plan.spec.disk_gib),
            spec=site.kept.keep(card.key, plan.spec),
        )
        if wanted != card:
            server = await site.relabel(server, wanted)
        site.kept.forget(card.key, but=wanted.spec)
        return server

    # Inside

    async def _whole(self, server: Server, card: Card) -> Server:
        """Wait until the server is off, then mark it complete."""
        patience = self._site.options.pace.patience
        try:
            seen = await self._site.goings.became(server.name, _has_settled, within=patience)
        except TimeoutError:
            raise Uncertain(f"server {server.name}: created, but not off after {patience:g} s") from None
        if seen is None:
            raise Unavailable(f"server {server.name}: deleted by another client; inspect the machine")
        return await self._site.relabel(seen, replace(card, life=""))

    async def _first_failure(self, going: Sequence[Action], vm: str) -> Action | None:
        """Wait until all actions have ended; return the first that failed."""
        ended = [await self._site.goings.wait_until_ended(action, f"machine {vm!r}") for action in going]
        return next((action for action in ended if action.failed), None)

    def _check_reshape(self, card: Card, spec: VmSpec, plan: MachinePlan) -> None:
        vm, options = plan.label.vm, self._site.options
        if plan.spec.image != spec.image and (plan.spec.image or options.image) != card.image:
            raise Refused(
                f"machine {vm!r}: it was created from image {card.image!r}, which cannot be changed to"
                f" {plan.spec.image or options.image!r}; create another machine"
            )
        if plan.spec.user != spec.user and (plan.spec.user or options.user) != card.user:
            raise Refused(f"machine {vm!r}: its login user is {card.user!r}, which is fixed; create another machine")
        known = self._site.kept.spec(card.key, card.spec) is not None
        for name in _TOLD_ONCE:
            if known and getattr(plan.spec, name) != getattr(spec, name):
                raise Refused(
                    f"machine {vm!r}: its {name} was set when the server was created and cannot be changed;"
                    " create another machine"
                )

    async def _resize_server(self, server: Server, plan: MachinePlan) -> Server:
        site, spec, vm = self._site, plan.spec, plan.label.vm
        kinds = fitting(spec, await self.kinds(), site.options)
        grows = spec.disk_gib > server.disk_gib
        tried: list[str] = []
        for kind in kinds:
            if kind.disk_gib < server.disk_gib or not kind.is_in(server.location):
                continue  # a disk cannot shrink, and a server cannot change its location
            if kind.name == server.type and not grows:
                return server
            try:
                going = await site.api.act(server, "change_type", server_type=kind.name, upgrade_disk=grows)
            except (Full, Unfit) as error:
                tried.append(f"{kind.name}: {error}")
                continue
            ended = await site.goings.wait_until_ended(going, f"machine {vm!r}")
            if not ended.failed:
                return server
            tried.append(f"{kind.name}: {ended.message}")
        if not tried:
            raise Refused(
                f"machine {vm!r}: no server type in {server.location or 'its location'} is large enough and has a disk"
                f" of at least {server.disk_gib} GiB; ask for another size"
            )
        raise Unavailable(f"machine {vm!r}: it cannot be resized at present: {'; '.join(tried)}; try again")

    async def _image(self, plan: MachinePlan) -> str | int:
        origin = plan.spec.origin
        if origin is None:
            image = plan.spec.image or self._site.options.image
            return int(image) if image.isdecimal() else image
        server = await self._site.looks.server(server_name(origin.vm))
        card = None if server is None else self._site.card(server)
        for snapshot in await self._site.api.snapshots(of_vm(origin.vm if card is None else card.key)):
            if snapshot.name == origin.snapshot and snapshot.status == "available":
                return snapshot.id
        raise Refused(
            f"machine {plan.label.vm!r}: its origin, snapshot {origin.snapshot!r} of {origin.vm!r}, does not exist;"
            " delete this machine, and clone another snapshot"
        )

    async def _firewall_id(self) -> int | None:
        name = self._site.options.firewall
        if name and self._firewall is None:
            self._firewall = await self._site.api.firewall(name)
        return self._firewall

    def _user_data(self, plan: MachinePlan, user: str, host_key: str) -> str:
        identity = Identity(
            instance=server_name(plan.label.vm),
            hostname=hostname_of(plan.name, plan.label.vm),
            user=user,
            host_key=host_key,
            ssh_keys=plan.spec.ssh_keys,
            user_data=plan.spec.user_data or self._site.options.cloud_init,
            mac=_NO_MAC,
        )
        text = nocloud_files(identity)["user-data"].decode()
        if len(text.encode()) > USER_DATA_BYTES:
            raise Refused(
                f"machine {plan.label.vm!r}: its user-data and keys take {len(text.encode())} bytes, and Hetzner Cloud"
                f" accepts {USER_DATA_BYTES}; let the guest download what it needs"
            )
        return text


def _has_settled(server: Server | None) -> bool:
    return server is None or server.status in (OFF, RUNNING)
