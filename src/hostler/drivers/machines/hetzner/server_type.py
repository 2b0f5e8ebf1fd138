"""Selects server types that are large enough, and the order of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Refused
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.drivers.machines.hetzner.api_types import Kind
    from hostler.drivers.machines.hetzner.options import HetznerOptions
    from hostler.model.vm import VmSpec


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
