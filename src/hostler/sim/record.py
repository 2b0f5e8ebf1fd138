"""Records as the invariants read them: an unreadable record counts as missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from hostler.keys.key import Key
    from hostler.ports.store import Event
    from hostler.sim.world import World

T = TypeVar("T")


async def every(world: World, key: Key[Any]) -> list[tuple[dict[str, str], Any]]:
    """Return all records of a key family: the parts of each key, and its value."""
    page = await world.store.range(key.prefix())
    return [(entry.parts, entry.value) for kv in page.items if (entry := key.readable(kv)) is not None]


def value_of(key: Key[T], event: Event) -> T | None:
    """Return the current value of the key; None: deleted or unreadable."""
    entry = None if event.type == "delete" else key.readable(event.kv)
    return None if entry is None else entry.value
