"""Hides what only users who may deploy may read: values of environments, which may be secrets, and output of slices.

Pure. Names of variables and the fact that a slice failed stay visible; values and the slice's last output do not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.model.access import HIDDEN
from hostler.ports.slices import LAST_WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.model.blueprint_api import BlueprintStatus, SliceStatus
    from hostler.model.deployment import SliceSpec
    from hostler.model.slice_api import SliceView

_SPOKEN = re.compile(rf"[;,]?\s*{re.escape(LAST_WORDS)}.*", re.DOTALL)
_replace = msgspec.structs.replace


def unspoken(text: str) -> str:
    """Remove a slice's last output from a text, and all that follows, because its end is not marked."""
    return _SPOKEN.sub("", text)


def specs(slices: Iterable[SliceSpec]) -> tuple[SliceSpec, ...]:
    """Return slices of a blueprint with the values of their environments hidden."""
    return tuple(
        _replace(spec, settings=_replace(spec.settings, environment=dict.fromkeys(spec.settings.environment, HIDDEN)))
        if spec.settings.environment
        else spec
        for spec in slices
    )


def status(found: BlueprintStatus) -> BlueprintStatus:
    """Return the status of a blueprint without output of slices."""
    return _replace(found, detail=unspoken(found.detail), slices=tuple(map(_slice, found.slices)))


def _slice(one: SliceStatus) -> SliceStatus:
    versions = tuple(_replace(each, why=unspoken(each.why)) for each in one.versions)
    rollout = None if one.rollout is None else _replace(one.rollout, why=unspoken(one.rollout.why))
    return _replace(one, detail=unspoken(one.detail), versions=versions, rollout=rollout)


def slice_view(view: SliceView) -> SliceView:
    """Return a slice on a node without its output."""
    return _replace(view, instances=tuple(_replace(one, why=unspoken(one.why)) for one in view.instances))


def plain(record: Any) -> Any:
    """Return a stored record of a deployment, of any shape, with environments and output hidden."""
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
