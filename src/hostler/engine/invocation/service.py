"""Calls from outside: who may, and then the router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import Invalid
from hostler.model.deployment import Callers

if TYPE_CHECKING:
    from hostler.engine.invocation.router import Router
    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.ports.calls import Items

_MANY = 10_000


class InvokeService:
    """Asks the view who may call a slice: its blueprint says so. What no blueprint names is for operators."""

    def __init__(self, router: Router, view: View) -> None:
        self.router, self._view = router, view
        self._known: dict[str, tuple[int, int, Callers]] = {}

    async def ask(
        self, caller: Caller, target: str, method: str, arguments: bytes, *, within: float, trace: str = ""
    ) -> bytes | Items:
        """As `Router.ask`. Forbidden: the caller may not call this slice."""
        if not caller.may_deploy and self.callers(_base(target)) is not Callers.EVERYBODY:
            caller.require_deploy()
        return await self.router.ask(target, method, arguments, within=within, trace=trace)

    def callers(self, base: str) -> Callers:
        """Who may call it."""
        try:
            owner = self._view.owners.get(base=base)
        except Invalid:  # there is no such name; whoever may ask is told so
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
