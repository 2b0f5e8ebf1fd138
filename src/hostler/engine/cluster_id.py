"""The id of this control plane: machines carry it, so that nobody touches those of another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Conflict, Unavailable, Uncertain
from hostler.keys.node import CLUSTER
from hostler.model.node import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.kit.clock import Clock
    from hostler.ports.store import Store

_TRIES = 3


async def cluster_id(store: Store, clock: Clock, new_id: Callable[[], str]) -> str:
    """The id, made if there is none yet: of many that come first at once, all get the same. Unavailable: try later."""
    for _ in range(_TRIES):
        found = await CLUSTER.get(store)
        if found is not None:
            return found.value.id
        try:
            return (await CLUSTER.create(store, Cluster(id=new_id(), created_at=clock.wall()))).value.id
        except (Conflict, Uncertain):
            continue  # it is there now, or may be: look
    raise Unavailable(f"{CLUSTER.fill()}: the store does not say whether it was written; try again")
