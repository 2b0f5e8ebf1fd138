"""`labs.toml`: the lab catalogue.

    at_once = 30
    [default]
    image = "tiny"
    memory = "256M"
    life = "30m"
    [labs.5]
    title = "Files and rights"
    warm = 2

A lab inherits from `[default]` what it does not set. Without any `[labs.N]`, every lab id uses the default template.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.errors import Invalid, NotFound
from hostler.model.lab import LabCatalogue, LabTemplate
from hostler.settings.driver import lab_refusal, machine_kinds, nearest_kind
from hostler.settings.toml import parse_toml
from hostler.settings.value import mebibytes_of, seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

MAX_FILE = 256 * 1024
MAX_CLOUD_INIT = 32 * 1024
"""The largest size of one cloud-init file, in bytes."""
MAX_RECORD = 1024 * 1024
"""The largest size of the whole catalogue in bytes, which every store accepts."""
MAX_LAB_ID = 2**31 - 1
MAX_NAME = 200
"""The largest part of a name that a message repeats, in characters."""


def load_catalogue(path: Path, *, life: float, user: str) -> LabCatalogue:
    """Read the catalogue from the file; `life` (seconds) and `user` are its defaults.

    NotFound: there is no such file. Invalid: a mistake in the file, with its position.
    """
    table = parse_toml(f"{path}", _text(path, MAX_FILE))
    _check_names(f"{path}", table, ("at_once", "default", "labs"))
    reader, base = _Reader(path), LabTemplate(life=life, user=user)
    default = reader.template("[default]", _sub(f"{path}: default", table.get("default", {})), base)
    labs = {
        _lab_id(f"{path}: [labs.{key}]", key): reader.template(
            f"[labs.{key}]", _sub(f"{path}: [labs.{key}]", found), default
        )
        for key, found in _sub(f"{path}: labs", table.get("labs", {})).items()
    }
    if not labs and default.warm:
        raise Invalid(f"{path}: [default] warm: needs a lab id; add a table [labs.N] for each lab")
    at_once = _validate(f"{path}: at_once", LabCatalogue, "at_once", table["at_once"]) if "at_once" in table else None
    catalogue = LabCatalogue(labs=labs or None, default=default, at_once=at_once)
    size = len(catalogue.encode())
    if size > MAX_RECORD:
        raise Invalid(f"{path}: {size} bytes with its cloud-init files, at most {MAX_RECORD} fit; make it smaller")
    return catalogue


def _text(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise Invalid(f"{path}: more than {most} bytes; make it smaller")
        return data.decode()
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file; name another one") from None
    except UnicodeDecodeError:
        raise Invalid(f"{path}: is not UTF-8; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Invalid(f"{path}: cannot be read: {reason}") from None


def _sub(where: str, found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise Invalid(f"{where}: must be a table")
    return found


def _lab_id(where: str, key: str) -> str:
    if not re.fullmatch("[1-9][0-9]{0,9}", key) or int(key) > MAX_LAB_ID:
        where = where if len(where) < MAX_NAME else f"{where[:MAX_NAME]}…]"
        raise Invalid(f"{where}: must be named by its lab id, a whole number from 1 to {MAX_LAB_ID}")
    return key


class _Reader:
    """Reads the templates of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: dict[str, tuple[str, Callable[[object], object]]] = {
            "memory": ("memory_mib", mebibytes_of),
            "disk": ("disk_gib", _gibibytes),
            "life": ("life", seconds_of),
            "grace": ("grace", seconds_of),
            "warn": ("warn", seconds_of),
            "per_day": ("per_day", seconds_of),
            "provider": ("provider", _provider),
            "cloud_init": ("user_data", self._cloud_init),
        }
        plain = ("title", "image", "cpus", "user", "ssh_keys", "at_once", "warm", "end_with_terminal")
        self._read |= {name: (name, lambda value: value) for name in plain}

    def template(self, name: str, table: dict[str, Any], base: LabTemplate) -> LabTemplate:
        """Return `base` with the values of the table."""
        where = f"{self._path}: {name}"
        _check_names(where, table, self._read)
        found: dict[str, Any] = {}
        for key, value in table.items():
            field, read = self._read[key]
            place = f"{where} {key}"
            try:
                found[field] = _validate(place, LabTemplate, field, read(value))
            except ValueError as error:
                raise Invalid(f"{place}: {error}") from None
        template = msgspec.structs.replace(base, **found)
        refusal = lab_refusal(template)
        if refusal:
            raise Invalid(f"{where} {refusal}")
        return template

    def _cloud_init(self, value: object) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError("must be the name of a file in the folder of this file")
        return _text(self._path.parent / value, MAX_CLOUD_INIT)


def _gibibytes(value: object) -> int:
    """Parse a disk size; a plain number is GiB, as everywhere for disks."""
    if isinstance(value, int) or (isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value.strip())):
        return int(value)
    mebibytes = mebibytes_of(value)
    if mebibytes % 1024:
        raise ValueError(f"{value!r}: must be whole GiB; write 10G")
    return mebibytes // 1024


def _provider(value: object) -> str:
    if value not in machine_kinds():
        raise ValueError(f"{value!r} is not a machine driver; {nearest_kind(str(value))}")
    return str(value)


def _validate(place: str, record: type[LabTemplate | LabCatalogue], field: str, value: object) -> Any:
    """Return the value, validated by that field of the record."""
    try:
        return getattr(record.decode(msgspec.json.encode({field: value}), strict=True), field)
    except Invalid as error:
        raise Invalid(f"{place} = {str(value)[:80]!r}: {str(error).partition(': ')[2]}") from None


def _check_names(where: str, table: dict[str, Any], known: Iterable[str]) -> None:
    names = tuple(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
            raise Invalid(f"{where}: {key}: unknown name; {hint}")
