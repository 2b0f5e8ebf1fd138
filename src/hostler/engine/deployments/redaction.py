"""What those who may not deploy are not told: what is in environments, which may be secrets, and what slices printed.

Pure. Names of variables are told, and that a slice failed; not the values, and not its last words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.model.access import HIDDEN
from hostler.ports.slices import LAST_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.model.blueprint_api import BlueprintStatus, SliceStatus, SliceView
    from hostler.model.deployment import SliceSpec

_SPOKEN = re.compile(rf"[;,]?\s*{re.escape(LAST_WORDS)}.*", re.DOTALL)
_replace = msgspec.structs.replace


def unspoken(text: str) -> str:
    """Without a slice's last words, and what follows them: nobody knows where they end."""
    return _SPOKEN.sub("", text)


def specs(slices: Iterable[SliceSpec]) -> tuple[SliceSpec, ...]:
    """Slices of a blueprint, with no value of their environments."""
    return tuple(
        _replace(spec, settings=_replace(spec.settings, environment=dict.fromkeys(spec.settings.environment, HIDDEN)))
        if spec.settings.environment
        else spec
        for spec in slices
    )


def status(found: BlueprintStatus) -> BlueprintStatus:
    """How far a blueprint is."""
    return _replace(found, detail=unspoken(found.detail), slices=tuple(map(_slice, found.slices)))


def _slice(one: SliceStatus) -> SliceStatus:
    versions = tuple(_replace(each, why=unspoken(each.why)) for each in one.versions)
    rollout = None if one.rollout is None else _replace(one.rollout, why=unspoken(one.rollout.why))
    return _replace(one, detail=unspoken(one.detail), versions=versions, rollout=rollout)


def slice_view(view: SliceView) -> SliceView:
    """What there is on a node."""
    return _replace(view, instances=tuple(_replace(one, why=unspoken(one.why)) for one in view.instances))


def plain(record: Any) -> Any:
    """A record of a deployment as the store has it, whatever is in it."""
    if isinstance(record, list):
        return [plain(one) for one in record]
    if not isinstance(record, dict):
        return record
    found: dict[Any, Any] = {}
    for name, value in record.items():
        if name == "environment" and isinstance(value, dict):
            found[name] = dict.fromkeys(value, HIDDEN)
        elif name == "why" and isinstance(value, str):
            found[name] = unspoken(value)
        else:
            found[name] = plain(value)
    return found
