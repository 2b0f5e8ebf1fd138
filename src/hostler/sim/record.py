"""Records as the invariants see them: what nobody can read is as if it were not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hostler.keys.key import Key
    from hostler.ports.store import Event
    from hostler.sim.world import World

T = TypeVar("T")


async def every(world: World, key: Key[Any]) -> list[tuple[dict[str, str], Any]]:
    """All of a family: the parts of each key, and its record."""
    page = await world.store.range(key.prefix())
    return [(entry.parts, entry.value) for kv in page.items if (entry := key.readable(kv)) is not None]


def value_of(key: Key[T], event: Event) -> T | None:
    """What stands there now; None: it is gone, or cannot be read."""
    entry = None if event.type == "delete" else key.readable(event.kv)
    return None if entry is None else entry.value
