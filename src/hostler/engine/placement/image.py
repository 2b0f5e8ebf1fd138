"""Requirements of an image on a machine, as far as nodes report them: memory, and user data that it runs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.image import Seeding
from hostler.model.node import ImageNeeds, Lifecycle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.model.node import NodeRecord
    from hostler.model.vm import VmSpec

_SCRIPT = "#!"


def image_problems(spec: VmSpec, records: Iterable[NodeRecord]) -> tuple[str, ...]:
    """Return what is wrong with a machine of this spec on each node that could run it; nothing without nodes."""
    serving = [record for record in records if record.lifecycle is not Lifecycle.DECOMMISSIONED]
    if not serving:
        return ()
    having = [record for record in serving if record.images is None or spec.image in record.images]
    if not having:
        if not spec.image:
            return ("no node has a default image; build or add one (hostler image)",)
        return (f"no node has the image {spec.image!r}; build or add it (hostler image), or name another one",)
    found = []
    least = min(_needs(spec.image, record).memory_mib for record in having)
    if spec.memory_mib < least:
        found.append(f"its image needs {least} MiB of memory, and it has {spec.memory_mib}; give it more")
    if why := not_run(spec, having):
        found.append(why)
    return tuple(found)


def not_run(spec: VmSpec, records: Iterable[NodeRecord]) -> str:
    """Return why none of these nodes runs the user data of a machine; empty: one does, or that is unknown."""
    if not spec.user_data or spec.origin is not None:
        return ""
    name = f"image {spec.image!r}" if spec.image else "the default image"
    why = ""
    for record in records:
        match _needs(spec.image, record).seeding:
            case Seeding.NONE:
                why = f"user_data is not run: {name} takes none; leave it out, or name another image"
            case Seeding.FIRMWARE if not spec.user_data.startswith(_SCRIPT):
                why = (
                    f"user_data is not run: {name} has no cloud-init, and runs only a script that begins with"
                    f" {_SCRIPT}; write such a script, or name an image with cloud-init"
                )
            case _:
                return ""
    return why


def _needs(image: str, record: NodeRecord) -> ImageNeeds:
    if image:
        return record.image_needs.get(image, ImageNeeds())
    return next((needs for needs in record.image_needs.values() if needs.default), ImageNeeds())
