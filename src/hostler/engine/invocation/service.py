"""Calls from outside: checks who may call a slice, then passes the call to the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid, NotFound
from hostler.keys.template import check_part
from hostler.model.deployment import Callers
from hostler.model.http_route import RouteTable
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.invocation.load_balancer import Instance
    from hostler.engine.invocation.router import Router
    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.model.http_route import Match
    from hostler.ports.calls import Items

_MANY = 10_000


class InvokeService:
    """Checks callers against the blueprint of a slice. A slice without a blueprint can be called only by operators."""

    def __init__(self, router: Router, view: View) -> None:
        self.router, self._view = router, view
        self._known: dict[str, tuple[int, int, Callers]] = {}
        self._tables: dict[str, tuple[int, RouteTable]] = {}
        """By blueprint: the revision that was read, and its route table."""

    async def ask(
        self,
        caller: Caller,
        target: str,
        method: str,
        arguments: bytes,
        *,
        within: float,
        trace: str = "",
        served_by: Callable[[Instance], None] | None = None,
    ) -> bytes | Items:
        """Call a slice as `Router.ask` does. Forbidden: the caller may not call this slice."""
        if not caller.may_deploy and self.callers(_base(target)) is not Callers.EVERYBODY:
            caller.require_deploy()
        return await self.router.ask(target, method, arguments, within=within, trace=trace, served_by=served_by)

    def route(self, blueprint: str, verb: str, segments: list[str]) -> Match:
        """Return the route for a path of a blueprint. NotFound: no such blueprint, or no such path in it."""
        name = fold(blueprint)
        entry = self._view.blueprints.get(blueprint=check_part(name, "blueprint"))
        if entry is None:
            raise NotFound(f"blueprint {name}: not found; look at the list of blueprints")
        known = self._tables.get(name)
        if known is None or known[0] != entry.mod_revision:
            if len(self._tables) >= _MANY:
                self._tables.clear()
            known = self._tables[name] = entry.mod_revision, RouteTable(entry.value.slices)
        found = known[1].find(verb, segments)
        if found is None:
            path = "/".join(segments)[:200]
            raise NotFound(f"path /{path}: blueprint {name} has no such route; see hostler blueprint routes {name}")
        return found

    def callers(self, base: str) -> Callers:
        """Return who may call a slice."""
        try:
            owner = self._view.owners.get(base=base)
        except Invalid:  # not a valid name; operators get the error from the router
            return Callers.OPERATORS
        blueprint = None if owner is None else self._view.blueprints.get(blueprint=owner.value.blueprint)
        if owner is None or blueprint is None:
            return Callers.OPERATORS
        known = self._known.get(base)
        if known is None or known[:2] != (owner.mod_revision, blueprint.mod_revision):
            spec = blueprint.value.spec_of(base)
            said = Callers.OPERATORS if spec is None else spec.callers
            if len(self._known) >= _MANY:
                self._known.clear()
            known = self._known[base] = owner.mod_revision, blueprint.mod_revision, said
        return known[2]


def _base(target: str) -> str:
    return target if target.count(":") < 2 else target.rpartition(":")[0]
